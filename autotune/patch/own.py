"""The files that a user's script takes its configuration from, with a candidate in them."""

import contextlib
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from autotune.base.errors import AutotuneError
from autotune.base.user_text import read_text
from autotune.check.written import edited_as
from autotune.engines.base import Engine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.engines.deepspeed.sources.reading import parsed
from autotune.export.base import Handout
from autotune.job.observed import Observed
from autotune.trial.guest.edits import Edits, put

_PRODUCT = "train_batch_size"
_MICRO_BATCH = "train_micro_batch_size_per_gpu"


def with_own_files(handout: Handout, engine: Engine, *, carried: Collection[str]) -> Handout:
    """A handout of a user's command with the files that its script reads.

    Args:
        handout: It.
        engine: Bound to its job.
        carried: As of `edited_files`.
    """
    script = handout.job.script
    if script is None or not isinstance(engine, ScriptEngine):
        return handout
    files = edited_files(script.here, engine.edits(handout.candidate), carried)
    return replace(handout, carried=carried, files_read=files)


def edited_files(script: Observed, edits: Edits, carried: Collection[str]) -> dict[str, str]:
    """Texts of the files with the edits in them, each in its own form and with its comments.

    Args:
        script: The command, with the paths at which its files are now.
        edits: The candidate's.
        carried: Keys that a trial saw arrive from the files.

    Returns:
        Path -> text. A file that cannot be read, or edited with every comment kept, is left out.
        After them the files that the script read from folders of theirs, as they are: it may
        look for those beside the others.
    """
    wanted = {key: value for key, value in edits.configuration.items() if key in carried}
    if script.framework != "deepspeed" and _MICRO_BATCH in wanted:
        wanted[_PRODUCT] = None  # see `Edits.apply`
    found = {}
    for file, changes in script.in_files(wanted).items():
        path = Path(file)
        try:
            text = read_text(path)
            theirs = parsed(text, path)
        except AutotuneError:
            continue
        data = theirs.data
        for at, value in changes:
            put(data, at, value)
        after = edited_as(theirs.syntax, text, data)
        if after is not None:
            found[file] = after
    folders = tuple(f"{Path(file).parent}{os.sep}" for file in found)
    for file in script.description.get("settings_read") or ():
        if file not in found and str(file).startswith(folders):
            with contextlib.suppress(AutotuneError):
                found[file] = read_text(Path(file))
    return found
