"""What a job would run and read, said before it does, and asked where the job is not one's own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.job.job import JobText, given_keys
from autotune.job.origin import code_of, deeds_of, is_inside, is_ours


def agree_to_job(
    job_file: Path | None,
    flags: Mapping[str, Any],
    *,
    is_trusted: bool,
    say: Callable[[str], None],
    ask: Callable[[str], bool] | None,
) -> JobText | None:
    """Say which code a job imports; ask where the job's file is none of the working folder.

    Args:
        job_file: YAML, or None.
        flags: Keys of the job that come before the file's.
        is_trusted: Whether the user has said that this file is to be trusted.
        say: Takes a line.
        ask: Takes a question; None: nobody is there to answer.

    Returns:
        What the file holds.

    Raises:
        JobError: The file cannot be read, or is not trusted.
    """
    text = None if job_file is None else JobText.read(job_file)
    if text is not None and not is_trusted:
        folder = Path.cwd()
        deeds = [] if is_inside(text.path, folder) else deeds_of(text.keys, without=flags)
        if deeds:
            _ask_for(text.path, folder, deeds, say, ask)
    if (code := code_of(given_keys(text, flags).get("model"))) is not None:
        say(f"model: {code}, to count its parameters")
    return text


def refuse_code_of_others(job_file: Path, model: object) -> None:
    """Refuse to import what the job of a recorded study names where that is somebody else's.

    Raises:
        JobError: It is, and it names a factory.
    """
    code = code_of(model)
    if code is None or is_ours(job_file) or is_inside(job_file, Path.cwd()):
        return
    raise JobError(
        f"{job_file}: belongs to another user, and {code}",
        "read what it does; if you trust it, copy the study's folder: the copy is yours",
    )


def _ask_for(
    job_file: Path,
    folder: Path,
    deeds: list[str],
    say: Callable[[str], None],
    ask: Callable[[str], bool] | None,
) -> None:
    listed = "".join(f"\n  {deed}" for deed in deeds)
    message = f"{flag('job')} {job_file}: is not a file of yours in {folder} or below, and{listed}"
    if ask is not None:
        say(message)
        if ask("Trust it?"):
            return
    raise JobError(
        message if ask is None else f"{flag('job')} {job_file}: not trusted",
        f"look into it, and give {switch('trust_job')} if you trust it",
    )
