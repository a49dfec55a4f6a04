"""What a fleet adds to the start and end of a trial, beside the same trial on this machine.

    python benchmarks/fleet_dispatch.py --servers [ssh slurm ray] [--rounds N] [--cold] [--json]
    python benchmarks/fleet_dispatch.py --fleet FLEET [--fleet ...] [--rounds N] [--cold] [--json]

`--servers` starts what the tests start on this machine, and measures all of them or those that are
named, one after the other: two nodes by ssh (root, iproute2, OpenSSH's server), two of Slurm
(root, slurmctld, slurmd) and two of Ray, a slot and a core each. What the machine lacks is left
out and named. FLEET is what `search --fleet` takes. Warm trials of one candidate run on this
machine and on the fleet in turns, after one that starts the nodes' templates; `--cold` measures
cold ones as well, which take longer and differ more. `start` is the time from submit until the
slowest rank runs; where the coordinator is another machine than the node, from when the trial came
there. `end` is the time from the last step until the result is here. Exits with 1 where the start
on a fleet takes more than `--most-s` longer than here: the median of the rounds' differences.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of, folder_of, spec_of

from autotune.app.session import obtained_fleet, open_session
from autotune.contract import Outcome, Phase, Role, Start, TrialResult
from autotune.fleet.base import Fleet
from autotune.fleet.options import FleetOptions, options_of
from autotune.search.session import Session
from autotune.search.trial_spec import Run

LOCAL = "local"
KNOBS = {"zero.stage": 1, "micro_batch": 8}
MOST_S = {"ray": 0.5}
"""Most seconds that a fleet may add to a start, by its kind."""
MOST_OTHERS_S = 0.3
sys.path.append(str(Path(__file__).parents[1]))  # for the servers that tests start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", action="append", default=[], help="may be repeated")
    parser.add_argument("--fleet-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--servers", nargs="*", choices=SERVERS, help="servers of this machine; all by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="measure cold starts as well")
    parser.add_argument("--most-s", type=float, help="0.3 by default, 0.5 for Ray")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    if not options.fleet and options.servers is None:
        parser.error("name a --fleet, or --servers")
    wishes = options_of(options.fleet_option)
    named = {name: partial(given, (name, wishes)) for name in options.fleet}
    asked = [] if options.servers is None else options.servers or SERVERS
    starts = [Start.COLD, Start.WARM] if options.cold else [Start.WARM]
    found: dict[str, dict[str, Any]] = {}
    # One after the other: idle servers take time from those that are measured.
    for label, fleet in (named | {f"{kind}, 2 nodes": SERVERS[kind] for kind in asked}).items():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                its = stack.enter_context(fleet(folder))
            except LackingError as error:
                print(f"left out: {error}")
                continue
            fleets = {
                LOCAL: opened(stack, LOCAL, FleetOptions(), folder / "here"),
                label: opened(stack, *its, folder / "there"),
            }
            found |= report(label, measured(fleets, starts, options.rounds))
    if not found:
        sys.exit("nothing was measured")
    if options.json:
        print(json.dumps(found))
    return int(
        any(
            each["start_more_s"] > (options.most_s or MOST_S.get(kind_of(name), MOST_OTHERS_S))
            for name, each in found.items()
        )
    )


def measured(
    fleets: Mapping[str, tuple[Session, Fleet]], starts: Sequence[Start], n_rounds: int
) -> dict[tuple[str, Start], list[TrialResult]]:
    """Results of trials in turns, by fleet and start; of an interrupted run the whole rounds."""
    for name, its in fleets.items():
        # A node's first warm trial starts its template.
        if Start.WARM in starts and run(*its, Start.WARM).start is not Start.WARM:
            sys.exit(f"{name}: its trials do not start warm")
    rounds: list[dict[tuple[str, Start], TrialResult]] = []
    # An interrupt, such as a time limit's, ends it after the rounds that are whole.
    with suppress(KeyboardInterrupt):
        for turn in range(n_rounds):
            order = list(fleets.items())
            rounds.append(
                {
                    (name, start): run(*its, start)
                    for name, its in (order if turn % 2 else order[::-1])
                    for start in starts
                }
            )
    if not rounds:
        sys.exit("interrupted before a round was whole")
    return {key: [each[key] for each in rounds] for key in rounds[0]}


def kind_of(name: str) -> str:
    """The kind of a fleet, as `--fleet` or a label begins with it."""
    return re.split(r"[:, ]", name, maxsplit=1)[0]


@contextmanager
def given(fleet: tuple[str, FleetOptions], folder: Path) -> Iterator[tuple[str, FleetOptions]]:
    """A fleet that is there already."""
    yield fleet


class LackingError(Exception):
    """This machine cannot run such servers."""


@contextmanager
def ssh(folder: Path) -> Iterator[tuple[str, FleetOptions]]:
    """Two nodes by ssh."""
    from tests.clusters.ssh import lacks_for_ssh_nodes, ssh_nodes

    needs(lacks_for_ssh_nodes())
    with ssh_nodes(made(folder / "ssh"), 2) as nodes:
        yield f"hostfile:{nodes.hostfile}", FleetOptions(ssh=nodes.ssh)


@contextmanager
def slurm(folder: Path) -> Iterator[tuple[str, FleetOptions]]:
    """Two nodes of Slurm."""
    from tests.clusters.slurm import lacks_for_slurm, slurm_cluster

    needs(lacks_for_slurm())
    with slurm_cluster(made(folder / "slurm"), 2) as cluster:
        os.environ.update(cluster.variables)
        yield "slurm:-N2", FleetOptions()


@contextmanager
def ray(folder: Path) -> Iterator[tuple[str, FleetOptions]]:
    """Two nodes of Ray."""
    from tests.clusters.ray import lacks_for_ray, ray_cluster

    needs(lacks_for_ray())
    with ray_cluster(2) as cluster:
        yield f"ray:{cluster.address}", FleetOptions()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[tuple[str, FleetOptions]]]] = {
    "ssh": ssh,
    "slurm": slurm,
    "ray": ray,
}
"""Real servers on this machine, by a name: they yield what `--fleet` and its options take."""


def needs(lacks: str) -> None:
    """Raise what the machine lacks, if it does."""
    if lacks:
        raise LackingError(lacks)


def made(folder: Path) -> Path:
    """A folder that is new."""
    folder.mkdir()
    return folder


def opened(
    stack: ExitStack, name: str, options: FleetOptions, folder: Path
) -> tuple[Session, Fleet]:
    """A search on a fleet that was not begun, and its fleet, until the stack ends."""
    held = stack.enter_context(obtained_fleet(name, options, say=print, agree=print))
    job = {**JOB, "study": "dispatch"}
    session = open_session(None, job, results=folder, fleet=held, options=options)
    session.study.lock()
    fleet = stack.enter_context(closing(session.make_fleet()))
    fleet.prepare(session.engine.preparation(session.lattice.candidates), print)
    return session, fleet


def run(session: Session, fleet: Fleet, start: Start) -> TrialResult:
    """One short trial of the candidate."""
    candidate = candidate_of(session, KNOBS)
    spec = spec_of(session, Run(candidate=candidate, role=Role.SEARCH))
    measure = replace(spec.measure, start=start, max_steps=spec.measure.min_steps, diagnoses=False)
    spec = replace(spec, measure=measure)
    result = fleet.submit(spec, folder_of(session, spec, candidate)).wait()
    if result is None or result.outcome is not Outcome.OK:
        sys.exit(f"a trial ended so: {result and (result.outcome, result.evidence)}")
    return result


def report(
    label: str, results: Mapping[tuple[str, Start], list[TrialResult]]
) -> dict[str, dict[str, Any]]:
    """Print the medians of a fleet and of this machine beside it, and return the fleet's."""
    found = {}
    print(f"{label:24}{'':6}{'start':>8}{'here':>8}{'more':>8}{'end':>8}{'more':>8}  s, medians")
    for start in sorted({start for _, start in results}):
        row: dict[str, Any] = {"rounds": len(results[label, start])}
        for part, phase in (("start", Phase.SPAWN), ("end", Phase.TEARDOWN)):
            there, here = (
                [result.phases_s[phase] for result in results[name, start]]
                for name in (label, LOCAL)
            )
            row[f"{part}_s"], row[f"{part}_here_s"] = map(statistics.median, (there, here))
            # Of each round: neighbours in time meet the same machine.
            pairs = zip(there, here, strict=True)
            row[f"{part}_more_s"] = statistics.median(mine - theirs for mine, theirs in pairs)
        found[f"{label} {start}"] = row
        print(
            f"{'':24}{start:6}{row['start_s']:8.2f}{row['start_here_s']:8.2f}"
            f"{row['start_more_s']:+8.2f}{row['end_s']:8.2f}{row['end_more_s']:+8.2f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
