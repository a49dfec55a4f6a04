"""A fleet that answers from a formula, and a job, an engine and a lattice to go with it."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import FleetError
from autotune.contract import KnobValue, Outcome, Phase, Role, TrialResult, TrialSpec
from autotune.cost.plans import Plans
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.engines.deepspeed.engine import ladder
from autotune.engines.deepspeed.plans import plans_of
from autotune.fleet.base import Fleet, Handle, Place, Progress
from autotune.job.job import Budget, Job, make_job
from autotune.planning.lattice import Lattice
from autotune.record.answer import SearchAnswer
from autotune.record.study import Study
from autotune.search.base import Snapshot
from autotune.search.interrupt import Interrupt
from autotune.search.loop import run_search
from autotune.search.runner import Runner
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import Steering
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.space.rule import Violation

GIB = 2**30

ENVIRONMENT = Environment(
    accelerator="cpu",
    n_devices=2,
    device_name="scripted",
    device_memory_bytes=64 * GIB,
    peak_flops=1e12,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)

Behaviour = Callable[[TrialSpec], TrialResult]


JOB: dict[str, Any] = {
    "model": "tiny-gpt2",
    "seq_len": 64,
    "global_batch": 16,
    "world": 2,
    "precision": "fp32",
    "memory_limit": "24GiB",
    "study": "scripted",
}
"""World 2 and global batch 16: micro-batches 1 to 8."""


def make(**changes: Any) -> Job:
    """`JOB` with changes, in 8 trials."""
    return make_job({**JOB, "trials": 8, **changes}, where="test")


def candidate(job: Job, **knobs: KnobValue) -> Candidate:
    """The canonical candidate; `zero__stage=2` is the knob `zero.stage`."""
    named = {name.replace("__", "."): value for name, value in knobs.items()}
    values = canonical(named, Context.of(job, ENVIRONMENT))
    return Candidate.of(values, world=job.world, global_batch=job.global_batch)


def lattice_of(
    job: Job,
    *,
    stages: tuple[int, ...] = (0, 1, 2, 3),
    micro_batches: tuple[int, ...] = (1, 2, 4, 8),
    recompute: tuple[str, ...] = ("none", "full"),
    refused: Callable[[Candidate], bool] = lambda _: False,
) -> Lattice:
    """The product of a few knobs, less what `refused` names."""
    grid = [
        candidate(job, zero__stage=stage, micro_batch=size, recompute=how)
        for stage, size, how in itertools.product(stages, micro_batches, recompute)
    ]
    return Lattice(
        candidates=tuple(c for c in grid if not refused(c)),
        context=Context.of(job, ENVIRONMENT),
        grid_size=len(grid),
    )


def ok(spec: TrialSpec, samples_per_s: float, *, peak: float = 4 * GIB) -> TrialResult:
    """A measured result."""
    return TrialResult(
        number=spec.identity.number,
        role=spec.identity.role,
        candidate_hash=spec.identity.candidate_hash,
        outcome=Outcome.OK,
        step_times_s=[spec.layout.global_batch / samples_per_s] * 5,
        step_time_s=spec.layout.global_batch / samples_per_s,
        step_time_low_s=spec.layout.global_batch / (samples_per_s * 1.01),
        step_time_high_s=spec.layout.global_batch / (samples_per_s * 0.99),
        samples_per_s=samples_per_s,
        samples_per_s_low=samples_per_s * 0.99,
        samples_per_s_high=samples_per_s * 1.01,
        start=spec.measure.start,
        peak_memory_bytes=int(peak),
        memory_bytes={"peak": int(peak)},
    )


def fault(spec: TrialSpec, outcome: Outcome, evidence: str = "said so") -> TrialResult:
    """A result without figures."""
    return TrialResult(
        number=spec.identity.number,
        role=spec.identity.role,
        candidate_hash=spec.identity.candidate_hash,
        outcome=outcome,
        evidence=evidence,
        evidence_source="script",
    )


def peak_of(spec: TrialSpec) -> float:
    """GiB that grow with the micro-batch and shrink with the stage and recomputation."""
    states = {0: 16.0, 1: 10.0, 2: 8.0, 3: 6.0}[int(spec.identity.knobs["zero.stage"])]
    share = 0.4 if spec.workload.settings["recompute"] == "full" else 1.0
    return (states + 2.5 * spec.layout.micro_batch * share) * GIB


def rate_of(spec: TrialSpec) -> float:
    """Samples/s: larger micro-batches are faster, higher stages and recomputation slower."""
    speed = 100 * spec.layout.micro_batch**0.3 * (0.97 ** int(spec.identity.knobs["zero.stage"]))
    return speed * (0.75 if spec.workload.settings["recompute"] == "full" else 1.0)


def realistic(spec: TrialSpec) -> TrialResult:
    """Out of memory above the limit, else the formula."""
    peak, limit = peak_of(spec), spec.measure.memory_limit_bytes or 64 * GIB
    if peak > limit:
        return fault(spec, Outcome.OOM, "CUDA out of memory")
    return ok(spec, rate_of(spec), peak=peak)


class ScriptedTrial(Handle):
    """A trial that ends at its `n_polls`-th poll."""

    def __init__(self, fleet: "ScriptedFleet", spec: TrialSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self.cancelled = False
        self._fleet = fleet
        self._started_at_s = fleet.now_s
        self._polls_left = fleet.n_polls

    def poll(self) -> TrialResult | None:
        self._polls_left -= 1
        if self._polls_left > 0 and not self.cancelled:
            return None
        if self in self._fleet.running:
            self._fleet.running.remove(self)
        wall_s = self._fleet.wall_s
        if self.cancelled:
            return replace(
                fault(self.spec, Outcome.CANCELLED), started_at_s=self._started_at_s, wall_s=0.0
            )
        self._fleet.now_s = max(self._fleet.now_s, self._started_at_s + wall_s)
        result = self._fleet.behave(self.spec)
        # No trial is shorter than its steps, however little time the script gives it.
        stepped_s = sum(result.step_times_s) + sum(result.warmup_step_times_s)
        return replace(result, started_at_s=self._started_at_s, wall_s=max(wall_s, stepped_s))

    def progress(self) -> Progress:
        return Progress(phase=Phase.MEASURED, elapsed_s=0.0)

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ScriptedFleet:
    """Implements `Fleet`; remembers what it was asked."""

    behave: Behaviour
    n_gangs: int = 1
    n_polls: int = 2
    """The first look comes at once, before any wait."""
    wall_s: float = 10.0
    now_s: float = 1_000_000.0
    running: list[ScriptedTrial] = field(default_factory=list)
    specs: list[TrialSpec] = field(default_factory=list)
    most_at_once: dict[Role, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    prepared: list[tuple[str, ...]] = field(default_factory=list)

    def capacity(self, world: int) -> int:
        return self.n_gangs

    def quarantined(self) -> tuple[str, ...]:
        return self.left_out

    def absent(self) -> dict[str, str]:
        return {}

    def reap(self, folder: Path) -> None:
        pass

    def prepare(self, command: Sequence[str], note: Callable[[str], None]) -> None:
        self.prepared.append(tuple(command))

    def submit(self, spec: TrialSpec, folder: Path) -> ScriptedTrial:
        if len(self.running) >= self.n_gangs:
            raise FleetError("no gang is free")
        assert (folder / "spec.json").exists(), "the record comes first"
        trial = ScriptedTrial(self, spec, folder)
        self.running.append(trial)
        self.specs.append(spec)
        most = max(self.most_at_once.get(spec.identity.role, 0), len(self.running))
        self.most_at_once[spec.identity.role] = most
        return trial

    def close(self) -> None:
        for trial in self.running:
            trial.cancel()

    def ran(self, role: Role) -> list[TrialSpec]:
        return [spec for spec in self.specs if spec.identity.role is role]


class ScriptedEngine(Engine):
    """Renders no templates."""

    name = "deepspeed"  # whose knobs its candidates have

    def __init__(
        self,
        job: Job,
        *,
        tag: str = "",
        own: Candidate | None = None,
        refused: Callable[[Candidate], bool] = lambda _: False,
    ) -> None:
        super().__init__(job, ENVIRONMENT)
        self._refused = refused
        self._tag = tag
        self._own = own

    def judge(self, candidate: Candidate) -> list[Violation]:
        violation = Violation(rule="test.refused", message="refused", fix="another")
        return [violation] if self._refused(candidate) else []

    def describe(self, candidate: Candidate) -> str:
        return str(candidate)

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        return {"stage": candidate["zero.stage"]}

    def files(self, candidate: Candidate) -> dict[str, str]:
        return {"ds_config.json": f'{{"tag": "{self._tag}"}}'}

    def ladder(self) -> Iterable[Sequence[Candidate]]:
        return ladder(self._job, self.context)

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        return plans_of(candidates, self._job, ENVIRONMENT)

    def baseline(self, path: Path) -> tuple["ScriptedEngine", Candidate]:
        assert self._own is not None
        return ScriptedEngine(self._job, tag=path.name), self._own


class Notebook:
    """Implements `Observer`."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.notes: list[str] = []

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def on_note(self, note: str) -> None:
        self.notes.append(note)


class Patient(Interrupt):
    """Never sleeps; asks to end before the waits that it was told of."""

    def __init__(self, *at: int) -> None:
        super().__init__()
        self._at = at
        self._n_waits = 0

    def wait(self, seconds: float) -> None:
        self._n_waits += 1
        for _ in range(self._at.count(self._n_waits)):
            self.request()


def search(
    study: Study,
    job: Job,
    behave: Behaviour = realistic,
    *,
    fleet: ScriptedFleet | None = None,
    lattice: Lattice | None = None,
    engine: Engine | None = None,
    refused: Callable[[Candidate], bool] = lambda _: False,
    observer: Notebook | None = None,
    interrupt: Interrupt | None = None,
    steering: Steering | None = None,
    compares: bool = True,
) -> SearchAnswer:
    """Run a search on a scripted fleet."""
    study.trials_folder.mkdir(parents=True, exist_ok=True)
    session = session_of(
        study,
        job,
        engine=engine or ScriptedEngine(job, refused=refused),
        lattice=lattice or lattice_of(job, refused=refused),
    )
    session.place.compares = compares
    return run_search(
        session,
        fleet or ScriptedFleet(behave),
        observer=observer or Notebook(),
        interrupt=interrupt or Patient(),
        steering=steering,
    )


def runner_of(record: Study, fleet: ScriptedFleet, interrupt: Interrupt | None = None) -> Runner:
    """Runs trials one by one on a scripted fleet."""
    return Runner(
        record=record, fleet=fleet, interrupt=interrupt or Patient(), note=lambda _: None
    )


class ScriptedPlace(Place):
    """A place whose fleet is given."""

    def __init__(self, make_fleet: Callable[[], Fleet]) -> None:
        super().__init__(ENVIRONMENT, {})
        self._make_fleet = make_fleet

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], Fleet]:
        return self._make_fleet


def session_of(
    study: Study,
    job: Job,
    *,
    engine: Engine | None = None,
    lattice: Lattice | None = None,
    make_fleet: Callable[[], Fleet] = lambda: ScriptedFleet(realistic),
    **changes: Any,
) -> Session:
    """What a search on a scripted fleet works with."""
    return Session(
        job=job,
        engine=engine or ScriptedEngine(job),
        place=ScriptedPlace(make_fleet),
        study=study,
        known_lattice=lattice or lattice_of(job),
        **changes,
    )


def spec_of_run(job: Job, run: Run, number: int) -> TrialSpec:
    """The spec of a run of a job."""
    session = Session(
        job=job,
        engine=ScriptedEngine(job),
        place=RecordedPlace(ENVIRONMENT, {}),
        study=Study(Path(), "scripted"),
    )
    return session.spec_of(run, number)


def with_budget(job: Job, **changes: Any) -> Job:
    """The job with another budget."""
    budget: Budget = replace(job.budget, **changes)
    return replace(job, budget=budget)
