"""What a fleet adds to a trial besides what the ranks do, beside the same trial on this machine.

    python benchmarks/fleet_dispatch.py --fleet FLEET [--fleet ...] [--rounds N] [--json]

FLEET is what `search --fleet` takes. Trials of one candidate run on this machine and on each
fleet in turns, cold and warm. `start` is the time from submit until the slowest rank's process
runs; a node on another machine counts it from when the trial came there. `besides` is all of a
trial's wall time that no phase of its ranks after that took: the start, the ways there and back,
and the end of the processes. Exits with 1 where a fleet's median of that is more than `--most-s`
above this machine's.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of

from autotune.app.session import Session, obtained_fleet, open_session
from autotune.contract import Outcome, Phase, Role, Start, TrialResult
from autotune.fleet.base import Fleet
from autotune.fleet.options import FleetOptions, options_of
from autotune.search.trial_spec import Run, make_spec

LOCAL = "local"
KNOBS = {"zero.stage": 1, "micro_batch": 8}
MOST_S = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", action="append", required=True, help="may be repeated")
    parser.add_argument("--fleet-option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most-s", type=float, default=MOST_S)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleets = {
            name: opened(stack, name, options_of(options.fleet_option), folder / str(place))
            for place, name in enumerate([LOCAL, *options.fleet])
        }
        for session, fleet in fleets.values():  # a node's first trial starts its template
            run(session, fleet, Start.WARM)
        ended: dict[tuple[str, Start], list[TrialResult]] = {}
        for turn in range(options.rounds):
            order = list(fleets.items())
            for name, (session, fleet) in order if turn % 2 else order[::-1]:
                for start in Start:
                    ended.setdefault((name, start), []).append(run(session, fleet, start))
    found = report(ended)
    if options.json:
        print(json.dumps(found))
    return int(any(each["more_s"] > options.most_s for each in found.values()))


def opened(
    stack: ExitStack, name: str, options: FleetOptions, folder: Path
) -> tuple[Session, Fleet]:
    """A search on a fleet that was not begun, and its fleet, until the stack ends."""
    chosen = FleetOptions() if name == LOCAL else options
    held = stack.enter_context(obtained_fleet(name, chosen, say=print, agree=print))
    job = {**JOB, "study": "dispatch"}
    session = open_session(None, job, results=folder, fleet=held, options=chosen)
    session.study.lock()
    fleet = stack.enter_context(closing(session.make_fleet()))
    fleet.prepare(session.engine.preparation(session.lattice.candidates), print)
    return session, fleet


def run(session: Session, fleet: Fleet, start: Start) -> TrialResult:
    """One short trial of the candidate."""
    candidate = candidate_of(session, KNOBS)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study=session.study.name,
        number=session.study.next_number(),
        job=session.job,
        engine=session.engine,
        environment=session.environment,
    )
    measure = replace(spec.measure, start=start, max_steps=spec.measure.min_steps, diagnoses=False)
    spec = replace(spec, measure=measure)
    folder = session.study.write_spec(spec, session.engine.files(candidate))
    result = fleet.submit(spec, folder).wait()
    if result is None or result.outcome is not Outcome.OK or result.start != start:
        sys.exit(f"a trial to start {start} ended so: {result}")
    return result


def report(ended: Mapping[tuple[str, Start], list[TrialResult]]) -> dict[str, Any]:
    """Print the medians of each fleet and start, and return them."""
    found = {}
    print(f"{'fleet':32}{'':6}{'start':>8}{'besides':>9}{'more than here':>16}  s, medians")
    for (name, start), results in ended.items():
        here = [besides_s(result) for result in ended[LOCAL, start]]
        own = [besides_s(result) for result in results]
        row = {
            "start_s": statistics.median(r.phases_s[Phase.SPAWN] for r in results),
            "besides_s": statistics.median(own),
            # Of each round: neighbours in time meet the same machine.
            "more_s": statistics.median(a - b for a, b in zip(own, here, strict=True)),
        }
        found[f"{name} {start}"] = row
        print(
            f"{name:32}{start:6}{row['start_s']:8.2f}{row['besides_s']:9.2f}{row['more_s']:+16.2f}"
        )
    return found


def besides_s(result: TrialResult) -> float:
    """Seconds of a trial that its ranks did not take once they ran."""
    return result.wall_s - sum(
        seconds for phase, seconds in result.phases_s.items() if phase is not Phase.SPAWN
    )


if __name__ == "__main__":
    sys.exit(main())
