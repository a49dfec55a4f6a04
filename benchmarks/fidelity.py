"""What reduced trials are worth: searches on simulated devices, with them and without.

Every seed is another world: the analytic model is off by an error of its own for each candidate,
and a reduced trial errs a little otherwise than its candidate. Each search has the same number of
trials. Counted are the full ones among them, and the seconds of all steps that were measured,
until a candidate within 2% of the best of the lattice has run as it is.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.app.run import search
from autotune.app.session import open_session
from autotune.contract import Role
from autotune.search.base import Snapshot
from autotune.search.session import Session
from autotune.search.trial_spec import Run

SHARE = 0.02
"""A search is done within this share of the best."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """How one search went."""

    full_trials: int
    """Of the search proper, until it was done; all of them where it never was."""
    reduced_trials: int
    steps_s: float
    """Measured in reduced and full trials together, until then."""
    is_done: bool
    regret: float
    """How much slower than the best of the lattice the best one is that ran."""


class Silent:
    """Watches and says nothing."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """See `Observer`."""

    def on_note(self, note: str) -> None:
        """See `Observer`."""


def true_rates(session: Session) -> dict[str, float]:
    """Samples/s of every candidate of the lattice, by hash; 0 where it does not fit."""
    fleet = session.make_fleet()
    found = {}
    for candidate in session.lattice.candidates:
        spec = session.spec_of(Run(candidate=candidate, role=Role.SEARCH), 0)
        while candidate.hash not in found:
            result = fleet.submit(spec, Path()).poll()
            if result is not None and not result.outcome.is_platform_fault:
                found[candidate.hash] = result.samples_per_s or 0.0
            # Another run's luck.
            identity = dataclasses.replace(spec.identity, number=spec.identity.number + 1)
            spec = dataclasses.replace(spec, identity=identity)
    return found


def run(flags: dict[str, Any], fleet: str, results: Path) -> Found:
    """Search once, and see when it was done."""
    session = open_session(None, flags, fleet=fleet, results=results)
    truth = true_rates(session)
    best = max(truth.values())
    search(session, Silent(), fresh=True)
    full_trials, reduced_trials, steps_s, reached = 0, 0, 0.0, 0.0
    for trial in session.study.trials():
        if trial.spec.identity.role is Role.CONFIRM or trial.result is None:
            continue
        if trial.spec.identity.role is Role.SEARCH:
            steps_s += sum(trial.result.step_times_s)
            full_trials += trial.spec.identity.fidelity is None
            reduced_trials += trial.spec.identity.fidelity is not None
        if trial.spec.identity.fidelity is None and trial.result.outcome.is_measured:
            reached = max(reached, truth.get(trial.spec.identity.candidate_hash, 0.0))
        if reached >= best * (1 - SHARE):
            break
    return Found(
        full_trials=full_trials,
        reduced_trials=reduced_trials,
        steps_s=steps_s,
        is_done=reached >= best * (1 - SHARE),
        regret=1 - reached / best,
    )


def main() -> None:
    """Search with every fidelity and seed, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-2-7b")
    parser.add_argument("--fleet", default="simulate:8xH100")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--space", default="zero")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--fidelity", action="append", help="repeat it; layers=4 by default")
    arguments = parser.parse_args()
    flags = {
        name: getattr(arguments, name)
        for name in ("model", "seq_len", "global_batch", "world", "space", "trials")
    }
    for fidelity in (None, *(arguments.fidelity or ["layers=4"])):
        asked = {**flags, **({} if fidelity is None else {"fidelity": fidelity})}
        with tempfile.TemporaryDirectory(prefix="autotune-fidelity-") as folder:
            found = [
                run({**asked, "seed": seed}, arguments.fleet, Path(folder) / str(seed))
                for seed in range(arguments.seeds)
            ]
        figures = {
            "fidelity": fidelity or "full alone",
            "searches": len(found),
            "done": sum(each.is_done for each in found),
            "mean_full_trials": statistics.fmean(each.full_trials for each in found),
            "mean_reduced_trials": statistics.fmean(each.reduced_trials for each in found),
            "mean_steps_s": statistics.fmean(each.steps_s for each in found),
            "mean_regret": statistics.fmean(each.regret for each in found),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
