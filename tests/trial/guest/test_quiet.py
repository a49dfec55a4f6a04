import io
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.trial.guest import quiet
from autotune.trial.guest.hooks import apply

CALLS = ("rename", "replace", "remove", "unlink", "mkdir")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls for files, watched for one test."""
    for name in CALLS:
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(quiet, "_unsaved", {})
    monkeypatch.setattr(quiet, "_prepared", {})
    monkeypatch.setattr(quiet, "_made", [])
    for name in ("rmtree", "move", "copyfile", "copy", "copy2", "copytree"):
        monkeypatch.setattr(shutil, name, getattr(shutil, name))
    monkeypatch.setattr(quiet, "_spared", set())
    monkeypatch.setattr(quiet, "_prepares_since_s", None)
    quiet.watch_files(0.0)
    quiet.end_preparing()


@pytest.fixture
def saving() -> Any:
    """A copy of torch's module that saves, silenced."""
    module: Any = ModuleType("torch.serialization")
    module.save = torch.save
    apply(module, quiet.hooks())
    return module


def test_no_file_is_saved_and_buffers_are(saving: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    saving.save(torch.ones(3), buffer)
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [1, 1, 1]
    saving.save(torch.ones(3), tmp_path / "model.pt")
    saving.save(torch.ones(3), str(tmp_path / "model.pt"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("files")
def test_what_is_saved_before_the_engine_is_there_may_be_read(saving: Any, tmp_path: Path) -> None:
    quiet.watch_files(0.0)
    saving.save(torch.ones(3), tmp_path / "cache.pt")
    quiet.watch_files(math.inf)
    saving.save(torch.ones(4), tmp_path / "cache.pt")
    assert len(torch.load(tmp_path / "cache.pt")) == 3, "an earlier run's is not written over"
    quiet.end_preparing()
    saving.save(torch.ones(3), tmp_path / "checkpoint.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["cache.pt"]


@pytest.mark.usefixtures("files")
def test_a_script_may_rename_and_remove_what_was_not_saved(saving: Any, tmp_path: Path) -> None:
    partial, whole, other = tmp_path / "a.tmp", tmp_path / "a.pt", tmp_path / "b.pt"
    saving.save(torch.ones(3), partial)
    os.replace(partial, whole)
    whole.rename(other)
    other.unlink()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("files")
def test_a_checkpoint_of_before_the_trial_is_not_lost(saving: Any, tmp_path: Path) -> None:
    partial, whole = tmp_path / "a.tmp", tmp_path / "a.pt"
    whole.write_text("trained for weeks")
    saving.save(torch.ones(3), partial)
    os.replace(partial, whole)
    os.remove(whole)
    assert whole.read_text() == "trained for weeks"


@pytest.mark.usefixtures("files")
def test_what_was_not_saved_is_copied_and_rotated_in_vain(saving: Any, tmp_path: Path) -> None:
    """As scripts keep their best checkpoint and the last few."""
    last, best, mine = (tmp_path / name for name in ("last.pt", "best.pt", "mine.json"))
    for path in (last, best):
        path.write_text(f"{path.name}, trained for weeks")
    saving.save(torch.ones(3), last)
    for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
        copy(last, best)
    shutil.copy(src=str(last), dst=str(tmp_path))
    assert best.read_text() == "best.pt, trained for weeks"
    quiet._save(lambda *_: None, None, str(tmp_path / "checkpoints"), tag="step1")
    quiet._save(lambda *_: None, None, str(tmp_path), tag="step1")
    for step in (tmp_path / "checkpoints" / "step1", tmp_path / "step1"):
        shutil.rmtree(step)
        shutil.copytree(step, tmp_path / "copied")
        os.replace(src=step, dst=tmp_path / "moved")
    mine.write_text("{}")
    shutil.copy(mine, tmp_path / "more.json")
    with pytest.raises(FileNotFoundError):
        shutil.copy("/nowhere/mine.json", tmp_path)
    kept = ["best.pt", "last.pt", "mine.json", "more.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


@pytest.mark.usefixtures("files")
def test_a_folder_of_before_the_trial_is_not_lost(tmp_path: Path) -> None:
    model = tmp_path / "out" / "step_7" / "model.pt"
    os.makedirs(model.parent)
    model.touch()
    shutil.rmtree(tmp_path / "out")
    assert not model.parent.exists(), "made by the trial"
    os.makedirs(model.parent)
    model.write_text("trained for weeks")
    quiet.watch_files(math.inf)
    shutil.rmtree(tmp_path / "out")
    os.mkdir(tmp_path / "out")  # which it takes for gone
    assert model.read_text() == "trained for weeks"
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "out")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("module", "name"), [(os, "rename"), (os, "replace"), (shutil, "move")])
def test_what_is_moved_to_a_folder_that_stayed_is_passed_by(
    tmp_path: Path, module: ModuleType, name: str
) -> None:
    for folder in ("tmp", "out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.pt").write_text(folder)
    quiet.watch_files(math.inf)
    shutil.rmtree(tmp_path / "out")
    getattr(module, name)(tmp_path / "tmp", tmp_path / "out")
    assert (tmp_path / "out" / "model.pt").read_text() == "out"
    assert not (tmp_path / "out" / "tmp").exists()


@pytest.mark.usefixtures("files")
def test_what_a_script_prepares_goes_with_the_trial(saving: Any, tmp_path: Path) -> None:
    class PreTrainedTokenizerBase:
        def save_pretrained(self, folder: Path, push_to_hub: bool = False) -> None:
            assert not push_to_hub
            folder.mkdir(exist_ok=True)
            (folder / "tokenizer.json").write_text("{}")

    module: Any = ModuleType("transformers.tokenization_utils_base")
    module.PreTrainedTokenizerBase = PreTrainedTokenizerBase
    apply(module, quiet.hooks())
    (tmp_path / "old.pt").write_text("trained for weeks")
    began_s = (tmp_path / "old.pt").stat().st_ctime
    while _now(tmp_path) <= began_s:
        pass
    quiet.watch_files(_now(tmp_path))
    os.makedirs(tmp_path / "out")
    PreTrainedTokenizerBase().save_pretrained(tmp_path / "out", push_to_hub=True)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    (tmp_path / "log.txt").write_text("theirs")
    for name in ("args.pt", "part.pt", "other.pt", "again.pt"):
        saving.save(torch.ones(3), tmp_path / name)
    os.replace(tmp_path / "part.pt", tmp_path / "whole.pt")
    os.replace(tmp_path / "other.pt", tmp_path / "old.pt")
    (tmp_path / "again.pt").write_text("theirs")
    quiet.end_preparing()
    quiet.remove_traces()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"old.pt", "log.txt", "again.pt"}
    assert (tmp_path / "old.pt").read_text() == "trained for weeks"


def _now(folder: Path) -> float:
    """The clock of files, which is coarser."""
    (folder / "log.txt").touch()
    return (folder / "log.txt").stat().st_ctime


@pytest.mark.usefixtures("files")
def test_a_file_that_the_script_writes_under_a_name_again_is_its_own(
    saving: Any, tmp_path: Path
) -> None:
    tmp, state = tmp_path / "tmp", tmp_path / "state.json"
    saving.save(torch.ones(3), tmp)
    os.replace(tmp, tmp_path / "model.pt")
    tmp.write_text("{}")
    os.replace(tmp, state)
    assert state.read_text() == "{}"
    # A temporary file that is made first, and in which nothing is saved.
    tmp.touch()
    saving.save(torch.ones(3), tmp)
    os.replace(tmp, state)
    assert state.read_text() == "{}"


@pytest.mark.usefixtures("files")
def test_other_files_are_the_script_s_own(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("x")
    os.rename(tmp_path / "log.txt", tmp_path / "log.1")
    assert [path.name for path in tmp_path.iterdir()] == ["log.1"]
    os.remove(tmp_path / "log.1")
    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "log.1")


@pytest.mark.usefixtures("files")
def test_folders_for_what_was_not_written_are_gone_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    quiet._made.clear()
    os.makedirs(tmp_path / "out" / "step_1", exist_ok=True)
    os.makedirs(tmp_path / "theirs", exist_ok=True)
    os.makedirs(tmp_path / "used")
    (tmp_path / "used" / "log.txt").write_text("x")
    quiet.remove_traces()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs", "used"]


@pytest.mark.parametrize(
    ("job", "has_version", "is_moved"),
    [({}, False, False), ({"chdir": False}, False, True), ({"chdir": None}, True, True)],
    ids=["1.1", "1.1, not there", "1.3"],
)
def test_the_folder_of_a_hydra_run_is_the_trial_s_unless_the_script_works_in_it(
    monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], has_version: bool, is_moved: bool
) -> None:
    updated: list[Any] = []
    configs: Any = ModuleType("omegaconf")
    configs.OmegaConf = SimpleNamespace(update=lambda *given, **_: updated.append(given))
    version: Any = ModuleType("hydra.version")
    version.base_at_least = lambda _: True
    monkeypatch.setitem(sys.modules, "omegaconf", configs)
    monkeypatch.setitem(sys.modules, "hydra", ModuleType("hydra"))
    monkeypatch.setitem(sys.modules, "hydra.version", version if has_version else None)
    config = SimpleNamespace(hydra=SimpleNamespace(job=SimpleNamespace(**job)))
    quiet._run_hydra(lambda config, job_dir_key: None, config, job_dir_key="hydra.run.dir")
    quiet._run_hydra(lambda *, config: None, config=config)  # `Plugins.instantiate_sweeper`
    assert [at for _, at, _ in updated] == ["hydra.run.dir", "hydra.sweep.dir"] * is_moved


def test_methods_that_save_do_nothing_and_say_so() -> None:
    class DeepSpeedEngine:
        def save_checkpoint(self, folder: str) -> bool:
            raise AssertionError(folder)

    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine
    apply(module, quiet.hooks())
    assert DeepSpeedEngine().save_checkpoint("x") is True


@pytest.mark.parametrize("tag", [None, "step7"])
@pytest.mark.parametrize("before", ["", "zero_pp_rank_0_", "layer_0_expert_0_"])
def test_of_a_checkpoint_only_what_the_script_saved_beside_it_is_read(
    tmp_path: Path, before: str, tag: str | None
) -> None:
    """DeepSpeed refuses the weights and states of another ZeRO stage."""

    class DeepSpeedEngine:
        def load_checkpoint(self, load_dir: Path, tag: str) -> str:
            return f"DeepSpeed's own of {tag}"

    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine
    apply(module, quiet.hooks())
    (tmp_path / "latest").write_text("step7\n")
    file = tmp_path / "step7" / f"{before}mp_rank_00_model_states.pt"
    file.parent.mkdir()
    torch.save({"module": {}, "optimizer": None, "epoch": 3}, file)
    is_known = before != "layer_0_expert_0_"
    expected = (str(file), {"epoch": 3}) if is_known else "DeepSpeed's own of step7"
    assert DeepSpeedEngine().load_checkpoint(tmp_path, tag) == expected


@pytest.mark.parametrize("module", sorted(quiet._SILENT))
def test_what_is_silenced_is_what_packages_have(module: str) -> None:
    """A name that is gone from the packages would silence nothing."""
    found = pytest.importorskip(module)
    for kind, names in quiet._SILENT[module].items():
        assert any(hasattr(getattr(found, kind) if kind else found, name) for name in names)


def test_trainer_neither_saves_nor_evaluates_nor_reports() -> None:
    arguments = SimpleNamespace(
        save_strategy="steps",
        eval_strategy="epoch",
        report_to=["wandb"],
        push_to_hub=True,
        output_dir="checkpoints",
        logging_dir=None,
        max_steps=-1,
        learning_rate=1e-3,
    )
    quiet.quiet_arguments(arguments)
    assert (arguments.save_strategy, arguments.eval_strategy) == ("no", "no")
    assert (arguments.report_to, arguments.push_to_hub) == ("none", False)
    assert arguments.output_dir != "checkpoints"
    assert arguments.logging_dir is None
    assert arguments.max_steps == quiet.MAX_STEPS
    assert arguments.learning_rate == 1e-3
    assert not hasattr(arguments, "evaluation_strategy"), "their version has no such field"


def test_boards_are_written_where_the_trial_s_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "scratch", lambda: tmp_path)

    class SummaryWriter:
        def __init__(self, log_dir: str | None = None, comment: str = "") -> None:
            self.asked = (log_dir, comment)

    module: Any = ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = SummaryWriter
    apply(module, quiet.hooks())
    folder = str(tmp_path / "boards")
    assert SummaryWriter("runs", "c").asked == (folder, "c")
    assert SummaryWriter(log_dir="runs").asked == (folder, "")


def test_deepspeed_s_own_monitors_write_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor do they ask for the packages that they write with."""
    from deepspeed.monitor import monitor
    from deepspeed.monitor.config import DeepSpeedMonitorConfig

    named = ("TensorBoardMonitor", "WandbMonitor", "csvMonitor", "CometMonitor")
    for name in named:
        monkeypatch.setattr(monitor, name, getattr(monitor, name))
    monkeypatch.setattr(monitor.dist, "get_rank", lambda: 0)
    apply(monitor, quiet.hooks())
    writes = {"enabled": True, "output_path": str(tmp_path), "job_name": "mine"}
    sections = {"tensorboard": writes, "csv_monitor": writes, "wandb": {"enabled": True}}
    every = monitor.MonitorMaster(DeepSpeedMonitorConfig(**sections))
    every.write_events([("loss", 1.0, 1)])
    assert every.enabled, "the engine does what it always does"
    assert not list(tmp_path.iterdir())


def test_a_script_cannot_switch_its_trackers_on() -> None:
    for name in ("wandb", "swanlab"):
        tracker: Any = ModuleType(name)
        tracker.init = lambda mode: mode
        tracker.login = pytest.fail
        apply(tracker, quiet.hooks())
        assert tracker.init(mode="online") == "disabled"
        assert tracker.login("key")


@pytest.mark.parametrize("name", ["mlflow", "wandb", "swanlab"])
def test_a_module_of_the_script_s_own_may_have_a_tracker_s_name(name: str) -> None:
    module: Any = ModuleType(name)
    module.init = lambda project: project
    apply(module, quiet.hooks())
    assert module.init("mine") == "mine"


_LOGS_TO_MLFLOW = """
import socket
from autotune.trial.guest import hooks, quiet
hooks.call_after_imports(quiet.hooks())
socket.getaddrinfo = None  # what connects, fails
import mlflow
mlflow.tracking.set_tracking_uri("https://tracking.example")
mlflow.set_experiment(experiment_id="42")
with mlflow.start_run(run_id="a" * 32) as run:
    mlflow.log_metric("loss", 1.0)
assert run.info.experiment_id == "42"
client = mlflow.MlflowClient("https://tracking.example", registry_uri="https://tracking.example")
client.log_metric("b" * 32, "loss", 1.0)
assert client.get_experiment_by_name("mine").name == "mine"
client.create_registered_model("mine")
"""


def test_what_only_mlflow_s_server_has_is_made_in_the_trial_s_folder(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    environment = {**os.environ, **quiet.VARIABLES, "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-c", _LOGS_TO_MLFLOW]
    subprocess.run(line, env=environment, cwd=tmp_path, check=True)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["mlflow"]
