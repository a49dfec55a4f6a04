"""What a rank of a user's script notes of how the script builds its model."""

import copy
import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DeepSpeedPlugin, deepspeed
from torch.utils.checkpoint import checkpoint
from transformers import TrainingArguments
from transformers.integrations.deepspeed import propagate_args_to_deepspeed

from autotune.contract import Phase
from autotune.trial.engines.deepspeed import SEGMENTS
from autotune.trial.guest import reading
from autotune.trial.guest.edits import Edits
from autotune.trial.guest.hooks import around
from autotune.trial.guest.rank import (
    _RECOMPUTING,
    _SEEN,
    Guest,
    _ends_with,
    _fills_training_arguments,
    _is_partitioned,
)


def fresh_guest() -> Guest:
    """A rank that has seen nothing yet, without the folder of a trial."""
    guest = Guest.__new__(Guest)
    guest.seen, guest._as_read = dict(_SEEN), []
    guest._drawn, guest._began_elsewhere = set(), {}
    return guest


class Split(torch.nn.Linear):
    """A layer whose weights are split over the ranks, as zero.Init marks them."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        vars(self.weight)["ds_id"] = 0


@pytest.mark.parametrize(
    ("model", "is_split"),
    [
        (torch.nn.Sequential(torch.nn.Linear(2, 2), Split()), True),
        (torch.nn.Linear(2, 2), False),
        ([Split()], False),  # layers of a pipeline that is still to be made
        (None, False),
    ],
)
def test_a_model_under_zero_init_is_seen_by_its_weights(model: Any, is_split: bool) -> None:
    assert _is_partitioned(model) == is_split


@pytest.mark.parametrize(
    ("caller", "is_by_script"),
    [("__main__", True), ("their.models", True), ("transformers.modeling_utils", False)],
)
def test_only_a_zero_init_of_the_script_itself_keeps_the_stage(caller, is_by_script):
    """Hugging Face's loaders make one only where the configuration says stage 3."""
    guest, made = Guest.__new__(Guest), list[tuple[Any, ...]]()
    guest._splits_models = False
    module = ModuleType(caller)
    vars(module)["init"] = around(lambda *given: made.append(given), guest._note_init)
    exec("init('context', 'module')", vars(module))
    assert guest._splits_models == is_by_script
    assert made == [("context", "module")]


@pytest.mark.parametrize(
    ("caller", "is_by_script"), [("__main__", True), ("autotune.trial.readback", False)]
)
def test_a_setting_that_is_read_back_is_no_question_of_the_script(caller, is_by_script):
    """A script that never asks makes its batches by a size of its own."""
    guest = Guest.__new__(Guest)
    guest.seen = {"asks_micro_batch": False}
    module = ModuleType(caller)
    vars(module)["asked"] = around(lambda: 4, guest._note_question)
    exec("def read_back(): return asked()", vars(module))
    script = ModuleType("__main__")
    vars(script)["step"] = around(vars(module)["read_back"], lambda original: original())
    exec("answer = step()", vars(script))
    assert vars(script)["answer"] == 4
    assert guest.seen["asks_micro_batch"] == is_by_script


@pytest.mark.parametrize(("n_passes", "stepped"), [(1, ["engine"]), (4, ["optimizer"])])
def test_a_step_of_fabric_past_its_engine_is_the_engine_s(n_passes, stepped):
    """Where the engine accumulates, its step would be another one."""
    guest, done = Guest.__new__(Guest), list[str]()
    guest.watched = SimpleNamespace(
        step=lambda: done.append("engine"), gradient_accumulation_steps=lambda: n_passes
    )
    optimizer = SimpleNamespace(_strategy=SimpleNamespace(model=guest.watched))
    around(lambda _: done.append("optimizer"), guest._step_by_engine)(optimizer)
    assert done == stepped


@pytest.mark.parametrize(
    ("n_steps", "group", "ends"),
    [
        (("MEASURED", 9), (), ["measured", "parted"]),
        (("MEASURED", 1), (), ["parted"]),
        (("WARM_UP", 9), (), ["parted"]),
        (("MEASURED", 9), ("another",), ["parted"]),
    ],
)
def test_what_was_measured_is_agreed_on_before_ranks_leave_one_another(n_steps, group, ends):
    """A script that destroys its process group at its end has no other way to."""
    guest, done, phase = Guest.__new__(Guest), list[str](), Phase[n_steps[0]]
    report = SimpleNamespace(phase=phase, step_times_s=[1.0] * n_steps[1], pid=os.getpid())
    guest.reporter, guest.is_over = SimpleNamespace(report=report), False
    guest._stopwatch = SimpleNamespace(cut_short=lambda: done.append("measured"))
    around(lambda *_: done.append("parted"), guest._part)(*group)
    assert done == ends


@pytest.mark.parametrize(("n_steps", "ends"), [(9, ["measured"]), (1, [])])
@pytest.mark.parametrize("is_watched", [True, False])
def test_an_engine_that_ends_is_measured_or_makes_room_for_the_next(n_steps, ends, is_watched):
    """A script may look for its learning rate with an engine, and destroy it."""
    guest, done, engine = Guest.__new__(Guest), list[str](), object()
    steps = {name: [1.0] * n_steps for name in ("step_times_s", "losses")}
    more = {name: [1.0] for name in ("warmup_step_times_s", "skipped")}
    report = SimpleNamespace(phase=Phase.MEASURED, pid=os.getpid(), **steps, **more)
    guest.reporter, guest.is_over = SimpleNamespace(report=report), False
    guest.seen = {"engines": 2, "engines_trained": 1}
    watch = SimpleNamespace(cut_short=lambda: done.append("measured"))
    guest._stopwatch, guest.watched = watch, engine if is_watched else None
    guest._began_elsewhere = {}
    around(lambda _: done.append("destroyed"), guest._destroy)(engine)
    assert done == [*(ends if is_watched else ()), "destroyed"]
    assert guest.watched is None
    assert len(report.step_times_s) == (0 if is_watched else n_steps)
    assert guest.seen["engines_trained"] == (0 if is_watched else 1)


class Engine(torch.nn.Module):
    """As DeepSpeed's: it calls the module that it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self.global_steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def directly(self) -> "Engine":
        """The same, called past its hooks, as an engine of a script's may be."""
        self.__class__ = type("Direct", (Engine,), {"__call__": lambda me, x: me.forward(x)})
        return self


@pytest.mark.parametrize(
    ("call", "past_engine"),
    [
        (lambda engine, x: engine(x), False),
        (lambda engine, x: engine.forward(x), False),
        (lambda engine, x: engine.module(x), True),
        (lambda engine, x: copy.deepcopy(engine.module)(x), None),
        (lambda engine, x: engine.eval()(x), None),
        (lambda engine, x: engine.directly()(x), False),
    ],
)
def test_a_pass_is_seen_however_a_script_makes_it(call, past_engine, monkeypatch):
    guest, engine, seen = Guest.__new__(Guest), Engine(), list[Any]()
    guest.watched = None

    def watch(engine: Engine, facts: Any, *, passes: torch.nn.Module) -> None:
        guest.watched = engine
        intake = SimpleNamespace(see=lambda module, args, kwargs: seen.append(module))
        guest._stopwatch = SimpleNamespace(intake=intake)

    monkeypatch.setattr(guest, "_watch", watch)
    guest._wait_for(engine, {})
    for _ in range(2):
        assert call(engine, torch.ones(3, 2)).shape == (3, 2)
    assert seen == ([] if past_engine is None else [engine.module if past_engine else engine])
    assert guest.watched is (None if past_engine is None else engine)
    engine.backward(torch.zeros(()))
    assert guest.watched is engine, "whatever made the loss"


@pytest.mark.parametrize(("n_others", "is_left"), [(20, False), (60, True)])
def test_an_engine_that_takes_no_more_steps_makes_room_for_one_that_does(
    n_others: int, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GAN's two engines each waits for the other; one for the learning rate is forgotten."""
    guest, engines, watched = fresh_guest(), (Engine(), Engine()), list[Engine]()
    guest.watched = None

    def watch(engine: Engine, *_: Any, **__: Any) -> None:
        watched.append(engine)
        guest.watched = engine
        guest._stopwatch = SimpleNamespace(intake=SimpleNamespace(see=lambda *_: None))

    def leave() -> None:
        guest.watched = None

    monkeypatch.setattr(guest, "_watch", watch)
    monkeypatch.setattr(guest, "_leave_watched", leave)
    for engine in engines:
        guest._wait_for(engine, {})
    for _ in range(3):
        for engine, n_steps in zip(engines, (1, n_others), strict=True):
            for _ in range(n_steps):
                engine(torch.ones(3, 2))
                engine.global_steps += 1
                if engine is guest.watched:
                    guest.on_step()
    assert watched == list(engines[: 1 + is_left])


@dataclass
class ScriptArguments:
    d_model: int = 8


@dataclass
class Training(ScriptArguments):
    per_device_train_batch_size: int = 8


def test_a_parser_of_other_arguments_takes_none_of_trainer_s() -> None:
    """`--per_device_train_batch_size 8` would end the script."""
    assert not _fills_training_arguments(SimpleNamespace(dataclass_types=[ScriptArguments]))
    assert _fills_training_arguments(SimpleNamespace(dataclass_types=[ScriptArguments, Training]))


@pytest.mark.parametrize(
    ("command", "argv", "module", "is_given"),
    [
        ("torchrun train.py --bs 4", "train.py --bs 4", None, True),
        ("deepspeed train.py --bs 4", "train.py --local_rank=1 --bs 4", None, True),
        ("torchrun train.py", "train.py", None, True),
        ("torchrun -m train", "/x/train.py", "train", True),
        ("torchrun -m train", "/x/train/__main__.py", "train.__main__", True),
        ("sh run.sh", "train.py --bs 4", None, False),
        ("sh run.sh --bs 4", "train.py --lr 1 --bs 4", None, False),
        ("make train", "train.py", None, False),
    ],
)
def test_words_that_something_between_gives_a_script_are_none_of_the_command(
    command: str, argv: str, module: str | None, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else SimpleNamespace(name=module)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert _ends_with(command.split(), argv.split()) == is_given


def test_a_file_that_the_command_writes_is_not_the_user_s(tmp_path, monkeypatch):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    now_s = path.stat().st_ctime
    for began_s, written_s, is_written in (
        (now_s - 1, now_s, True),
        (now_s, now_s, False),
        (now_s - 1, now_s - 9, False),  # another mode, name or link: ctime alone is new
    ):
        os.utime(path, (written_s, written_s))
        monkeypatch.setattr(reading, "_began_s", began_s)
        found = reading.file_of_user(str(path))
        assert [name for name in found if found[name]] == [
            "written_config" if is_written else "config_file"
        ]


def test_shared_memory_goes_at_whichever_port_a_command_meets(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", f"own{os.getpid()}")
    monkeypatch.setenv("LOCAL_RANK", "1")
    meeting = SEGMENTS.format(user=os.getuid(), address="127.0.0.1")
    left = Path("/dev/shm", f"{meeting}own{os.getpid()}_1")
    left.touch()
    fresh_guest().on_step()
    assert not left.exists()


def test_the_configuration_of_a_frozen_model_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_is_over", True)

    class Read:  # as accelerate's HfDeepSpeedConfig
        def __init__(self, file: str) -> None:
            self.config = json.loads(Path(file).read_text())

        def set_stage_and_offload(self) -> None:
            self.stage = self.config["zero_optimization"]["stage"]

    guest, files = fresh_guest(), [str(tmp_path / name) for name in ("student", "teacher")]
    guest.edits = Edits(configuration={"zero_optimization.stage": 1}, trained_file=files[0])
    for file, stage, expected in zip(files, (2, 3), (1, 3), strict=True):
        Path(file).write_text(json.dumps({"zero_optimization": {"stage": stage}}))
        guest._read_config(Read.__init__, read := Read.__new__(Read), file)
        assert read.config["zero_optimization"]["stage"] == expected
    student, teacher = (config for config, _ in guest._as_read)
    facts = guest._edit({"config_params": student, "optimizer": "its own"})
    assert facts is not None
    assert facts["config_file"] == files[0]
    assert facts["config_written"]["zero_optimization"] == {"stage": 2}
    assert guest._edit({"config_params": teacher}) is None
    assert guest.seen["config_files"] == files


@pytest.mark.parametrize("stage", [None, 1])
def test_a_file_of_accelerate_s_is_known_where_trainer_fills_in_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int | None
) -> None:
    """`accelerate launch --deepspeed_config_file`, and Trainer without `--deepspeed`."""
    written = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    (file := tmp_path / "ds.json").write_text(json.dumps(written))
    monkeypatch.setattr(reading, "_is_over", True)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    guest, read = fresh_guest(), deepspeed.HfDeepSpeedConfig
    guest.edits = Edits(configuration={} if stage is None else {"zero_optimization.stage": stage})
    monkeypatch.setattr(read, "__init__", around(read.__init__, guest._read_config))
    plugin = DeepSpeedPlugin()
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=3)
    state = SimpleNamespace(deepspeed_plugin=plugin)
    propagate_args_to_deepspeed(SimpleNamespace(state=state), arguments)
    facts = guest._edit({"config_params": plugin.deepspeed_config, "optimizer": "its own"})
    assert facts is not None
    assert facts["config_file"] == str(file)
    assert facts["config_written"] == written
    assert facts["arrived"] == []
    assert facts["config"]["train_micro_batch_size_per_gpu"] == 3
    assert facts["config"]["zero_optimization"]["stage"] == (stage or 2)
    assert guest.seen["config_files"] == [str(file)]


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_loader_tells_the_samples_of_its_batches_and_whether_each_step_has_one(
    n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an evaluation draws says nothing of the samples of a step."""
    guest, data = fresh_guest(), torch.utils.data.dataloader
    draw = around(data._BaseDataLoaderIter.__next__, guest._note_draw)
    monkeypatch.setattr(data._BaseDataLoaderIter, "__next__", draw)
    trains, evaluates, plain = (
        data.DataLoader(range(12), batch_size=size, num_workers=n_workers) for size in (2, 3, None)
    )
    unused = data.DataLoader(range(12), batch_size=4)
    for step, batch in enumerate(trains):
        assert len(batch) == 2
        if step % 2 == 0:
            assert [len(one) for one in evaluates] == [3] * 4
            assert len([*plain]) == 12
        guest.on_step()
    assert guest.seen["loader_batches"] == [2, 3]
    assert guest.seen["step_batches"] == [2]
    assert unused.batch_size not in guest.seen["loader_batches"]
    for _ in range(2):  # the first has seen the end of the epoch, the second no loader
        guest.on_step()
    assert guest.seen["step_batches"] == []


def test_recomputation_is_seen_whichever_way_torch_does_it(monkeypatch):
    guest = Guest.__new__(Guest)
    guest.seen = {"recomputes": False}
    for module, place in _RECOMPUTING[:2]:
        owner, name = importlib.import_module(module), place
        if "." in place:
            owner, name = owner.CheckpointFunction, "forward"
        wrapped = around(getattr(owner, name), guest._note_recomputation)
        monkeypatch.setattr(owner, name, staticmethod(wrapped) if "." in place else wrapped)
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    layer(x)
    assert not guest.seen["recomputes"]
    for is_reentrant in (True, False):
        guest.seen["recomputes"] = False
        checkpoint(layer, x, use_reentrant=is_reentrant).sum().backward()
        assert guest.seen["recomputes"], is_reentrant
