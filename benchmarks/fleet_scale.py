"""What a search costs its coordinator: many gangs, and a record of many trials.

Everything is the real one but the nodes: search loop, record, page, `GangFleet` and its
protocol run as they do for far nodes, and the nodes answer in this process, each trial after a
while. A record of all trials but the last is written first; the search resumes it and runs the
last ones, which are the dearest. The share of a core that 100 ending trials a minute take is
what a trial took there, times 100 per minute. The bars are 5% of a core with 128 gangs, and 5 s
to resume a record of 2,000 trials (`--resume`).
"""

import argparse
import base64
import dataclasses
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from autotune.app import run as search_module
from autotune.app.pages import PageWriter
from autotune.app.run import begin_study, search
from autotune.app.session import read_job
from autotune.contract import (
    NodeReport,
    Outcome,
    Phase,
    RankReport,
    Role,
    Start,
    TrialResult,
    TrialSpec,
    to_dict,
)
from autotune.devices.accelerators import shipped_accelerators
from autotune.engines.base import Engine
from autotune.fleet.base import Place
from autotune.fleet.gang_fleet import AGENT, GangFleet, GangTrial
from autotune.fleet.transports.base import Node, Transport
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.planning.outlook import FleetWishes, described
from autotune.record.study import Study, Trial
from autotune.search.base import Observer, Snapshot
from autotune.search.runner import Runner
from autotune.search.session import Session, environments_of
from autotune.search.trial_spec import Run

PER_NODE = 8
RATE_PER_S = 100 / 60
"""Trials that end in a second of the fleet that the limits are for."""
LONG_S = 0.05
"""Time that no poll may take."""
_PHASES_S = {str(phase): 0.1 for phase in Phase}
_SPACE: dict[str, Any] = {
    "name": "scale",
    "description": "As many candidates as trials.",
    "knobs": {
        "zero.stage": [0, 1, 2, 3],
        "micro_batch": {"powers_of_two": [1, 64]},
        "recompute": ["none", "full"],
        "overlap_comm": [False, True],
        "communication_dtype": ["model", "fp32"],
        "stage3.prefetch_bucket_size": {
            "values": [0, 10_000_000, 50_000_000],
            "when": {"zero.stage": 3},
        },
    },
}


class SimulatedNode:
    """An agent that answers by the protocol and runs nothing; implements `NodeProcess`."""

    def __init__(self, trial_s: Callable[[], float]) -> None:
        self._trial_s = trial_s
        self._said = b'{"event": "ready"}\n'
        self._ends: dict[str, tuple[float, TrialSpec, int]] = {}
        """When a trial ends, what it is, and which of its nodes this is."""
        self._is_closed = False

    def send(self, data: bytes) -> None:
        """See `NodeProcess.send`."""
        for line in data.splitlines():
            told = json.loads(line)
            if told["command"] == "start":
                folder = told["part"]["folder"]
                spec = json.loads(base64.b64decode(told["files"]["spec.json"]))
                end_s = time.monotonic() + self._trial_s()
                self._ends[folder] = (end_s, TrialSpec.from_dict(spec), told["part"]["node"])
                self._say("started", folder=folder, port=29500, start=Start.COLD)
            elif told["command"] == "end" and told["folder"] in self._ends:
                self._ends[told["folder"]] = (0.0, *self._ends[told["folder"]][1:])
            elif told["command"] == "reap":
                self._say("reaped", folder=told["folder"])
            elif told["command"] == "alive":
                self._say("alive")
            elif told["command"] == "close":
                self._is_closed = True

    def receive(self) -> bytes:
        """See `NodeProcess.receive`."""
        now_s = time.monotonic()
        for folder, (end_s, spec, node) in list(self._ends.items()):
            if now_s >= end_s:
                del self._ends[folder]
                for name, report in reports_of(spec, node).items():
                    text = json.dumps(to_dict(report)).encode()
                    data = base64.b64encode(text).decode()
                    self._say("file", folder=folder, name=f"ranks/{name}", at=0, data=data)
                self._say("ended", folder=folder, problem="")
        said, self._said = self._said, b""
        return said

    def poll(self) -> int | None:
        """See `NodeProcess.poll`."""
        return 0 if self._is_closed else None

    def end(self) -> None:
        """See `NodeProcess.end`."""
        self._is_closed = True

    def _say(self, event: str, **what: Any) -> None:
        self._said += (json.dumps({"event": event, **what}) + "\n").encode()


class SimulatedTransport(Transport):
    """Nodes that answer in this process."""

    is_remote = True

    def __init__(self, n_nodes: int, trial_s: Callable[[], float]) -> None:
        self._nodes = tuple(
            Node(name=f"n{i:04d}", devices=tuple(f"GPU-{i}-{k}" for k in range(PER_NODE)))
            for i in range(n_nodes)
        )
        self._trial_s = trial_s

    def nodes(self) -> tuple[Node, ...]:
        """See `Transport.nodes`."""
        return self._nodes

    def start(self, node: Node, module: str, *arguments: str) -> SimulatedNode:
        """See `Transport.start`."""
        agent = SimulatedNode(self._trial_s)
        if module != AGENT:
            agent.end()  # what prepares a node finds nothing to do
            agent.receive()
        return agent


def step_time_s(spec: TrialSpec) -> float:
    """A figure that depends on the candidate."""
    return 0.001 + 0.001 * random.Random(spec.identity.candidate_hash).random()


def reports_of(spec: TrialSpec, node: int) -> dict[str, RankReport | NodeReport]:
    """Files that one of its nodes would send of a good trial."""
    steps = [step_time_s(spec)] * 10
    ranks = {
        f"{rank:02d}.json": RankReport(
            rank=rank,
            phase=Phase.TEARDOWN,
            ended_at_s=sum(_PHASES_S.values()),
            phases_s=_PHASES_S,
            warmup_step_times_s=steps[:2],
            step_times_s=steps,
            memory_bytes={"peak": 20 * 2**30, "reserved": 19 * 2**30},
            losses=[4.0] * 12,
            read_back=dict(spec.engine.expected),
            versions={"torch": "2.13.0", "deepspeed": "0.19.8"},
        )
        for rank in range(node * PER_NODE, (node + 1) * PER_NODE)
    }
    return {**ranks, f"node_{node:02d}.json": NodeReport(launcher_code=0)}


@dataclasses.dataclass
class Watch:
    """What the coordinator took, by its own clocks."""

    poll_s: float = 0.0
    """The longest of all polls."""
    poll_cpu_s: float = 0.0
    """The longest by what this thread computed: other work on the machine does not stretch it."""
    n_long: int = 0
    """Polls of more than `LONG_S`."""
    collect_s: list[float] = dataclasses.field(default_factory=list)
    begun_cpu_s: float = 0.0
    resumed_s: float = 0.0
    resumed_cpu_s: float = 0.0
    nodes_cpu_s: float = 0.0
    """Of that, what the simulated nodes took, which are no part of the coordinator."""
    ended_cpu_s: float = 0.0
    """When the last trial had ended: the final page and table come once, whatever ran."""
    n_ended: int = 0
    page_s: float = 0.0
    """For the last page, once all has ended."""
    table_s: float = 0.0
    """For the table."""


class ScalePlace(Place):
    """The simulated nodes; nothing is compared in the end."""

    compares = False

    def __init__(self, transport: SimulatedTransport) -> None:
        wishes = FleetWishes(gpu="H100", per_node=PER_NODE)
        super().__init__(described(wishes, shipped_accelerators(), where="--gpu"), {})
        self._transport = transport

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        """See `Place.fleet_for`."""
        return lambda: GangFleet(self._transport, world=job.world)


class Silent(Observer):
    """Shows nothing."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """See `Observer`."""

    def on_note(self, note: str) -> None:
        """See `Observer`."""


def open_scale(folder: Path, n_gangs: int, n_trials: int, sampler: str, trial_s: Any) -> Session:
    """A session of a study in a folder."""
    space = folder / "scale.yaml"
    # As many sizes as make more candidates than trials: to make a lattice is not what is measured.
    sizes = [3_000_000 * n for n in range(1, min(40, n_trials // 250 + 1) + 1)]
    knobs = {**_SPACE["knobs"], "reduce_bucket_size": sizes}
    space.write_text(yaml.safe_dump({**_SPACE, "knobs": knobs}))
    flags = {
        "model": "gpt2",
        "seq_len": 1024,
        "global_batch": 64 * PER_NODE,
        "world": PER_NODE,
        "space": str(space),
        "study": "scale",
        "sampler": sampler,
        "trials": n_trials,
    }
    place = ScalePlace(SimulatedTransport(n_gangs, trial_s))
    job, data = read_job(None, flags, place.environment)
    engine = place.bind(job)
    return Session(
        job=job,
        job_data=data,
        engine=engine,
        study=Study(folder / "results", job.study),
        place=place,
    )


def record(session: Session, n_trials: int) -> None:
    """Write the record of a search that has run so many trials."""
    study = session.study
    study.lock()
    begin_study(session, lambda note: None)
    study.update_state(environments=environments_of(session, lambda note: None))
    baseline = next(
        c for c in session.lattice.candidates if c["zero.stage"] == 0 and c["micro_batch"] == 64
    )
    rest = [c for c in session.lattice.candidates if c != baseline]
    random.Random(0).shuffle(rest)
    for number, candidate in enumerate([baseline, *rest[: n_trials - 1]]):
        role = Role.SEARCH if number else Role.BASELINE
        spec = session.spec_of(Run(candidate=candidate, role=role), number)
        folder = study.write_spec(spec, session.engine.files(candidate))
        study.write_result(folder, result_of(spec, number))
    study.unlock()


def result_of(spec: TrialSpec, number: int) -> TrialResult:
    """A recorded result."""
    step_s = step_time_s(spec)
    rate = spec.layout.global_batch / step_s
    return TrialResult(
        number=number,
        role=spec.identity.role,
        candidate_hash=spec.identity.candidate_hash,
        outcome=Outcome.OK,
        started_at_s=time.time() - 86400.0 + number,
        wall_s=20.0,
        phases_s=_PHASES_S,
        step_times_s=[step_s] * 10,
        step_time_s=step_s,
        step_time_low_s=step_s,
        step_time_high_s=step_s,
        samples_per_s=rate,
        samples_per_s_low=rate,
        samples_per_s_high=rate,
        peak_memory_bytes=20 * 2**30,
        memory_bytes={"peak": 20 * 2**30},
        devices=[f"n{number % 1000:04d}:{k}" for k in range(PER_NODE)],
    )


def watched(watch: Watch) -> Callable[[], None]:
    """Count what is called; the call that is returned takes the watch away."""
    poll, collect, recover = GangTrial.poll, Runner.collect, Runner.recover
    close, close_page, write = (
        GangFleet.close,
        PageWriter.close,
        vars(search_module)["write_table"],
    )

    receive = SimulatedNode.receive

    def timed_receive(self: SimulatedNode) -> bytes:
        begun_cpu_s = time.thread_time()
        received = receive(self)
        watch.nodes_cpu_s += time.thread_time() - begun_cpu_s
        return received

    def timed_poll(self: GangTrial) -> TrialResult | None:
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        result = poll(self)
        took_s = time.perf_counter() - begun_s
        watch.poll_s = max(watch.poll_s, took_s)
        watch.poll_cpu_s = max(watch.poll_cpu_s, time.thread_time() - begun_cpu_s)
        watch.n_long += took_s > LONG_S
        watch.n_ended += result is not None
        return result

    def timed_collect(self: Runner) -> list[Trial]:
        begun_s = time.perf_counter()
        found = collect(self)
        watch.collect_s.append(time.perf_counter() - begun_s)
        return found

    def timed_recover(self: Runner, is_answered_by: Callable[[Trial], bool]) -> None:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        recover(self, is_answered_by)
        watch.resumed_s = time.perf_counter() - begun_s
        watch.begun_cpu_s, watch.nodes_cpu_s = time.process_time(), 0.0
        watch.resumed_cpu_s = watch.begun_cpu_s - begun_cpu_s

    def timed_close(self: GangFleet) -> None:
        watch.ended_cpu_s = watch.ended_cpu_s or time.process_time() - watch.nodes_cpu_s
        close(self)

    def timed_page(self: PageWriter) -> None:
        begun_s = time.perf_counter()
        close_page(self)
        watch.page_s = time.perf_counter() - begun_s

    def timed_table(study: Study) -> Any:
        begun_s = time.perf_counter()
        written = write(study)
        watch.table_s = time.perf_counter() - begun_s
        return written

    GangTrial.poll, Runner.collect = timed_poll, timed_collect
    Runner.recover, GangFleet.close = timed_recover, timed_close
    PageWriter.close, vars(search_module)["write_table"] = timed_page, timed_table
    SimulatedNode.receive = timed_receive

    def end() -> None:
        GangTrial.poll, Runner.collect, Runner.recover = poll, collect, recover
        GangFleet.close, PageWriter.close = close, close_page
        vars(search_module)["write_table"] = write
        SimulatedNode.receive = receive

    return end


def measure(n_gangs: int, n_trials: int, n_run: int, sampler: str) -> dict[str, float]:
    """Resume a record of `n_trials - n_run` trials and run the rest."""
    watch, lengths = Watch(), random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        session = open_scale(folder, n_gangs, n_trials, sampler, lambda: lengths.uniform(1.5, 3.0))
        begun_s = time.perf_counter()
        record(session, n_trials - n_run)
        recorded_s = time.perf_counter() - begun_s
        end = watched(watch)
        begun_s = time.perf_counter()
        try:
            search(session, Silent(), fresh=False)
        finally:
            end()
        whole_s = time.perf_counter() - begun_s
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        cpu_s = watch.ended_cpu_s - watch.begun_cpu_s
        return {
            "gangs": n_gangs,
            "trials": len(session.study.trials()),
            "candidates": len(session.lattice.candidates),
            "recorded_s": recorded_s,
            "resume_s": watch.resumed_s,
            "resume_cpu_s": watch.resumed_cpu_s,
            "ended": watch.n_ended,
            "search_s": whole_s,
            "cpu_s_per_trial": cpu_s / max(1, watch.n_ended),
            "core_share": cpu_s / max(1, watch.n_ended) * RATE_PER_S,
            "longest_poll_s": watch.poll_s,
            "longest_poll_cpu_s": watch.poll_cpu_s,
            "polls_above_50_ms": watch.n_long,
            "longest_round_s": max(watch.collect_s, default=0.0),
            "peak_memory_gib": peak_bytes / 2**30,
            "page_s": watch.page_s,
            "page_mib": session.study.page_file.stat().st_size / 2**20,
            "table_s": watch.table_s,
            "table_mib": session.study.table_file.stat().st_size / 2**20,
        }


class _ReadError(Exception):
    """Ends a search once it has read its record."""


def measure_resume(n_gangs: int, n_trials: int, sampler: str) -> dict[str, float]:
    """Read a record of `n_trials` trials, as a search does that resumes it, and stop there."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as place:
        session = open_scale(Path(place), n_gangs, n_trials + 1, sampler, lambda: 2.0)
        record(session, n_trials)
        end = watched(watch)
        timed = Runner.recover

        def stop_after(self: Runner, is_answered_by: Callable[[Trial], bool]) -> None:
            timed(self, is_answered_by)
            raise _ReadError(len(self.history.recorded))

        Runner.recover = stop_after
        try:
            search(session, Silent(), fresh=False)
        except _ReadError as read:
            n_answered = float(read.args[0])
        finally:
            end()
    return {
        "trials": float(n_trials),
        "resume_s": watch.resumed_s,
        "resume_cpu_s": watch.resumed_cpu_s,
        "answered": n_answered,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=128)
    parser.add_argument("--trials", type=int, default=2_000, help="of the record in the end")
    parser.add_argument("--run", type=int, default=300, help="of these, run by the search")
    parser.add_argument("--sampler", default="calibrated")
    parser.add_argument(
        "--resume", action="store_true", help="only read the record, as a search that resumes does"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if options.resume:
        figures = measure_resume(options.gangs, options.trials, options.sampler)
    else:
        figures = measure(options.gangs, options.trials, options.run, options.sampler)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    if options.json:
        print(json.dumps({"sampler": options.sampler, **rounded}))
    else:
        for name, value in rounded.items():
            print(f"{name:22} {value:g}")


if __name__ == "__main__":
    main()
