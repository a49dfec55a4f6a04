"""A trial leaves the user's run without traces: nothing is saved, uploaded or tracked.

What their code writes with `open` itself is theirs, and is written.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.trial.guest.hooks import Hook

VARIABLES = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "true",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "TRACKIO_DISABLED": "1",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_SILENT": "true",
}
"""Environment in which trackers neither ask, nor send, nor write."""

ARGUMENTS: dict[str, Any] = {
    "save_strategy": "no",
    "eval_strategy": "no",
    "evaluation_strategy": "no",
    "load_best_model_at_end": False,
    "report_to": "none",
    "push_to_hub": False,
    "auto_find_batch_size": False,
    "eval_on_start": False,
    "batch_eval_metrics": False,
}
"""Fields of TrainingArguments that a trial sets; a version that lacks one is left alone."""
MAX_STEPS = 1_000_000
"""Steps of a Trainer in a trial: it begins its data again, and the trial ends it."""

_METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "deepspeed.runtime.engine": {
        "DeepSpeedEngine": ("save_checkpoint", "save_16bit_model", "save_fp16_model"),
    },
    "accelerate.accelerator": {"Accelerator": ("save", "save_state", "save_model")},
    "transformers.modeling_utils": {"PreTrainedModel": ("save_pretrained", "push_to_hub")},
    "transformers.tokenization_utils_base": {
        "PreTrainedTokenizerBase": ("save_pretrained", "push_to_hub"),
    },
    "peft.peft_model": {"PeftModel": ("save_pretrained", "push_to_hub")},
    "transformers.trainer": {
        "Trainer": ("save_model", "save_state", "push_to_hub", "_save_checkpoint"),
    },
    "huggingface_hub.hf_api": {
        "HfApi": ("create_repo", "upload_file", "upload_folder", "create_commit"),
    },
}
"""Methods that write or send, by module and class."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
}
"""Functions that write, by module."""
_MONITORS = ("TensorBoardMonitor", "WandbMonitor", "csvMonitor", "CometMonitor")
"""What DeepSpeed sends its figures to, by the sections of its configuration."""


def hooks() -> dict[str, Hook]:
    """What is switched off once each module is there."""
    found: dict[str, Hook] = {name: _silence_methods for name in _METHODS}
    found["torch.serialization"] = _silence_saving
    found |= dict.fromkeys(_FUNCTIONS, _silence_functions)
    found["deepspeed.monitor.monitor"] = _silence_monitors
    found["torch.utils.tensorboard.writer"] = _redirect_boards
    found["tensorboardX.writer"] = _redirect_boards
    return found


def _nothing(*_: Any, **__: Any) -> bool:
    """Save nothing, and say as DeepSpeed does that it was saved."""
    return True


def _silence_functions(module: ModuleType) -> None:
    for name in _FUNCTIONS[module.__name__]:
        if hasattr(module, name):
            setattr(module, name, _nothing)


def _silence_methods(module: ModuleType) -> None:
    for kind, names in _METHODS[module.__name__].items():
        of = getattr(module, kind, None)
        for name in names:
            if of is not None and hasattr(of, name):
                setattr(of, name, _nothing)


class _NoMonitor:
    """Takes figures, and needs no package."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.enabled = False

    def write_events(self, *_: Any, **__: Any) -> None:
        """Write none."""


def _silence_monitors(module: ModuleType) -> None:
    for name in _MONITORS:
        if hasattr(module, name):
            setattr(module, name, _NoMonitor)


def _silence_saving(module: ModuleType) -> None:
    """Objects still go into buffers, as ranks send them to one another; no file is written."""
    save = module.save

    def save_in_memory(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            _unsaved.add(os.path.abspath(f))
        else:
            save(obj, f, *args, **kwargs)

    module.save = save_in_memory  # type: ignore[attr-defined]


_unsaved: set[str] = set()
"""Files that a script takes for saved; it may give them another name, or remove them."""
_made: list[str] = []
"""Folders that it has made."""


def watch_files() -> None:
    """Let a script go on after files that were not saved, and keep the folders that it makes."""
    for name in ("rename", "replace", "remove", "unlink"):
        setattr(os, name, _sparing_unsaved(getattr(os, name)))
    make = os.mkdir

    @functools.wraps(make)
    def make_noted(path: Any, *args: Any, **kwargs: Any) -> None:
        make(path, *args, **kwargs)
        if isinstance(path, str | os.PathLike) and kwargs.get("dir_fd") is None:
            _made.append(os.path.abspath(os.fspath(path)))

    os.mkdir = make_noted


def _sparing_unsaved(call: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(call)
    def spared(path: Any, *args: Any, **kwargs: Any) -> None:
        is_path = isinstance(path, str | os.PathLike)
        if not is_path or os.path.abspath(path) not in _unsaved or os.path.lexists(path):
            call(path, *args, **kwargs)
            return
        for target in args:  # the new name
            if isinstance(target, str | os.PathLike):
                _unsaved.add(os.path.abspath(target))

    return spared


def remove_empty_folders() -> None:
    """Remove the folders that the script has made for what was not written."""
    for path in reversed(_made):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _redirect_boards(module: ModuleType) -> None:
    """Event files go where the trial's temporary files are."""
    initialize: Callable[..., None] = module.SummaryWriter.__init__

    def in_scratch(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("log_dir", None)
        kwargs.pop("logdir", None)
        initialize(self, str(scratch() / "boards"), *args[1:], **kwargs)

    module.SummaryWriter.__init__ = in_scratch


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
