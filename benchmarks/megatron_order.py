"""Layouts of Megatron on CPU ranks: is their order the predicted one?

    python benchmarks/megatron_order.py [--layouts N] [--model NAME] [--record FILE]

Trains layouts that are spread over the whole lattice, each for about a second after a warm start,
and compares step times and peak memory with what the cost model predicted before the first of
them. Reports rank correlations (Spearman's). The figures say nothing about GPUs.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plain_agreement import run_trial

from autotune.app.session import Session, open_session
from autotune.contract import Outcome, Role, Start, TrialResult
from autotune.cost import predict
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate

JOB = {
    "engine": "megatron",
    "model": "tiny-llama",
    "seq_len": 128,
    "global_batch": 16,
    "world": 2,
    "precision": "fp32",
    "diagnose": False,
    "study": "order",
}
SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", type=int, default=64)
    parser.add_argument("--model", default=JOB["model"])
    parser.add_argument("--record", type=Path, help="file for the rows and the figures, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        job = {**JOB, "model": options.model}
        session = open_session(None, job, results=Path(scratch))
        candidates = spread(session, options.layouts)
        fleet = local_fleet(session.environment, world=session.job.world)
        try:
            results = [measure(session, fleet, candidate) for candidate in candidates]
        finally:
            fleet.close()
    found = report(session, candidates, results)
    if options.record:
        options.record.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["layouts"] == len(candidates) else 1


def spread(session: Session, n: int) -> list[Candidate]:
    """Layouts at even distances in the order of their predicted step times."""
    candidates = session.lattice.candidates
    times = predict(session.engine.plans(candidates)).step_time_s
    order = np.argsort(times, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(n, len(order))).astype(int))
    return [candidates[int(order[place])] for place in places]


def measure(session: Session, fleet: GangFleet, candidate: Candidate) -> TrialResult:
    """One short trial, after a warm start."""
    run = Run(candidate=candidate, role=Role.SEARCH)
    return run_trial(session, fleet, run, start=Start.WARM, budget_s=SECONDS)


def report(
    session: Session, candidates: list[Candidate], results: list[TrialResult]
) -> dict[str, Any]:
    """Print how far the order is the predicted one, and return it with the rows."""
    prediction = predict(session.engine.plans(candidates))
    rows = pd.DataFrame(
        {
            "layout": [session.engine.describe(candidate) for candidate in candidates],
            "outcome": [str(result.outcome) for result in results],
            "step_time_s": [result.step_time_s for result in results],
            "predicted_step_time_s": np.ravel(prediction.step_time_s),
            "peak_memory_bytes": [result.peak_memory_bytes for result in results],
            "predicted_peak_memory_bytes": np.ravel(prediction.peak_memory_bytes),
        }
    )
    ok = rows[rows["outcome"] == Outcome.OK]
    found: dict[str, Any] = {
        "command": "python benchmarks/megatron_order.py",
        "on": session.environment.device_name,
        "megatron_core": session.environment.megatron_core,
        "model": session.job.model.name,
        "layouts": len(ok),
        "rank_correlation_step_time": ranked(ok, "step_time_s"),
        "rank_correlation_peak_memory": ranked(ok, "peak_memory_bytes"),
        "slowest_over_fastest": float(ok["step_time_s"].max() / ok["step_time_s"].min()),
        "regret_of_the_predicted_best": float(
            ok.loc[ok["predicted_step_time_s"].idxmin(), "step_time_s"] / ok["step_time_s"].min()
        ),
    }
    for name, value in found.items():
        print(f"{name:32}{value}")
    return {**found, "rows": json.loads(rows.to_json(orient="records"))}


def ranked(rows: pd.DataFrame, column: str) -> float:
    """Spearman's rank correlation of what was measured with what was predicted."""
    return float(rows[column].rank().corr(rows[f"predicted_{column}"].rank()))


if __name__ == "__main__":
    sys.exit(main())
