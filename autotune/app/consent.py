"""What a job would run and read, said before it does, and asked where the job is not one's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.base.text import Ask, Say
from autotune.job.job import JobText, given_keys
from autotune.job.origin import code_of, deeds_of, is_inside, is_ours


def agree_to_job(
    job_file: Path | JobText | None,
    flags: Mapping[str, Any],
    *,
    is_trusted: bool,
    say: Say,
    ask: Ask | None,
    key: str = "job",
) -> JobText | None:
    """Say which code a job imports; ask where the job's file is none of the working folder.

    Args:
        job_file: YAML, what was read of it, or None.
        flags: Keys of the job that come before the file's.
        is_trusted: Whether the user has said that this file is to be trusted.
        say: Takes a line.
        ask: Takes a question; None: nobody is there to answer.
        key: What named the file.

    Returns:
        What the file holds.

    Raises:
        JobError: The file cannot be read, or is not trusted.
    """
    text = JobText.read(job_file) if isinstance(job_file, Path) else job_file
    if text is not None and not is_trusted:
        folder = Path.cwd()
        deeds = [] if is_inside(text.path, folder) else deeds_of(text.keys, without=flags)
        if deeds:
            _ask_for(f"{flag(key)} {text.path}", folder, deeds, say, ask)
    if (code := code_of(given_keys(text, flags).get("model"))) is not None:
        say(f"model: {code}, to count its parameters")
    return text


def refuse_if_of_another_user(file: Path, deed: str | None) -> None:
    """Refuse a file of a recorded study that is somebody else's and does something.

    Raises:
        JobError: It is, and it does.
    """
    if deed is None or is_ours(file) or is_inside(file, Path.cwd()):
        return
    raise JobError.of("app.of_another_user", file=file, deed=deed)


def _ask_for(named: str, folder: Path, deeds: list[str], say: Say, ask: Ask | None) -> None:
    listed = "".join(f"\n  {deed}" for deed in deeds)
    message = f"{named}: is not a file of yours in {folder} or below, and{listed}"
    if ask is not None:
        say(message)
        if ask("Trust it?"):
            return
    refusal = message if ask is None else f"{named}: not trusted"
    raise JobError(refusal, f"look into it, and give {switch('trust_job')} if you trust it")
