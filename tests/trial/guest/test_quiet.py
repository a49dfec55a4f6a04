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

from autotune.contract import RANKS_DIR
from autotune.trial.guest import quiet
from autotune.trial.guest.hooks import apply

CALLS = ("rename", "replace", "remove", "unlink", "mkdir")


@pytest.fixture
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a trial."""
    folder = tmp_path_factory.mktemp("trial")
    (folder / RANKS_DIR).mkdir()
    return folder


def watch(trial: Path, began_s: float) -> None:
    quiet.watch_files(began_s, trial / RANKS_DIR / quiet.JOURNAL_FILE.format(rank=0))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, trial: Path) -> None:
    """The calls for files, watched for one test; no tensor is small enough to be saved."""
    for name in CALLS:
        monkeypatch.setattr(os, name, getattr(os, name))
    for name, value in (("_unsaved", {}), ("_prepared", {}), ("KEPT_BYTES", 0)):
        monkeypatch.setattr(quiet, name, value)
    for name in ("rmtree", "move", "copyfile", "copy", "copy2", "copytree"):
        monkeypatch.setattr(shutil, name, getattr(shutil, name))
    monkeypatch.setattr(quiet, "_spared", set())
    for name in ("_began_s", "_most_bytes", "_journal"):
        monkeypatch.setattr(quiet, name, getattr(quiet, name))
    watch(trial, 0.0)
    quiet.end_preparing()


def silenced(name: str, **members: Any) -> Any:
    """A module of a package's name with some of its members, silenced."""
    module: Any = ModuleType(name)
    vars(module).update(members)
    apply(module, quiet.hooks())
    return module


@pytest.fixture
def saving() -> Any:
    """A copy of torch's module that saves, silenced."""
    return silenced("torch.serialization", save=torch.save)


@pytest.mark.usefixtures("files")
def test_no_file_is_saved_and_buffers_are(saving: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    saving.save(torch.ones(3), buffer)
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [1, 1, 1]
    saving.save(torch.ones(3), tmp_path / "model.pt")
    saving.save(torch.ones(3), str(tmp_path / "model.pt"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("files")
def test_what_is_saved_before_the_engine_is_there_may_be_read(saving, tmp_path, trial):
    watch(trial, 0.0)
    saving.save(torch.ones(3), tmp_path / "cache.pt")
    watch(trial, math.inf)
    saving.save(torch.ones(4), tmp_path / "cache.pt")
    assert len(torch.load(tmp_path / "cache.pt")) == 3, "an earlier run's is not written over"
    quiet.end_preparing()
    saving.save(torch.ones(3), tmp_path / "checkpoint.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["cache.pt"]


@pytest.mark.usefixtures("files")
def test_what_is_small_may_be_read_later_on_as_well(saving, tmp_path, trial, monkeypatch):
    """As by a script that goes back to its best weights, which it copies from its last ones."""
    monkeypatch.setattr(quiet, "_most_bytes", 12_000)
    last, best, other = tmp_path / "out" / "last.pt", tmp_path / "best.pt", tmp_path / "other.pt"
    os.makedirs(last.parent)
    for n_values, step in ((10, 0), (1000, 1), (1000, 2)):
        saving.save({"model": [torch.full((n_values,), step)], "step": step}, last)
        shutil.copy(last, best)
    assert torch.load(best)["step"] == 1, "there is room for one"
    saving.save(torch.ones(1), other)
    missing = (FileNotFoundError(2, "No such file", str(other)), OSError("no other.pt"))
    monkeypatch.chdir(tmp_path)
    assert [quiet.unsaved_in(error) for error in missing] == [str(other)] * 2
    assert not quiet.unsaved_in(FileNotFoundError(2, "No such file", "data.json"))
    quiet._unsaved.clear()  # of the ranks, and another process removes
    quiet.remove_traces(trial)
    assert not best.exists()
    assert not last.parent.exists()


def test_bytes_are_those_of_all_tensors_and_of_the_model_within() -> None:
    split = torch.nn.Linear(2, 2)
    vars(split.weight)["ds_numel"] = 64  # as ZeRO notes how large it is on all ranks
    split.add_module("frozen", torch.nn.Linear(9, 9).requires_grad_(False))
    for held in (split, SimpleNamespace(model=split, name="Trainer"), {"all": [split]}):
        assert quiet._bytes_of(held) == (64 + 2) * 4
    assert quiet._bytes_of(["", 7, None]) == 0


def test_what_a_script_saves_beside_a_checkpoint_comes_back(tmp_path: Path) -> None:
    class DeepSpeedEngine:
        global_steps = 7

        def save_checkpoint(
            self, save_dir: Path, tag: str, client_state: Any, latest: bool
        ) -> None:
            raise AssertionError(save_dir)

        def load_checkpoint(self, load_dir: Path, tag: str) -> tuple[None, None]:
            return None, None

    silenced("deepspeed.runtime.engine", DeepSpeedEngine=DeepSpeedEngine)
    engine: Any = DeepSpeedEngine()
    assert engine.save_checkpoint(tmp_path, "best", {"loss": 1.0}, True)
    assert engine.save_checkpoint(tmp_path, None, client_state={"epoch": 3}, latest=True)
    latest = str(tmp_path / "global_step7"), {"epoch": 3}
    assert engine.load_checkpoint(tmp_path) == latest
    assert engine.load_checkpoint(str(tmp_path), tag="global_step7") == latest
    assert engine.load_checkpoint(tmp_path, "best")[1] == {"loss": 1.0}
    assert engine.load_checkpoint(tmp_path, "other") == (None, None)
    assert not list(tmp_path.iterdir())


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
    quiet._leave_out(str(tmp_path / "checkpoints"))
    quiet._leave_out(str(tmp_path))
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
def test_a_folder_of_before_the_trial_is_not_lost(tmp_path: Path, trial: Path) -> None:
    model = tmp_path / "out" / "step_7" / "model.pt"
    os.makedirs(model.parent)
    model.touch()
    shutil.rmtree(tmp_path / "out")
    assert not model.parent.exists(), "made by the trial"
    os.makedirs(model.parent)
    model.write_text("trained for weeks")
    watch(trial, math.inf)
    shutil.rmtree(tmp_path / "out")
    os.mkdir(tmp_path / "out")  # which it takes for gone
    assert model.read_text() == "trained for weeks"
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "out")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("module", "name"), [(os, "rename"), (os, "replace"), (shutil, "move")])
def test_what_is_moved_to_a_folder_that_stayed_is_passed_by(tmp_path, trial, module, name):
    for folder in ("tmp", "out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.pt").write_text(folder)
    watch(trial, math.inf)
    shutil.rmtree(tmp_path / "out")
    getattr(module, name)(tmp_path / "tmp", tmp_path / "out")
    assert (tmp_path / "out" / "model.pt").read_text() == "out"
    assert not (tmp_path / "out" / "tmp").exists()


@pytest.mark.usefixtures("files")
def test_what_a_script_prepares_goes_with_the_trial(saving, tmp_path, trial):
    class PreTrainedTokenizerBase:
        def save_pretrained(self, folder: Path, push_to_hub: bool = False) -> None:
            assert not push_to_hub
            folder.mkdir(exist_ok=True)
            (folder / "tokenizer.json").write_text("{}")

    silenced(
        "transformers.tokenization_utils_base", PreTrainedTokenizerBase=PreTrainedTokenizerBase
    )
    (tmp_path / "old.pt").write_text("trained for weeks")
    began_s = (tmp_path / "old.pt").stat().st_ctime
    while _now(tmp_path) <= began_s:
        pass
    watch(trial, _now(tmp_path))
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
    quiet.remove_traces(trial)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"old.pt", "log.txt", "again.pt"}
    assert (tmp_path / "old.pt").read_text() == "trained for weeks"


def _now(folder: Path) -> float:
    """The clock of files, which is coarser."""
    (folder / "log.txt").touch()
    return (folder / "log.txt").stat().st_ctime


@pytest.mark.usefixtures("files")
def test_a_file_that_the_script_writes_under_a_name_again_is_its_own(saving, tmp_path):
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
def test_folders_for_what_was_not_written_are_gone_and_others_stay(tmp_path, trial):
    (tmp_path / "theirs").mkdir()
    quiet._journal.unlink()
    os.makedirs(tmp_path / "out" / "step_1", exist_ok=True)
    os.makedirs(tmp_path / "theirs", exist_ok=True)
    os.makedirs(tmp_path / "used")
    (tmp_path / "used" / "log.txt").write_text("x")
    quiet.remove_traces(trial)
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


@pytest.mark.parametrize("tag", [None, "step7"])
@pytest.mark.parametrize("before", ["", "zero_pp_rank_0_", "layer_0_expert_0_"])
def test_of_a_checkpoint_only_what_the_script_saved_beside_it_is_read(tmp_path, before, tag):
    """DeepSpeed refuses the weights and states of another ZeRO stage."""

    class DeepSpeedEngine:
        def load_checkpoint(self, load_dir: Path, tag: str) -> str:
            return f"DeepSpeed's own of {tag}"

    silenced("deepspeed.runtime.engine", DeepSpeedEngine=DeepSpeedEngine)
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


def test_boards_are_written_where_the_trial_s_temporary_files_are(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "scratch", lambda: tmp_path)

    class SummaryWriter:
        def __init__(self, log_dir: str | None = None, comment: str = "") -> None:
            self.asked = (log_dir, comment)

    silenced("torch.utils.tensorboard.writer", SummaryWriter=SummaryWriter)
    folder = str(tmp_path / "boards")
    assert SummaryWriter("runs", "c").asked == (folder, "c")
    assert SummaryWriter(log_dir="runs").asked == (folder, "")


def test_deepspeed_s_own_monitors_write_nothing(monkeypatch, tmp_path):
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
        tracker = silenced(name, init=lambda mode: mode, login=pytest.fail)
        assert tracker.init(mode="online") == "disabled"
        assert tracker.login("key")


@pytest.mark.parametrize("name", ["mlflow", "wandb", "swanlab"])
def test_a_module_of_the_script_s_own_may_have_a_tracker_s_name(name: str) -> None:
    assert silenced(name, init=lambda project: project).init("mine") == "mine"


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
