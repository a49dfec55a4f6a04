"""A trial leaves the user's run without traces: nothing is saved, uploaded or tracked.

What their code writes with `open` itself is theirs, and is written.
"""

import contextlib
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.trial.guest.hooks import Hook, around

_TABLES = json.loads(Path(__file__).with_name("quiet.json").read_text(encoding="utf-8"))
VARIABLES: dict[str, str] = _TABLES["variables"]
"""Environment in which trackers neither ask, nor send, nor write."""
ARGUMENTS: dict[str, Any] = _TABLES["arguments"]
"""Fields of TrainingArguments that a trial sets; a version that lacks one is left alone."""
MAX_STEPS = 1_000_000
"""Steps of a Trainer in a trial: it begins its data again, and the trial ends it."""

_SILENT: dict[str, dict[str, list[str]]] = _TABLES["silent"]
"""Methods that write or send, by module and class, and functions, by module."""
_MONITORS = ("TensorBoardMonitor", "WandbMonitor", "csvMonitor", "CometMonitor")
"""What DeepSpeed sends its figures to, by the sections of its configuration."""


def hooks() -> list[Hook]:
    """What is switched off once each module is there."""
    return [
        *(
            (
                module,
                f"{kind}.{name}".strip("."),
                _save if name.startswith("save") else _nothing,
            )
            for module, kinds in _SILENT.items()
            for kind, names in kinds.items()
            for name in names
        ),
        *(("deepspeed.monitor.monitor", name, _NoMonitor) for name in _MONITORS),
        ("hydra.core.utils", "run_job", _run_hydra),
        ("transformers.trainer", "Trainer.train", _train_anew),
        # It insists on evaluations.
        ("transformers.trainer_callback", "EarlyStoppingCallback.on_train_begin", _pass_by),
        ("torch.serialization", "save", _save_in_memory),
        ("torch.utils.tensorboard.writer", "SummaryWriter.__init__", _make_board),
        ("tensorboardX.writer", "SummaryWriter.__init__", _make_board),
    ]


def _nothing(*_: Any, **__: Any) -> bool:
    """Save nothing, and say as DeepSpeed does that it was saved."""
    return True


def _save(save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Save nothing but what a script prepares, which it may read again."""
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, str | os.PathLike)]
    return save(*args, **kwargs) if given and _is_preparing(given[0]) else True


def _is_preparing(path: Any) -> bool:
    """Whether there is no engine yet, and nothing of an earlier run at a path."""
    return _prepares_since_s is not None and not _has_older(path, _prepares_since_s)


def _pass_by(*_: Any, **__: Any) -> None:
    """Do nothing."""


class _NoMonitor:
    """Takes figures, and needs no package."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.enabled = False

    def write_events(self, *_: Any, **__: Any) -> None:
        """Write none."""


def _save_in_memory(
    save: Callable[..., None], obj: Any, f: Any, *args: Any, **kwargs: Any
) -> None:
    """Objects still go into buffers, as ranks send them to one another; see `_save` for files."""
    if isinstance(f, str | os.PathLike) and not _is_preparing(f):
        _unsaved.add(os.path.abspath(f))
    else:
        save(obj, f, *args, **kwargs)


_unsaved: set[str] = set()
"""Files that a script takes for saved; it may give them another name, or remove them."""
_made: list[str] = []
"""Folders that it has made."""


_prepares_since_s: float | None = None
"""When the trial began; None once the script has an engine: what it saves then is a checkpoint."""
_spared: set[str] = set()
"""Folders that it has removed, as it believes."""


def watch_files(began_s: float) -> None:
    """Let a script go on after files that were not saved, and keep the folders that it makes.

    A folder with files from before the trial, which began at `began_s`, stays: it may hold
    checkpoints, in whose place none is saved.
    """
    global _prepares_since_s
    _prepares_since_s = began_s

    def remove_folder(remove: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(path, str | os.PathLike) and _has_older(path, began_s):
            _spared.add(os.path.abspath(os.fspath(path)))
        else:
            remove(path, *args, **kwargs)

    for name in ("rename", "replace", "remove", "unlink"):
        setattr(os, name, around(getattr(os, name), _spare_unsaved))
    vars(shutil)["rmtree"] = around(shutil.rmtree, remove_folder)
    os.mkdir = around(os.mkdir, _make_folder)


def end_preparing() -> None:
    """An engine is made: what is saved from here on is a checkpoint."""
    global _prepares_since_s
    _prepares_since_s = None


def _has_older(path: str | os.PathLike[str], moment_s: float) -> bool:
    """Whether a file, or one in a folder, is older than a moment."""
    inside = (Path(at, name) for at, _, names in os.walk(path) for name in names)
    files = [Path(path)] if os.path.isfile(path) else inside
    with contextlib.suppress(OSError):
        return any(file.lstat().st_ctime < moment_s for file in files)
    return False


def _make_folder(make: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
    is_path = isinstance(path, str | os.PathLike) and kwargs.get("dir_fd") is None
    name = os.path.abspath(os.fspath(path)) if is_path else ""
    if name in _spared and os.path.isdir(name):
        _spared.remove(name)
        return
    make(path, *args, **kwargs)
    if is_path:
        _made.append(name)


def _spare_unsaved(call: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
    """Leave alone what was not saved, also where an earlier run left a file of that name."""
    if not isinstance(path, str | os.PathLike) or os.path.abspath(path) not in _unsaved:
        call(path, *args, **kwargs)
        return
    for target in args:  # the new name
        if isinstance(target, str | os.PathLike):
            _unsaved.add(os.path.abspath(target))


def remove_empty_folders() -> None:
    """Remove the folders that the script has made for what was not written."""
    for path in reversed(_made):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _make_board(make: Callable[..., None], writer: Any, *args: Any, **kwargs: Any) -> None:
    """Event files go where the trial's temporary files are."""
    kwargs.pop("log_dir", None)
    kwargs.pop("logdir", None)
    make(writer, str(scratch() / "boards"), *args[1:], **kwargs)


def _run_hydra(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hydra's folder of a run is the trial's, unless the script works in that folder."""
    from hydra.version import base_at_least
    from omegaconf import OmegaConf

    given = inspect.signature(run).bind(*args, **kwargs).arguments
    works_there = given["config"].hydra.job.chdir
    if works_there is None:
        works_there = not base_at_least("1.2")
    if not works_there:
        OmegaConf.update(given["config"], given["job_dir_key"], output_folder(), force_add=True)
    return run(*args, **kwargs)


def _train_anew(
    train: Callable[..., Any], trainer: Any, _: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """No checkpoint is loaded: one of another ZeRO stage would be refused."""
    kwargs.pop("resume_from_checkpoint", None)
    return train(trainer, None, *args, **kwargs)


def quiet_arguments(arguments: Any) -> None:
    """Set what a trial wants in a TrainingArguments that is about to check itself."""
    for name, value in ARGUMENTS.items():
        if hasattr(arguments, name):
            setattr(arguments, name, value)
    for name in ("output_dir", "logging_dir"):
        if getattr(arguments, name, None) is not None:
            setattr(arguments, name, output_folder())
    if hasattr(arguments, "max_steps"):
        arguments.max_steps = MAX_STEPS


def output_folder() -> str:
    """Folder that a trial gives to frameworks for what they put out."""
    return str(scratch() / "output")


def scratch() -> Path:
    """Folder for what a run writes and nobody reads; it goes with the trial."""
    import tempfile

    return Path(tempfile.gettempdir())
