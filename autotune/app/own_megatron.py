"""A user's own command that may start a script of Megatron-LM: then a job with a checkout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.app.own_script import (
    Note,
    open_script_session,
    refuse_keys_of_command,
    study_name,
    study_of,
)
from autotune.app.session import Session, open_session
from autotune.base.errors import StudyError
from autotune.base.files import try_folder, write_text
from autotune.base.templates import canonical_json
from autotune.contract import PRIVATE_MODE
from autotune.engines.megatron.own_command import is_megatrons, read_command
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.job.command import as_typed, check_command

COMMAND_FILE = "command.sh"
MODEL_FILE = "model.json"
_HINT = "name a folder that you may write, such as --results ~/autotune"


def open_command_session(
    command: Sequence[str],
    flags: Mapping[str, Any],
    *,
    results: Path,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
    fresh: bool = False,
    note: Note,
) -> Session:
    """A session for a user's command, of whichever engine; arguments as of `open_script_session`.

    A command of Megatron-LM need not run to tell what it trains: its arguments do. It is the
    baseline, and its arguments stay in every trial but for those that a knob governs.

    Raises:
        JobError: It cannot be started or told, or a flag says what the command decides.
        StudyError: The results cannot be written there.
        FleetError: The devices are not there.
    """
    check_command(command)
    folder = Path.cwd()
    if flags.get("engine") != "megatron" and not is_megatrons(command, folder):
        return open_script_session(
            command,
            flags,
            results=results,
            fleet=fleet,
            options=options,
            fresh=fresh,
            note=note,
        )
    refuse_keys_of_command(flags)
    own = read_command(command, folder)
    name = flags.get("study") or study_name(list(command), str(folder))
    study = study_of(results, name, fresh, note)
    if own.left_out:
        note(f"left out in trials: {', '.join(own.left_out)}")
    try_folder(study.folder, named=study.folder, hint=_HINT)
    study.folder.mkdir(parents=True, exist_ok=True)
    texts = {COMMAND_FILE: f"{as_typed(command)}\n", MODEL_FILE: canonical_json(own.config)}
    for name, text in texts.items():
        mode = PRIVATE_MODE if name == COMMAND_FILE else None
        write_text(study.folder / name, text, error=StudyError, hint=_HINT, mode=mode)
    return open_session(
        None,
        {
            **flags,
            **own.keys,
            "engine": "megatron",
            "megatron_path": str(own.checkout),
            "megatron_arguments": list(own.words),
            "model": str(study.folder / MODEL_FILE),
            "baseline": str(study.folder / COMMAND_FILE),
            "study": study.name,
        },
        results=results,
        fleet=fleet,
        options=options,
    )
