"""What a fleet adds to the start and end of a trial, beside the same trial on this machine.

    python benchmarks/fleet_dispatch.py --servers [--rounds N] [--json]
    python benchmarks/fleet_dispatch.py --fleet FLEET [--fleet ...] [--rounds N] [--json]

`--servers` starts what the tests start on this machine, and measures all of them: two nodes by
ssh (root, iproute2, OpenSSH's server), two of Slurm (root, slurmctld, slurmd) and two of Ray, a
slot and a core each. What the machine lacks is left out and named. FLEET is what `search --fleet`
takes. Trials of one candidate run on this machine and on each fleet in turns, cold and warm, after
one that starts the nodes' templates. `start` is the time from submit until the slowest rank runs;
where the coordinator is another machine than the node, from when the trial came there. `end` is
the time from the last step until the result is here. Exits with 1 where the start of a fleet takes
more than `--most-s` longer than here: the median of the rounds' differences.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of, folder_of, spec_of

from autotune.app.session import Session, obtained_fleet, open_session
from autotune.contract import Outcome, Phase, Role, Start, TrialResult
from autotune.fleet.base import Fleet
from autotune.fleet.options import FleetOptions, options_of
from autotune.search.trial_spec import Run

LOCAL = "local"
KNOBS = {"zero.stage": 1, "micro_batch": 8}
MOST_S = {"ray": 0.5}
"""Most seconds that a fleet may add to a start, by its kind."""
MOST_OTHERS_S = 0.3
REPOSITORY = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", action="append", default=[], help="may be repeated")
    parser.add_argument("--fleet-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--servers", action="store_true", help="ssh, Slurm and Ray of this machine"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most-s", type=float, help="0.3 by default, 0.5 for Ray")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    if not options.fleet and not options.servers:
        parser.error("name a --fleet, or --servers")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asked = {name: (name, options_of(options.fleet_option)) for name in options.fleet}
        if options.servers:
            asked |= servers(stack, folder)
        asked = {LOCAL: (LOCAL, FleetOptions()), **asked}
        fleets = {
            label: opened(stack, *its, folder / f"study-{place}")
            for place, (label, its) in enumerate(asked.items())
        }
        # A node's first warm trial starts its template.
        warm = {name for name, own in fleets.items() if run(*own, Start.WARM).start is Start.WARM}
        rounds: list[dict[tuple[str, Start], TrialResult]] = []
        # An interrupt, such as a time limit's, ends it after the rounds that are whole.
        with suppress(KeyboardInterrupt):
            for turn in range(options.rounds):
                order = list(fleets.items())
                rounds.append(
                    {
                        (name, start): run(session, fleet, start)
                        for name, (session, fleet) in (order if turn % 2 else order[::-1])
                        for start in (Start.COLD, *([Start.WARM] if name in warm else []))
                    }
                )
    if not rounds:
        sys.exit("interrupted before a round was whole")
    found = report({key: [each[key] for each in rounds] for key in sorted(rounds[0])})
    if options.json:
        print(json.dumps(found))
    return int(
        any(
            each["start_more_s"] > (options.most_s or MOST_S.get(kind_of(name), MOST_OTHERS_S))
            for name, each in found.items()
        )
    )


def kind_of(name: str) -> str:
    """The kind of a fleet, as `--fleet` or a label begins with it."""
    return re.split(r"[:, ]", name, maxsplit=1)[0]


def servers(stack: ExitStack, folder: Path) -> dict[str, tuple[str, FleetOptions]]:
    """Fleets of real servers on this machine, by a label, until the stack ends."""
    sys.path.append(str(REPOSITORY))
    from tests.clusters.ray import lacks_for_ray, ray_cluster
    from tests.clusters.slurm import lacks_for_slurm, slurm_cluster
    from tests.clusters.ssh import lacks_for_ssh_nodes, ssh_nodes

    found = {}
    if not say_lack(lacks_for_ssh_nodes()):
        (folder / "ssh").mkdir()
        nodes = stack.enter_context(ssh_nodes(folder / "ssh", 2))
        found["ssh, 2 nodes"] = (f"hostfile:{nodes.hostfile}", FleetOptions(ssh=nodes.ssh))
    if not say_lack(lacks_for_slurm()):
        (folder / "slurm").mkdir()
        cluster = stack.enter_context(slurm_cluster(folder / "slurm", 2))
        os.environ.update(cluster.variables)
        found["slurm, 2 nodes"] = ("slurm:-N2", FleetOptions())
    if not say_lack(lacks_for_ray()):
        made = stack.enter_context(ray_cluster(2))
        found["ray, 2 nodes"] = (f"ray:{made.address}", FleetOptions())
    return found


def say_lack(reason: str) -> str:
    """Say why servers are left out; empty: they are not."""
    if reason:
        print(f"left out: {reason}")
    return reason


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


def report(ended: Mapping[tuple[str, Start], list[TrialResult]]) -> dict[str, Any]:
    """Print the medians of each fleet and start, and return them."""
    found = {}
    print(f"{'fleet':32}{'':6}{'start':>8}{'more':>8}{'end':>8}{'more':>8}  s, medians")
    for (name, start), results in ended.items():
        row = {}
        for part, phase in (("start", Phase.SPAWN), ("end", Phase.TEARDOWN)):
            own = [result.phases_s[phase] for result in results]
            here = [result.phases_s[phase] for result in ended[LOCAL, start]]
            row[f"{part}_s"] = statistics.median(own)
            # Of each round: neighbours in time meet the same machine.
            pairs = zip(own, here, strict=True)
            row[f"{part}_more_s"] = statistics.median(mine - theirs for mine, theirs in pairs)
        found[f"{name} {start}"] = row
        print(
            f"{name:32}{start:6}{row['start_s']:8.2f}{row['start_more_s']:+8.2f}"
            f"{row['end_s']:8.2f}{row['end_more_s']:+8.2f}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
