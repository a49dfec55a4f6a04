"""How far changes of a configuration move the losses of the first steps.

    python benchmarks/guard_shares.py [--precision bf16 fp32] [--json]

Trains a small Llama on two CPU ranks, 20 steps each, and prints for every change the largest
difference of a loss from the plain run's, as a share of that loss; and what the plain losses
moved, of which the convergence guard allows a hundredth. No time is measured.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of, run_trial

from autotune.app.session import open_session
from autotune.contract import Role, Start
from autotune.engines.deepspeed.extensions import build
from autotune.fleet.transports.local import local_fleet
from autotune.record.guard import LEARNED_SHARE
from autotune.search.trial_spec import Run

STEPS = 20
RATE = 3e-4
BUCKET = 50_000
"""Elements; a bucket of the default size holds all gradients."""
PLAIN = {"zero.stage": 1, "micro_batch": 1, "reduce_bucket_size": BUCKET}
ZENFLOW = {
    "offload.optimizer": "cpu",
    "zenflow": "sequential",
    "zenflow.topk_ratio": 0.1,
    "zenflow.select_interval": 4,
}
CHANGES: dict[str, tuple[dict[str, Any], float]] = {
    "other micro-batches": ({"micro_batch": 4}, RATE),
    "other buckets": ({"reduce_bucket_size": 10 * BUCKET}, RATE),
    "stage 3": ({"zero.stage": 3}, RATE),
    "gradients reduced in the other precision": ({"communication_dtype": "other"}, RATE),
    "learning rate 10% higher": ({}, 1.1 * RATE),
    "learning rate twice as high": ({}, 2 * RATE),
    "ZenFlow": (ZENFLOW | {"zero.stage": 2}, RATE),
}
"""Change -> knobs beside the plain run's, and the learning rate."""
OTHER = {"bf16": "fp32", "fp32": "bf16"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precision", nargs="+", choices=OTHER, default=list(OTHER))
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    found = {precision: shares(precision) for precision in options.precision}
    if options.json:
        print(json.dumps(found))
    return 0


def shares(precision: str) -> dict[str, float]:
    """Largest difference of a loss by change, as a share."""
    plain = losses_of({}, RATE, precision)
    print(f"{precision}: plain losses {plain[0]:.4f} to {plain[-1]:.4f}", flush=True)
    found = {"allowed": LEARNED_SHARE * (max(plain) - min(plain)) / plain[0]}
    for change, (knobs, rate) in CHANGES.items():
        if knobs.get("communication_dtype") == "other":
            knobs = {"communication_dtype": OTHER[precision]}
        if "zenflow" in knobs and precision != "bf16":
            continue
        theirs = losses_of(knobs, rate, precision)
        apart = [abs(one - other) / other for one, other in zip(theirs, plain, strict=True)]
        found[change] = max(apart)
        print(f"{precision}: {change}: {max(apart):.2g}", flush=True)
    print(f"{precision}: allowed: {found['allowed']:.2g}", flush=True)
    return found


def losses_of(knobs: dict[str, Any], rate: float, precision: str) -> list[float]:
    """Losses of the first steps."""
    optimizer = {"type": "AdamW", "params": {"lr": rate}}
    job = {**JOB, "precision": precision, "optimizer": optimizer, "study": "guard_shares"}
    with tempfile.TemporaryDirectory() as scratch:
        session = open_session(None, job, results=Path(scratch))
        build(session.environment.accelerator, lambda line: print(line, file=sys.stderr))
        fleet = local_fleet(session.environment, world=session.job.world)
        try:
            candidate = candidate_of(session, PLAIN | knobs)
            run = Run(candidate=candidate, role=Role.CONFIRM, confirm_round=0, least_steps=STEPS)
            return run_trial(session, fleet, run, Start.WARM).losses[:STEPS]
        finally:
            fleet.close()


if __name__ == "__main__":
    sys.exit(main())
