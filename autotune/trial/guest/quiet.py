"""A trial leaves the user's run without traces: nothing is uploaded or tracked.

A script may read again what it saves. What it saves before its engine is made, and small files
later on, are saved where nothing was, and go with the trial; other checkpoints are not saved. What
their code writes with `open` itself is theirs, and is written.
"""

import contextlib
import inspect
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.contract import RANKS_DIR
from autotune.trial.guest.hooks import Function, Hook, Wrapper, around

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
            (module, f"{kind}.{name}".strip("."), _save if name.startswith("save") else _nothing)
            for module, kinds in _SILENT.items()
            for kind, names in kinds.items()
            for name in names
        ),
        *(("deepspeed.monitor.monitor", name, _pass_by) for name in _MONITORS),
        ("deepspeed.runtime.engine", "DeepSpeedEngine.save_checkpoint", _keep_client_state),
        ("deepspeed.runtime.engine", "DeepSpeedEngine.load_checkpoint", _load_client_state),
        *HYDRA,
        ("transformers.trainer", "Trainer.train", _train_anew),
        ("transformers.trainer_callback", "EarlyStoppingCallback.on_train_begin", _pass_by),
        ("torch.serialization", "save", _save_in_memory),
        *((name, "init", _track_nothing) for name in ("wandb", "swanlab")),
        ("mlflow.tracking._tracking_service.utils", "_resolve_tracking_uri", _place_runs),
        ("mlflow.tracking._model_registry.utils", "_resolve_registry_uri", _place_runs),
        ("mlflow.tracking.client", "MlflowClient.get_experiment_by_name", _have_named),
        ("mlflow.store.tracking.file_store", "FileStore._get_experiment", _have_experiment),
        ("mlflow.store.tracking.file_store", "FileStore._find_run_root", _have_run),
        ("torch.utils.tensorboard.writer", "SummaryWriter.__init__", _make_board),
        ("tensorboardX.writer", "SummaryWriter.__init__", _make_board),
    ]


def _nothing(*_: Any, **__: Any) -> bool:
    """Save nothing, and say as DeepSpeed does that it was saved."""
    return True


def _save(save: Function, *args: Any, **kwargs: Any) -> Any:
    """Save nothing but what a script prepares and what is small, which it may read again."""
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, str | os.PathLike)]
    kwargs.pop("push_to_hub", None)
    if not given:
        return True
    if not _has_older(given[0], _began_s) and _has_room(given[0], [args, kwargs]):
        return _prepare(given[0], save, *args, **kwargs)
    return _leave_out(given[0])


def _leave_out(path: Any) -> bool:
    """Take a file or folder for saved, as the script does."""
    name = f"{os.path.abspath(path)}{os.sep * os.path.isdir(path)}"
    _unsaved[name] = _identity(name)
    return True


def _prepare(path: Any, save: Function, *args: Any, **kwargs: Any) -> Any:
    """Save, move or copy into a file or folder, and note which files go with the trial."""
    others = {file for file in _files_in(path) if _prepared.get(file) != _identity(file)}
    try:
        return save(*args, **kwargs)
    finally:
        new = {file: _identity(file) for file in _files_in(path) if file not in others}
        _prepared.update(new)
        _note(new)


def _has_room(path: Any, values: Any) -> bool:
    """Whether values fit among the files that a trial keeps, in the place of what is there."""
    left = map(_identity, _prepared.keys() - set(_files_in(path)))
    return sum(one[1] for one in left if one) + _bytes_of(values) <= _most_bytes


def _bytes_of(value: Any) -> int:
    """Bytes of all tensors in a value, with those that ZeRO has split over the ranks."""
    if hasattr(value, "element_size"):
        return int(getattr(value, "ds_numel", value.numel()) * value.element_size())
    if hasattr(value, "named_parameters"):  # a model, of which PEFT saves what is trained
        value = [one for one in value.parameters() if one.requires_grad]
    elif not isinstance(value, Mapping | list | tuple):  # as Trainer, which has one
        held = getattr(value, "__dict__", {}).values()
        value = [one for one in held if hasattr(one, "named_parameters")]
    return sum(map(_bytes_of, value.values() if isinstance(value, Mapping) else value))


def _keep_client_state(save: Function, engine: Any, *args: Any, **kwargs: Any) -> bool:
    """Keep what the script saves beside a checkpoint, and no weights: none are loaded."""
    given = inspect.signature(save).bind(engine, *args, **kwargs).arguments
    folder, tag = given["save_dir"], str(given.get("tag") or f"global_step{engine.global_steps}")
    for key in (tag, "None"):
        state = os.path.join(folder, tag), dict(given.get("client_state") or {})
        _client_states[os.path.abspath(folder), key] = state
    return _leave_out(folder)


def _load_client_state(
    load: Wrapper, engine: Any, load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Read what the script saved beside a checkpoint: that of another ZeRO stage is refused."""
    import torch

    if states := _client_states.get((os.path.abspath(load_dir), str(tag))):
        return states
    latest = Path(load_dir, "latest")
    if tag is None and latest.is_file():
        tag = latest.read_text(encoding="utf-8").strip()
    # Stage 3 puts a rank's number before the name.
    file = next(Path(load_dir, str(tag)).glob("[mz]*_rank_00_model_states.pt"), None)
    if file is None:
        return load(engine, load_dir, tag, *args, **kwargs)
    saved = torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    return str(file), {name: saved[name] for name in saved if name not in ("module", "optimizer")}


def _pass_by(*_: Any, **__: Any) -> None:
    """Do and make nothing: early stopping insists on evaluations, monitors on packages."""


def _save_in_memory(save: Function, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """Objects still go into buffers, as ranks send them to one another; see `_save` for files."""
    if isinstance(f, str | os.PathLike):
        _save(lambda file, obj: save(obj, file, *args, **kwargs), f, obj)
    else:
        save(obj, f, *args, **kwargs)


_Identity = tuple[int, ...] | None
_unsaved: dict[str, _Identity] = {}
"""Files that a script takes for saved, and what is there in truth; it may give them another name,
copy or remove them. Folders that it saves into end with a slash."""
_prepared: dict[str, _Identity] = {}
"""Files that were saved where nothing was, as they were then."""
_client_states: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
"""What the script has saved beside checkpoints of its engine, by folder and tag; tag `None`: the
latest one. Each with the checkpoint's path."""
KEPT_BYTES = 2**28
"""Most that is kept of what a rank saves once it has an engine: it may be a large checkpoint."""
_most_bytes: float = KEPT_BYTES

_began_s = 0.0
"""When the trial began."""
_journal = Path(os.devnull)
"""File with what goes with the trial: who ends its ranks removes it, however they ended."""
JOURNAL_FILE = "{rank:02d}.saved"
"""It, below `RANKS_DIR`: a line of JSON for each file, with its identity, or folder."""
_spared: set[str] = set()
"""Folders that it has removed, as it believes."""


def watch_files(began_s: float, journal: Path) -> None:
    """Let a script go on after files that were not saved, and note what goes with the trial.

    A folder with files from before the trial, which began at `began_s`, stays: it may hold
    checkpoints, in whose place none is saved.
    """
    global _began_s, _most_bytes, _journal
    _began_s, _most_bytes, _journal = began_s, math.inf, journal

    def remove_folder(remove: Function, path: Any, *args: Any, **kwargs: Any) -> None:
        name = os.path.abspath(os.fspath(path)) if isinstance(path, str | os.PathLike) else ""
        if name and _has_older(name, began_s):
            _spared.add(name)
        elif not _is_unsaved(name):
            remove(path, *args, **kwargs)

    for name in ("rename", "replace", "remove", "unlink"):
        setattr(os, name, around(getattr(os, name), _spare))
    for name in ("copyfile", "copy", "copy2", "copytree", "move"):
        vars(shutil)[name] = around(getattr(shutil, name), _spare)
    vars(shutil)["rmtree"] = around(shutil.rmtree, remove_folder)
    os.mkdir = around(os.mkdir, _make_folder)


def end_preparing() -> None:
    """An engine is made: what is saved from here on is a checkpoint."""
    global _most_bytes
    _most_bytes = KEPT_BYTES


def _has_older(path: str | os.PathLike[str], moment_s: float) -> bool:
    with contextlib.suppress(OSError):
        return any(os.lstat(file).st_ctime < moment_s for file in _files_in(path))
    return False


def _files_in(path: str | os.PathLike[str]) -> Iterator[str]:
    name = os.path.abspath(os.fspath(path))
    if os.path.isfile(name):
        yield name
    yield from (os.path.join(at, file) for at, _, files in os.walk(name) for file in files)


def _identity(path: str | os.PathLike[str]) -> _Identity:
    """What is another one once somebody has written; None: there is no file."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _make_folder(make: Function, path: Any, *args: Any, **kwargs: Any) -> None:
    is_path = isinstance(path, str | os.PathLike) and kwargs.get("dir_fd") is None
    name = os.path.abspath(os.fspath(path)) if is_path else ""
    if _is_passed_by(name):
        return
    make(path, *args, **kwargs)
    if is_path:
        _note({name: None})


def _spare(call: Function, *args: Any, **kwargs: Any) -> Any:
    """Leave alone what was not saved, unless the script has written it since.

    Nor does it, or what was prepared, come in the place of an earlier run's.
    """
    if kwargs.get("dir_fd") is not None:
        return call(*args, **kwargs)
    given = [*args, *(kwargs[name] for name in ("path", "src", "dst") if name in kwargs)]
    paths = [os.path.abspath(one) if isinstance(one, str | os.PathLike) else "" for one in given]
    name, target = (*paths, "")[:2]  # the old name and the new one
    if _is_passed_by(target):
        return target
    is_into = getattr(call, "__name__", "") in ("copy", "copy2", "move")
    if target and is_into and os.path.isdir(target):
        target = os.path.join(target, os.path.basename(name))
    if _is_unsaved(name):
        if target:
            _unsaved[target] = _identity(target)
        return target
    moved = any(name and f"{file}/".startswith(f"{name}/") for file in _prepared)
    if not (target and moved):
        return call(*args, **kwargs)
    return target if _has_older(target, _began_s) else _prepare(target, call, *args, **kwargs)


def _is_unsaved(name: str) -> bool:
    """Whether what a script takes for saved is not there, or is an earlier run's."""
    if name in _unsaved:
        return _unsaved[name] == _identity(name)
    holds = (f"{one.rstrip(os.sep)}{os.sep}" for one in _unsaved)
    is_one = any(one.startswith(f"{name}{os.sep}") or name.startswith(one) for one in holds)
    return is_one and bool(name) and not os.path.lexists(name)


def _is_passed_by(target: str) -> bool:
    """Whether a move goes where a folder stayed, which is taken for gone."""
    if target not in _spared or not os.path.isdir(target):
        return False
    _spared.remove(target)
    return True


def unsaved_in(error: BaseException) -> str:
    """The path in an error of what the script takes for saved and is not there; empty: none."""
    words = re.split(r"[\s'\"`,:]+", str(error)) if isinstance(error, OSError | ValueError) else ()
    paths = (os.path.abspath(word) for word in words if os.sep in word or "." in word)
    return next((path for path in paths if _is_unsaved(path) and not os.path.lexists(path)), "")


def _note(traces: Mapping[str, _Identity]) -> None:
    with contextlib.suppress(OSError), open(_journal, "a", encoding="utf-8") as journal:
        journal.writelines(f"{json.dumps(entry)}\n" for entry in traces.items())


def remove_traces(trial: Path) -> None:
    """Remove what a trial's ranks saved, and the folders made for what was not written.

    A file that the script has written since, and a folder with one, stay.
    """
    noted: list[tuple[str, list[int] | None]] = []
    for journal in (trial / RANKS_DIR).glob(f"*{Path(JOURNAL_FILE).suffix}"):
        whole, _, _ = journal.read_text(encoding="utf-8").rpartition("\n")  # a rank may be killed
        noted += map(json.loads, whole.splitlines())
        journal.unlink()
    noted.sort(key=lambda one: one[0])
    for path, identity in reversed(noted):  # what is within comes first
        with contextlib.suppress(OSError):
            if identity is None:
                os.rmdir(path)
            elif tuple(identity) == _identity(path):
                os.remove(path)


def _track_nothing(init: Function, *args: Any, **kwargs: Any) -> Any:
    """Start a run that neither sends nor writes: a script's own mode stands above `VARIABLES`."""
    is_tracker = "mode" in inspect.signature(init).parameters  # not a module of the script's own
    return init(*args, **{**kwargs, "mode": "disabled"} if is_tracker else kwargs)


def _place_runs(*_: Any, **__: Any) -> str:
    """A folder of this process, in the place of any server or folder of mlflow's."""
    return (scratch() / f"mlflow-{os.getpid()}").as_uri()


def _have_named(get: Function, client: Any, name: str) -> Any:
    """The experiment of a name in mlflow, made where only the script's server has it."""
    return get(client, name) or client.get_experiment(client.create_experiment(name))


def _have_experiment(get: Function, store: Any, experiment_id: Any, *args: Any) -> Any:
    """The experiment of an id in mlflow, made where only the script's server has it."""
    name = str(experiment_id)
    if name.isalnum() and not store._has_experiment(name):
        store._create_experiment_with_id(name, name, None, None)
    return get(store, experiment_id, *args)


def _have_run(find: Function, store: Any, run_id: str, *args: Any, **kwargs: Any) -> Any:
    """The run of an id in mlflow, or one of this trial's where only the server has it."""
    found = find(store, run_id, *args, **kwargs)
    if found[1] is None:
        from mlflow.tracking import MlflowClient, fluent

        key = (_place_runs(), fluent._get_experiment_id(), run_id)
        if key not in _runs:
            _runs[key] = MlflowClient().create_run(key[1]).info.run_id
        found = find(store, _runs[key], *args, **kwargs)
    return found


_runs: dict[tuple[str, str, str], str] = {}
"""Runs of mlflow by their place, their experiment and the id that the script knows."""


def _make_board(make: Function, writer: Any, *args: Any, **kwargs: Any) -> None:
    """Event files go where the trial's temporary files are."""
    others = {name: kwargs[name] for name in kwargs.keys() - {"log_dir", "logdir"}}
    make(writer, str(scratch() / "boards"), *args[1:], **others)


def _run_hydra(run: Function, *args: Any, **kwargs: Any) -> Any:
    """Hydra's folder of a run, or of several, is the trial's, unless the script works in it."""
    from omegaconf import OmegaConf

    given = inspect.signature(run).bind(*args, **kwargs).arguments
    works_there = getattr(given["config"].hydra.job, "chdir", None)
    if works_there is None:
        # Hydra below 1.2 always works there.
        is_based_on = getattr(sys.modules["hydra.version"], "base_at_least", lambda _: False)
        works_there = not is_based_on("1.2")
    if not works_there:
        at = given.get("job_dir_key", "hydra.sweep.dir")
        OmegaConf.update(given["config"], at, output_folder(), force_add=True)
    return run(*args, **kwargs)


HYDRA: tuple[Hook, ...] = (
    ("hydra.core.utils", "run_job", _run_hydra),
    ("hydra.core.plugins", "Plugins.instantiate_sweeper", _run_hydra),
)
"""For what starts ranks as well: a script may do so below Hydra."""


def _train_anew(train: Function, trainer: Any, _: Any = None, *args: Any, **kwargs: Any) -> Any:
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
