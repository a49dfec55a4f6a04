"""The contracts of plug-ins: what is shipped keeps them, and what is broken does not."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from autotune.contract import TrialSpec, Workload
from autotune.cost.plans import Plans
from autotune.devices.hardware import Environment
from autotune.engines.base import EnginePackage
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.plugin import DeepSpeed
from autotune.engines.deepspeed.rules.base import Setup
from autotune.export.dialects.deepspeed import DeepSpeedFiles
from autotune.export.launchers import Torchrun
from autotune.fleet.base import AnsweringFleet, Handle
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import Node, Transport
from autotune.fleet.transports.local import LocalProcess, LocalTransport, local_node
from autotune.job.job import Job
from autotune.search.sampler import Request, Sampler
from autotune.space.built_in import BuiltIn
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue
from autotune.space.rule import Violation
from autotune.space.workload import Way
from autotune.testing import (
    Contract,
    DialectContract,
    EngineContract,
    FleetContract,
    LauncherContract,
    NodeLauncherContract,
    SamplerContract,
    TransportContract,
    WorkloadContract,
)
from tests.checkouts import checkout_in
from tests.observed import TRAINER, keys_of, observed
from tests.replay.tables import sweep, write
from tests.trials import CPU

REPOSITORY = Path(__file__).resolve().parent.parent


def breaks(contract: type, plugin: object, *, at: str) -> None:
    """Expect a plug-in to fail one test of a contract.

    Args:
        contract: The kind's.
        plugin: What is broken.
        at: Part of the test's name.
    """
    tests = [name for name in dir(contract) if name.startswith("test_") and re.search(at, name)]
    assert len(tests) == 1, f"{at} names one test"
    broken = type("Broken", (contract,), {"make": lambda self: plugin})()
    with pytest.raises(AssertionError):
        getattr(broken, tests[0])()


class First(Sampler):
    """Always the first candidate."""

    def propose(self, request: Request) -> Candidate | None:
        return request.lattice.candidates[0]


class Restless(Sampler):
    """Goes by what it did before."""

    n = 0

    def propose(self, request: Request) -> Candidate | None:
        self.n += 1
        return request.lattice.candidates[-self.n]


class Tired(Sampler):
    """Gives up where candidates are open."""

    def propose(self, request: Request) -> Candidate | None:
        return None


class Stray(Sampler):
    """Remembers a candidate of the record, which the lattice has no more."""

    def propose(self, request: Request) -> Candidate | None:
        tried = request.history.tried
        return tried[0].candidate if tried else request.lattice.candidates[0]


class NeedsForecast(Sampler):
    """Leaves its search alone where nothing is predicted."""

    def propose(self, request: Request) -> Candidate | None:
        return request.lattice.candidates[0] if request.steering else None


@pytest.mark.parametrize(
    ("sampler", "at"),
    [
        (First(), "open_candidates"),
        (Tired(), "open_candidates"),
        (Restless(), "same_request"),
        (Stray(), "record_of_another"),
        (NeedsForecast(), "nothing_is_predicted"),
    ],
)
def test_a_broken_sampler_breaks_the_contract(sampler: Sampler, at: str) -> None:
    breaks(SamplerContract, sampler, at=at)


class TestSimulate(FleetContract):
    name = "simulate"

    def named(self, folder: Path) -> str:
        return "simulate:2xH100"


class TestReplay(FleetContract):
    name = "replay"
    job: ClassVar[dict[str, Any]] = {"trials": 3}

    def named(self, folder: Path) -> str:
        return f"replay:{write(folder / 'runs.csv', sweep())}"


@pytest.mark.real
class TestLocal(FleetContract):
    name = "local"


class TestHostfile(FleetContract):
    name = "hostfile"
    # tests/fleet/transports/test_hostfile.py runs trials on such nodes.
    test_a_trial_ends_with_a_result_that_says_where_it_is_from = None  # type: ignore[assignment]

    def named(self, folder: Path) -> str:
        file = folder / "hostfile"
        file.write_text("here slots=2\n")
        return f"hostfile:{file}"

    def options(self) -> FleetOptions:
        # What ssh does with its last word, on this machine.
        return FleetOptions(ssh="sh -c 'for last; do :; done; exec sh -c \"$last\"' ssh")


class TestLocalTransport(TransportContract):
    def make(self) -> Transport:
        return LocalTransport(local_node(CPU, 2))


class Deaf(LocalTransport):
    """Does not pass on what is sent."""

    def start(self, node: Node, module: str, *arguments: str) -> LocalProcess:
        process = super().start(node, module, *arguments)
        process.send = lambda data: None
        return process


class Nameless(LocalTransport):
    """Calls all nodes alike."""

    def nodes(self) -> tuple[Node, ...]:
        return super().nodes() * 2


@pytest.mark.parametrize(("broken", "at"), [(Deaf, "agent_answers"), (Nameless, "names")])
def test_a_broken_transport_breaks_the_contract(broken: type[LocalTransport], at: str) -> None:
    contract = type("Impatient", (TransportContract,), {"wait_s": 5.0})
    breaks(contract, broken(local_node(CPU, 2)), at=at)


def test_a_broken_fleet_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = AnsweringFleet.submit

    def takes_any(fleet: AnsweringFleet, spec: TrialSpec, folder: Path) -> Handle:
        fleet._trial = None
        return submit(fleet, spec, folder)

    monkeypatch.setattr(AnsweringFleet, "submit", takes_any)
    with pytest.raises(AssertionError, match="it takes 2 trials"):
        TestSimulate().test_it_takes_as_many_trials_as_it_says_and_ends_them()


class TestDeepSpeed(EngineContract):
    name = "deepspeed"
    space = "zero"


class TestMegatron(EngineContract):
    name = "megatron"
    space = None


class Patched(DeepSpeed):
    """DeepSpeed with some of its engine's methods replaced."""

    def __init__(self, knobs: Catalogue | None = None, **methods: Callable[..., Any]) -> None:
        self.knobs = knobs or DeepSpeed.knobs
        self._methods = methods

    def bind(self, job: Job, environment: Environment) -> Any:
        engine = super().bind(job, environment)
        for name, method in self._methods.items():
            setattr(engine, name, partial(method, engine))
        return engine


class Strange(Patched):
    saves_memory = (("no_such_knob", "none", "nothing that anybody can do"),)


class Disordered(Patched):
    packages = (EnginePackage(name="x", title="X", least="1.0", tried=("2.0", "1.5")),)


def curt(engine: DeepSpeedEngine, candidate: Candidate) -> list[Violation]:
    return [replace(violation, fix="") for violation in DeepSpeedEngine.judge(engine, candidate)]


def stuck(engine: DeepSpeedEngine, candidate: Candidate) -> Setup:
    """What the first stage would run, whatever was asked."""
    return DeepSpeedEngine.setup(engine, replace(candidate, knobs=(("micro_batch", 1),)))


def uniform(engine: DeepSpeedEngine, candidates: Sequence[Candidate]) -> Plans:
    return DeepSpeedEngine.plans(engine, [candidates[0]] * len(candidates))


@pytest.mark.parametrize(
    ("engine", "at"),
    [
        (Patched(dict(reversed(DeepSpeed.knobs.items()))), "closed_list"),
        (Strange(), "own_knobs"),
        (Disordered(), "its_packages"),
        (Patched(judge=curt), "way_out"),
        (Patched(setup=stuck, files=lambda *_: {}), "two_runs"),
        (Patched(files=lambda *_: {"a.json": str(uuid4())}), "same_files"),
        (Patched(files=lambda *_: {"../a.json": ""}), "same_files"),
        (Patched(expected=lambda *_: {}), "read_back"),
        (Patched(plans=uniform), "cost_model"),
    ],
)
def test_a_broken_engine_breaks_the_contract(engine: Patched, at: str) -> None:
    breaks(TestDeepSpeed, engine, at=at)


def test_a_name_that_nobody_offers_breaks_every_contract() -> None:
    class Unknown(SamplerContract):
        name = "no-such"

    with pytest.raises(AssertionError):
        Unknown().test_it_is_offered_by_its_name()


class Consumer(DialectContract):
    """Of a consumer that takes no tensor parallel degree."""

    job: ClassVar[dict[str, Any]] = {"space": "zero"}


PLAIN: dict[type[Contract[Any]], tuple[str, ...]] = {
    SamplerContract: ("calibrated", "grid", "random", "tpe"),
    DialectContract: ("deepspeed", "megatron", "megatron-core", "megatron-bridge", "verl"),
    Consumer: ("hf", "accelerate", "trl", "lightning", "llama-factory", "axolotl", "ms-swift"),
    LauncherContract: ("torchrun", "accelerate", "deepspeed"),
    NodeLauncherContract: ("slurm", "skypilot", "ray", "kubernetes"),
    WorkloadContract: ("builtin",),
}
"""Contract -> names of the plug-ins that are held to it as they are."""


def plain_tests() -> Iterator[type]:
    for contract, names in PLAIN.items():
        for name in names:
            label = f"Test{contract.kind.title()}_{name.replace('-', '_')}"
            yield type(label, (contract,), {"name": name, "__module__": __name__})


globals().update((made.__name__, made) for made in plain_tests())


class TestNemoRl(DialectContract):
    name = "nemo-rl"

    def takes(self, candidate: Candidate) -> bool:
        """It knows no interleaved stages, and recomputes all layers or none."""
        recompute = str(candidate.get("recompute"))
        return candidate.get("vp", 1) == 1 and not recompute.startswith("block")


OWN_FOLDER = TemporaryDirectory()
OWN = keys_of(observed(TRAINER), Path(OWN_FOLDER.name))
"""Keys of the job of somebody's own command."""


class TestOwnCommand(DialectContract):
    name = "command"
    job: ClassVar[Mapping[str, Any]] = OWN

    def test_its_script_is_one_of_its_files(self) -> None:
        """Of a command that has not run the configuration alone is known."""
        assert "ds_config.json" in self.exported(self.handouts()[0])


class BrokenFiles(DeepSpeedFiles):
    """DeepSpeed's files with some of them changed."""

    def __init__(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        self._change = change

    def files(self, *arguments: Any) -> dict[str, str]:
        return self._change(super().files(*arguments))


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (lambda files: {**files, "../a": ""}, "below_the_folder"),
        (lambda files: {**files, "autotune_export.json": "{}"}, "below_the_folder"),
        (lambda files: {}, "below_the_folder"),
    ],
)
def test_a_broken_dialect_breaks_the_contract(change: Any, at: str) -> None:
    breaks(DialectContract, BrokenFiles(change), at=at)


class Deaf(Torchrun):
    """Starts two ranks of any script, without their variables."""

    def files(self, *_: Any) -> dict[str, str]:
        return {"/launch.sh": "torchrun --nproc-per-node 2 train.py"}

    def usage(self, *_: Any) -> str:
        return "somehow"


@pytest.mark.parametrize("at", ["its_variables", "below_the_folder", "world", "how_to_start"])
def test_a_broken_launcher_breaks_the_contract(at: str) -> None:
    breaks(LauncherContract, Deaf(), at=at)


class TestScript(WorkloadContract):
    name = "script"
    keys: ClassVar[Mapping[str, Any]] = OWN


class TestPretrainGpt(WorkloadContract):
    name = "pretrain_gpt"

    @pytest.fixture(autouse=True)
    def checkout(self, tmp_path: Path) -> None:
        self.keys = {"engine": "megatron", "megatron_path": checkout_in(tmp_path / "checkout")}


class Nameless(BuiltIn):
    """Says neither its own name nor which script it runs."""

    def workload(self, *asked: Any) -> Workload:
        return replace(super().workload(*asked), name="other", digest="")


class Idle(BuiltIn):
    """Brings none of the knobs into force that the lattice takes it to."""

    applies: ClassVar[Mapping[str, Way]] = {}


@pytest.mark.parametrize(
    ("workload", "at"), [(Nameless(), "which_script"), (Idle(), "knobs_that_do_not_reach")]
)
def test_a_broken_workload_breaks_the_contract(workload: BuiltIn, at: str) -> None:
    breaks(type("OfBuiltIn", (WorkloadContract,), {"name": "builtin"}), workload, at=at)


ON_CLUSTERS = {("fleet", "ray"), ("fleet", "slurm")}
"""What only runs in a cluster, where `tests/fleet/transports/` tries it."""


def test_everything_shipped_is_held_to_its_contract() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = {
        (group.removeprefix("autotune.").removesuffix("s"), name)
        for group, offered in settings["project"]["entry-points"].items()
        for name in offered
        if group != "autotune.drivers"  # an engine's other half, which its contract asks for
    }
    tests = [value for name, value in globals().items() if name.startswith("Test")]
    held = {(one.kind, one.name) for one in tests if issubclass(one, Contract)}
    assert held | ON_CLUSTERS == shipped
    assert not held & ON_CLUSTERS
