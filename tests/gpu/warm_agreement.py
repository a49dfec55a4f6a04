"""Do warm trials train as cold ones do? `python -m tests.gpu.warm_agreement COLD WARM`.

COLD and WARM are studies of one job. Trials of the same candidate, seed and order of data are put
side by side: the losses of their first steps must agree. A warm trial proves more by having run:
its template refuses to fork with a second thread, or after it has asked CUDA's driver. The exit
code is 1 where losses differ, 3 where there is nothing to compare. What a warm start
saves is in the tables of `tests.gpu.gather`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from autotune.contract import Outcome, Start, TrialResult
from autotune.record.study import Study

TOLERANCE = 2e-3
"""Largest relative difference of two losses: a GPU adds up in another order in every run, and
bf16 holds three digits."""


def main(arguments: list[str]) -> int:
    """Print the comparison as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cold", type=Path, help="a study whose trials started cold")
    parser.add_argument("warm", type=Path, help="a study of the same job, started warm")
    options = parser.parse_args(arguments)
    cold, warm = _results(options.cold), _results(options.warm)
    pairs = [
        _pair(left, right)
        for key, left in cold.items()
        if left.start is Start.COLD
        if (right := warm.get(key)) is not None and right.start is Start.WARM
    ]
    worst = max((pair["largest_difference"] for pair in pairs), default=None)
    told: dict[str, Any] = {"pairs": pairs, "largest_difference": worst, "tolerance": TOLERANCE}
    print(json.dumps(told, indent=1))
    if worst is None:
        print(
            f"nothing to compare: no candidate ran cold in {options.cold} and warm in "
            f"{options.warm}",
            file=sys.stderr,
        )
        return 3
    return int(worst > TOLERANCE)


def _results(study: Path) -> dict[tuple[str, int], TrialResult]:
    """Results by candidate and round of the comparison, whose data come in another order."""
    found = {}
    for trial in Study(study.parent, study.name).trials():
        result = trial.result
        if result is not None and result.outcome is Outcome.OK:
            identity = trial.spec.identity
            found[identity.candidate_hash, identity.confirm_round or 0] = result
    return found


def _pair(cold: TrialResult, warm: TrialResult) -> dict[str, Any]:
    differences = [abs(a - b) / abs(a) for a, b in zip(cold.losses, warm.losses, strict=False)]
    return {
        "candidate": cold.candidate_hash,
        "n_losses": len(differences),
        "largest_difference": max(differences, default=0.0),
        "step_time_ratio": warm.step_time_s / cold.step_time_s
        if warm.step_time_s and cold.step_time_s
        else None,
        "wall_s": [round(cold.wall_s, 1), round(warm.wall_s, 1)],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
