"""Contract tests for plug-ins: inherit the class of your plug-in's kind, and name the plug-in.

    from autotune.testing import SamplerContract

    class TestMine(SamplerContract):
        name = "mine"

pytest finds the inherited tests. The plug-in has to be installed: it is loaded by its name, as a
search loads it. A contract trains nothing, unless it says so.
"""

import functools
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from packaging.version import Version

from autotune.app.session import open_session
from autotune.base.errors import AutotuneError, FleetError, JobError, RenderError, StudyError
from autotune.base.plugins import Kind, load_plugin, plugin_names
from autotune.base.templates import Templates
from autotune.contract import STDERR_FILE, Outcome, Role, TrialResult, TrialSpec
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.hardware import Environment
from autotune.engines.advice import COMMON
from autotune.engines.base import Engine, EnginePlugin, bind_engine
from autotune.export.base import Dialect, Handout, Launcher
from autotune.export.door import MARKER_FILE, export_handout, handout_of, launch_of, read_export
from autotune.export.readme import FIGURES_FILE
from autotune.fleet.base import Fleet, FleetPlugin, Handle
from autotune.fleet.gang_fleet import AGENT
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.fleet.simulate import Luck, simulated
from autotune.fleet.transports.base import NodeProcess, Transport
from autotune.job.job import Job, make_job
from autotune.planning.lattice import Lattice, lattice_of
from autotune.record.answer import Standing
from autotune.record.study import Study, Trial
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.sampler import Request, Sampler
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import steering_of
from autotune.search.trial_spec import MEASURE, Run, make_spec
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation
from autotune.space.workload import WorkloadPlugin
from autotune.trial.engines.base import CALLS, driver_of

P = TypeVar("P")

ENVIRONMENT = Environment(
    accelerator="cuda",
    n_devices=8,
    device_name="NVIDIA H100 80GB HBM3",
    device_memory_bytes=80 * 2**30,
    peak_flops=989e12,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)
"""The node that contracts plan for; it need not be there."""

JOB: dict[str, Any] = {
    "model": "tiny-gpt2",
    "seq_len": 64,
    "global_batch": 16,
    "world": 2,
    "precision": "bf16",
    "study": "contract",
}
"""Model that contracts plan to train, as a job's file names it."""


class Contract(Generic[P]):
    """Contract of plug-ins of every kind."""

    kind: ClassVar[Kind]
    name: str
    """Under which the plug-in is offered in its package's entry points."""

    def make(self) -> P:
        plugin: P = load_plugin(self.kind, self.name)
        return plugin

    def test_it_is_offered_by_its_name(self) -> None:
        assert self.name in plugin_names(self.kind)
        self.make()


class EngineContract(Contract[EnginePlugin]):
    """An engine renders and judges the candidates of its own knobs."""

    kind = "engine"
    space: str | Path | None
    """A shipped space or a YAML file: some of the engine's knobs, with a dozen candidates or more
    and at least one that breaks a rule. None: the engine lays its candidates out itself."""
    job: Mapping[str, Any] = {}
    """Keys of a job that differ from `JOB`."""

    def make_job(self) -> Job:
        keys = {**JOB, **self.job, "engine": self.name}
        space = {} if self.space is None else {"space": str(self.space)}
        return make_job({**keys, **space}, where="contract")

    def bind(self) -> Engine:
        return self.make().bind(self.make_job(), ENVIRONMENT)

    def lattice(self, engine: Engine) -> Lattice:
        return lattice_of(engine).counted()

    def test_its_knobs_are_a_closed_list(self) -> None:
        """Each stands under its own name, has a legal default, and follows those that it names."""
        before: set[str] = set()
        for name, knob in self.make().knobs.items():
            assert name == knob.name
            for default in (knob.default, *knob.default_when.values()):
                assert knob.check(default, where="default") == default
            others = {*knob.when, *(other for other, _ in knob.default_when)}
            assert others <= before, f"{name} comes before {others - before}"
            before.add(name)

    def test_it_advises_its_own_knobs(self) -> None:
        """Beside the advice that all share; what saves memory there says which value does not."""
        plugin = self.make()
        for bound, rules in plugin.advice.items():
            knobs = {rule.knob for rule in set(rules) - set(COMMON[bound])}
            assert knobs <= plugin.knobs.keys(), f"{bound}: {knobs - plugin.knobs.keys()}"
        for knob, neutral, words in plugin.saves_memory:
            assert knob in plugin.knobs, f"{words}: {knob} is not a knob"
            assert plugin.knobs[knob].check(neutral, where="saves_memory") == neutral

    def test_it_knows_its_packages(self) -> None:
        """Releases are in order, and what is compiled is either built or missing."""
        plugin = self.make()
        for package in plugin.packages:
            for releases in (package.tried, [release for release, _ in package.removed]):
                assert list(releases) == sorted(releases, key=Version)
                assert all(Version(release) >= Version(package.least) for release in releases)
        compiled = plugin.compiled("cpu")
        assert not set(compiled.built) & set(compiled.missing)

    def test_it_is_driven_as_it_says(self) -> None:
        """A package offers its driver where trials of it can be run, and nowhere else."""
        offered = {point.name for point in entry_points(group="autotune.drivers")}
        assert (self.name in offered) == self.make().is_driven
        if self.name in offered:
            driver = driver_of(self.name)
            lacking = [call for call in CALLS if not callable(getattr(driver, call, None))]
            assert not lacking, f"the driver of {self.name} has no {', '.join(lacking)}"

    def test_it_refuses_with_a_way_out(self) -> None:
        engine = self.bind()
        refused = self._refused(engine, self.lattice(engine))
        assert refused, "no candidate of the space breaks a rule"
        for candidate, violation in refused:
            assert violation.message, f"{violation.rule} says nothing"
            assert violation.fix, f"{violation.rule} names no way out"
            assert violation in engine.judge(candidate), "judged once more, it says otherwise"

    def _refused(self, engine: Engine, lattice: Lattice) -> list[tuple[Candidate, Violation]]:
        """Refused candidates of the grid; of layouts, refused neighbours of the first."""
        if not lattice.is_laid_out:
            return list(lattice.examples.values())
        first = lattice.candidates[0]
        others = [
            replace(first, knobs=tuple(sorted({**first.values, name: value}.items())))
            for name, value in engine.steps(first)
        ]
        return [(other, violation) for other in others for violation in engine.judge(other)]

    def test_two_candidates_are_two_runs(self) -> None:
        """Values that mean the same run fold into one candidate."""
        job, engine = self.make_job(), self.bind()
        runs: dict[str, Candidate] = {}
        for candidate in self.lattice(engine).candidates:
            spec = _spec_of(Run(candidate=candidate, role=Role.SEARCH), 0, job, engine)
            nobody = replace(spec.identity, candidate_hash="", knobs={})
            run = repr((engine.files(candidate), replace(spec, identity=nobody)))
            assert run not in runs, f"[{candidate}] is the run of [{runs[run]}]"
            runs[run] = candidate

    def test_it_renders_the_same_files_each_time(self) -> None:
        for candidate in self.lattice(self.bind()).candidates[:8]:
            files = self.bind().files(candidate)
            assert files == self.bind().files(candidate)
            _check_below(files, "config/")

    def test_it_says_what_the_live_engine_must_read_back(self) -> None:
        """As JSON, and no less than nothing: a trial whose engine says otherwise is invalid."""
        engine = self.bind()
        for candidate in self.lattice(engine).candidates[:8]:
            expected = engine.expected(candidate)
            assert expected, "nothing is expected, so nothing proves what ran"
            assert json.loads(json.dumps(expected)) == expected

    def test_it_speaks_to_the_cost_model(self) -> None:
        engine = self.bind()
        candidates = self.lattice(engine).candidates
        plans = engine.plans(candidates)
        predicted = predict(plans, constants_of(ENVIRONMENT))
        for column in (predicted.step_time_s, predicted.peak_memory_bytes):
            assert len(column) == len(candidates)
            assert np.isfinite(column).all()
            assert (column > 0).all()
        assert len(set(predicted.step_time_s.tolist())) > 1


class DialectContract(Contract[Dialect]):
    """A dialect writes one consumer's files, and says nothing of itself that is not so."""

    kind = "dialect"
    job: Mapping[str, Any] = {}
    """Keys of a job that differ from `JOB`."""

    def handouts(self) -> Sequence[Handout]:
        return _handouts({**self.job, "engine": self.make().engines[0]}, self.takes)

    def takes(self, candidate: Candidate) -> bool:
        """Whether its consumer can train a candidate at all; by default it can train every one."""
        return True

    def export(self, handout: Handout, folder: Path) -> dict[str, str]:
        """Write a configuration: the files that are there then."""
        export_handout(handout, folder, to=self.name)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in paths}

    def test_its_files_stand_below_the_folder(self) -> None:
        for handout in self.handouts():
            templates = _templates(handout)
            launch = launch_of(self.make(), handout, templates)
            files = self.make().files(handout, launch, templates)
            assert files, "it writes nothing"
            _check_below(files, "the folder")
            assert not files.keys() & {MARKER_FILE, FIGURES_FILE}, "every dialect's export has it"

    def exported(self, handout: Handout) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            return self.export(handout, Path(folder))

    def test_its_script_is_one_of_its_files(self) -> None:
        assert self.make().script in self.exported(self.handouts()[0])

    def test_it_writes_the_same_files_each_time(self) -> None:
        for handout in self.handouts():
            assert self.exported(handout) == self.exported(handout)

    def test_it_reads_back_what_it_wrote(self) -> None:
        """A soak of an export runs just that; a dialect may say that it reads nothing."""
        for handout in self.handouts():
            with tempfile.TemporaryDirectory() as folder, suppress(JobError):
                self.export(handout, Path(folder))
                found = read_export(Path(folder), handout.environment, measure=MEASURE)
                assert found.files == handout.exported
                assert found.spec.layout == handout.layout

    def test_two_configurations_are_two_exports(self) -> None:
        first, second = self.handouts()[:2]
        assert self.exported(first) != self.exported(second)

    def test_it_hands_out_what_was_measured_and_what_was_not(self) -> None:
        handout = self.handouts()[0]
        figures = _figures_of(handout.candidate)
        for changes in ({"figures": None}, {"figures": figures}, {"prediction": {"rank": 1}}):
            assert self.exported(replace(handout, **changes))

    def test_it_writes_over_its_own_files_and_nobody_else_s(self) -> None:
        """The refusal names the files and the way out, and leaves them as they are."""
        handout = self.handouts()[0]
        with tempfile.TemporaryDirectory() as ours:
            files = self.export(handout, Path(ours))
            assert self.export(handout, Path(ours)) == files
        foreign = next(name for name in files if name != MARKER_FILE)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / foreign
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("somebody else's", encoding="utf-8")
            refused = _refusal(lambda: self.export(handout, Path(folder)))
            assert refused is not None, f"{foreign} of somebody else is gone"
            assert foreign in refused.message
            assert "name a new folder" in refused.hint
            assert path.read_text(encoding="utf-8") == "somebody else's"


class WorkloadContract(Contract[WorkloadPlugin]):
    """A workload says what a trial trains, and which knobs reach it."""

    kind = "workload"
    keys: Mapping[str, Any] = {}
    """Keys of a job that differ from `JOB`."""

    def _plan(self) -> tuple[Job, Engine, Lattice]:
        return _planned(json.dumps({**JOB, "workload": self.name, **self.keys}, default=os.fspath))

    def job(self) -> Job:
        return self._plan()[0]

    def lattice(self) -> Lattice:
        return self._plan()[2]

    def test_it_says_what_is_trained_and_by_which_script(self) -> None:
        """As JSON, the same each time: a soak and the record hold it by that."""
        for candidate in self.lattice().candidates[:8]:
            trained = self.make().workload(self.job(), candidate)
            assert trained.name == self.name
            assert trained.digest, "without a digest an edited script inherits old figures"
            assert not trained.script or Path(trained.script).is_file()
            data = asdict(trained)
            assert json.loads(json.dumps(data)) == data
            assert self.make().workload(self.job(), candidate) == trained

    def test_knobs_that_do_not_reach_it_do_not_act(self) -> None:
        """Knobs that need the script are in the lattice only where this one applies them."""
        lattice = self.lattice()
        known = {name for name, knob in lattice.context.knobs.items() if knob.by_script}
        acting = {name for candidate in lattice.candidates for name in candidate.values}
        assert acting & known <= self.make().reach(self.job()).ways.keys()

    def test_what_does_not_reach_it_has_a_reason_and_does_not_act(self) -> None:
        reach = self.make().reach(self.job())
        assert not reach.ways.keys() & reach.left_out.keys()
        assert all(reach.left_out.values()), "a knob is left out without a reason"
        lattice = self.lattice()
        for name in reach.left_out:
            values = {candidate.get(name) for candidate in lattice.candidates}
            assert len(values) <= 1, f"{name} is left out, and is {values}"


class _StarterContract(Contract[Launcher]):
    """What launchers of ranks and of nodes have in common: the files for two worlds."""

    kind = "launcher"
    script: str
    """What is started."""

    def handouts(self) -> Sequence[Handout]:
        few, whole = ({"world": world, "global_batch": 2 * world} for world in (2, 16))
        found = (_handouts(few)[0], _handouts(whole)[0])
        return [replace(handout, variables={"SOME_VARIABLE": "on"}) for handout in found]

    def files(self, handout: Handout) -> dict[str, str]:
        return self.make().files(handout, self.script, _templates(handout))

    def test_its_files_stand_below_the_folder(self) -> None:
        for handout in self.handouts():
            files = self.files(handout)
            _check_below(files, "the folder")
            assert not files.keys() & {self.script, MARKER_FILE, FIGURES_FILE}

    def test_the_world_is_started(self) -> None:
        one, other = (self.files(handout) for handout in self.handouts())
        assert one != other, "the files do not go by the world"

    def test_it_says_how_to_start(self) -> None:
        for handout in self.handouts():
            usage = self.make().usage(handout, self.script, _templates(handout))
            assert any(name in usage for name in self.files(handout))


class LauncherContract(_StarterContract):
    """A launcher starts a script on the ranks of a configuration, and says how."""

    script = "some_script.py"

    def test_its_files_start_the_script_with_its_variables(self) -> None:
        for handout in self.handouts():
            text = "".join(self.files(handout).values())
            assert self.script in text, "the script is not started"
            for name, value in handout.variables.items():
                assert name in text, f"the ranks do not get {name}"
                assert value in text, f"the ranks do not get {name}={value}"


class NodeLauncherContract(_StarterContract):
    """A launcher of nodes runs `launch.sh` on each of them, and says how."""

    script = "launch.sh"

    def test_every_node_starts_its_ranks(self) -> None:
        """By the script that the launcher of ranks wrote; several nodes find each other."""
        one, several = (self.files(handout) for handout in self.handouts())
        assert self.script in "".join(one.values()), "no ranks are started"
        assert "MASTER_ADDR" in "".join(several.values()), "the nodes do not find each other"


class FleetContract(Contract[FleetPlugin]):
    """A fleet runs trials, or answers for them. One that runs them trains for some seconds."""

    kind = "fleet"
    job: Mapping[str, Any] = {**JOB, "seq_len": 16, "precision": "fp32"}
    """Keys of a job for it. Many processors compute bf16 far slower than fp32."""

    def named(self, folder: Path) -> str:
        """The fleet, as `--fleet` takes it.

        Args:
            folder: For files that it reads.
        """
        return self.name

    def options(self) -> FleetOptions:
        """What is said of it besides."""
        return NO_OPTIONS

    @contextmanager
    def opened(self) -> Iterator[tuple[Session, Fleet]]:
        """A search on it that was not begun, and its fleet."""
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made).resolve()
            session = open_session(
                None, self.job, results=folder, fleet=self.named(folder), options=self.options()
            )
            session.study.lock()
            with closing(session.make_fleet()) as fleet:
                yield session, fleet
            session.study.unlock()

    def submit(self, session: Session, fleet: Fleet, number: int = 0) -> Handle:
        run = Run(candidate=session.lattice.candidates[0], role=Role.SEARCH)
        spec = _spec_of(run, number, session.job, session.engine, session.environment)
        spec = replace(spec, measure=replace(spec.measure, max_steps=spec.measure.min_steps))
        files = session.engine.files(run.candidate)
        return fleet.submit(spec, session.study.write_spec(spec, files))

    def test_a_trial_ends_with_a_result_that_says_where_it_is_from(self) -> None:
        """And says so again, whenever it is looked at; the fleet was prepared before it."""
        notes: list[str] = []
        with self.opened() as (session, fleet):
            fleet.reap(session.study.trials_folder)
            fleet.prepare(session.engine.preparation(session.lattice.candidates), notes.append)
            handle = self.submit(session, fleet)
            assert handle.progress().elapsed_s >= 0
            result = handle.wait()
            assert result is not None
            assert handle.poll() is result
        assert result.outcome is Outcome.OK, result.evidence
        assert result.origin is session.place.origin
        asked = handle.spec.identity
        assert (result.number, result.candidate_hash) == (asked.number, asked.candidate_hash)
        assert result.step_time_s is not None
        assert result.started_at_s > 0

    def test_it_takes_as_many_trials_as_it_says_and_ends_them(self) -> None:
        """One more waits or is refused; what is cancelled has ended when the fleet is closed."""
        with self.opened() as (session, fleet):
            n = fleet.capacity(session.job.world)
            assert n >= 1
            assert fleet.quarantined() == ()
            handles = [self.submit(session, fleet, number) for number in range(n)]
            with suppress(FleetError):
                handles.append(self.submit(session, fleet, n))
                ran = handles[n].poll() is not None
                assert not ran, f"it takes {n + 1} trials"
                assert not (handles[n].folder / STDERR_FILE).exists(), f"it takes {n + 1} trials"
            handles[0].cancel()
            result = handles[0].wait(60.0)
            assert result is not None, "it was cancelled a minute ago"
            assert result.outcome is Outcome.CANCELLED
            self.submit(session, fleet, n + 1)
        for handle in handles:
            assert handle.poll() is not None, "its fleet was closed"


class TransportContract(ABC):
    """A transport reaches its nodes: an agent on each answers, and can be ended."""

    wait_s = 60.0
    """Seconds that an answer may take."""

    @abstractmethod
    def make(self) -> Transport:
        """The way to some nodes, where autotune is installed."""

    def test_its_nodes_have_names_of_their_own_and_slots(self) -> None:
        transport = self.make()
        nodes = transport.nodes()
        assert nodes
        assert transport.nodes() == nodes
        assert len({node.name for node in nodes}) == len(nodes)
        assert all(node.devices for node in nodes)

    def test_an_agent_answers_and_leaves_when_it_is_told(self) -> None:
        transport = self.make()
        for node in transport.nodes():
            process = transport.start(node, AGENT)
            process.send(b'{"command": "reap", "folder": "/nowhere"}\n')
            received = b""
            for _ in self._until_it_is_late():
                received += process.receive()
                if b"reaped" in received:
                    break
            process.send(b'{"command": "close"}\n')
            assert self._code_of(process) == 0, received

    def test_a_process_is_killed(self) -> None:
        """Even one that does not listen."""
        transport = self.make()
        for node in transport.nodes():
            process = transport.start(node, AGENT)
            assert process.poll() is None
            process.end()
            assert self._code_of(process) != 0

    def _code_of(self, process: NodeProcess) -> int:
        for _ in self._until_it_is_late():
            process.receive()
            if (code := process.poll()) is not None:
                return code
        raise AssertionError

    def _until_it_is_late(self) -> Iterator[None]:
        """Look again and again; fails where nothing comes of it."""
        deadline_s = time.monotonic() + self.wait_s
        while time.monotonic() < deadline_s:
            yield
            time.sleep(0.02)
        raise AssertionError(f"not within {self.wait_s:.0f} s")


class SamplerContract(Contract[Sampler]):
    """A sampler walks a lattice: each candidate at most once, and the same way each time."""

    kind = "sampler"

    def test_it_proposes_open_candidates_and_then_none(self) -> None:
        """Whatever became of the trials: faults, cut runs and runs in flight included."""
        walk = _UnrunSearch()
        for _ in walk.lattice.candidates:
            chosen = self.make().propose(walk.request())
            assert chosen is not None, f"{len(walk.closed)} candidates are closed, not all"
            assert chosen in walk.lattice.candidates, f"not of the lattice: {chosen}"
            assert chosen.hash not in walk.closed, f"closed: {chosen}"
            walk.run(chosen)
        assert self.make().propose(walk.request()) is None, "every candidate is closed"

    def test_the_same_request_gives_the_same_candidate(self) -> None:
        walk = _UnrunSearch()
        for _ in range(6):
            chosen = self.make().propose(walk.request())
            assert chosen is not None
            assert self.make().propose(walk.request()) == chosen
            walk.run(chosen)

    def test_it_goes_on_from_the_record_of_another(self) -> None:
        """A study may change its sampler, and values of another space may stand in its record."""
        walk = _UnrunSearch()
        for candidate in walk.lattice.candidates[::3]:
            walk.run(candidate)
        walk.narrow(walk.lattice.candidates[1::2])
        chosen = self.make().propose(walk.request())
        assert chosen is not None, "candidates are open"
        assert chosen in walk.lattice.candidates, f"not of the lattice: {chosen}"

    def test_it_proposes_where_nothing_is_predicted(self) -> None:
        """A device in no table, or a model whose sizes nobody can see."""
        assert self.make().propose(replace(_UnrunSearch().request(), steering=None)) is not None


def _refusal(attempt: Callable[[], object]) -> AutotuneError | None:
    try:
        attempt()
    except (FleetError, RenderError, StudyError) as error:
        return error
    return None


def _templates(handout: Handout) -> Templates:
    return Templates(handout.job.templates)


def _check_below(names: Iterable[str], folder: str) -> None:
    for name in names:
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        assert inside, f"{name} is not below {folder}"


def _handouts(
    changes: Mapping[str, Any], takes: Callable[[Candidate], bool] = lambda _: True
) -> list[Handout]:
    """The first and the last candidate of a space, the one measured and the other not."""
    job, engine, lattice = _planned(json.dumps({**JOB, **changes}, default=os.fspath))
    candidates = [candidate for candidate in lattice.candidates if takes(candidate)]
    ends = (candidates[0], candidates[-1])
    first, last = (
        handout_of(one, engine=engine, job=job, environment=ENVIRONMENT) for one in ends
    )
    return [replace(first, figures=_figures_of(first.candidate), study=job.study), last]


@functools.cache
def _planned(keys: str) -> tuple[Job, Engine, Lattice]:
    """A job, its engine and its space; the keys are JSON. Many tests ask about the same."""
    job = make_job(json.loads(keys), where="contract")
    engine = bind_engine(job, ENVIRONMENT)
    return job, engine, lattice_of(engine).counted()


def _figures_of(candidate: Candidate) -> Standing:
    """Figures that contracts say were measured."""
    return Standing(
        trial=7,
        candidate=candidate,
        samples_per_s=12.0,
        samples_per_s_low=11.5,
        samples_per_s_high=12.5,
        peak_memory_bytes=2**30,
        n_runs=3,
    )


def _spec_of(
    run: Run, number: int, job: Job, engine: Engine, environment: Environment = ENVIRONMENT
) -> TrialSpec:
    return make_spec(
        run, study=job.study, number=number, job=job, engine=engine, environment=environment
    )


class _UnrunSearch:
    """A search without trials: what it ran, and the request that follows from that."""

    outcomes: tuple[Outcome | None, ...] = (
        *(Outcome.OK, Outcome.OOM, Outcome.OK, Outcome.INVALID, Outcome.OK, Outcome.LOST),
        *(Outcome.NONFINITE, Outcome.OK, Outcome.TIMEOUT, None),
    )
    """How its trials end, in turns; None: they are in flight."""

    def __init__(self) -> None:
        self._job, self._engine, self.lattice = _planned(json.dumps(JOB))
        self.closed: set[str] = set()
        self._history = History()
        luck = Luck(seed=1, time_error=0.3, memory_error=1.0, p_platform_fault=0.0)
        self._measured = simulated(lambda _: (1.0, 2.0**31), luck, device_memory_bytes=2**60)
        self.narrow(self.lattice.candidates[:: 1 + len(self.lattice.candidates) // 16])

    def narrow(self, candidates: Sequence[Candidate]) -> None:
        self.lattice = replace(self.lattice, candidates=candidates)
        self._steering = steering_of(
            Session(
                job=self._job,
                engine=self._engine,
                place=RecordedPlace(ENVIRONMENT, {}),
                study=Study(Path(), "contract"),
                known_lattice=self.lattice,
            )
        )

    def request(self) -> Request:
        return Request(
            lattice=self.lattice,
            history=self._history,
            objective=Objective.of(self._job, ENVIRONMENT),
            closed=frozenset(self.closed),
            n_budget=20,
            seed=1,
            steering=self._steering,
        )

    def run(self, candidate: Candidate) -> None:
        """Take a candidate for tried."""
        number = len(self._history.recorded)
        outcome = self.outcomes[number % len(self.outcomes)]
        run = Run(candidate=candidate, role=Role.SEARCH)
        spec = _spec_of(run, number, self._job, self._engine)
        result = None if outcome is None else TrialResult.of(spec.identity, outcome)
        if outcome is Outcome.OK:
            result = self._measured(spec)
        self._history = self._history.with_trial(Trial(folder=Path(), spec=spec, result=result))
        self.closed.add(candidate.hash)
