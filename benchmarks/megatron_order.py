"""Layouts of Megatron on CPU ranks: is their order the predicted one?

    python benchmarks/megatron_order.py [--layouts N] [--model NAME] [--record FILE [--seconds N]]

Trains layouts that are spread over the whole lattice, each for about a second after a warm start,
and compares step times and peak memory with what the cost model predicts. Reports rank
correlations (Spearman's), of the fastest step too: on a busy machine the median says what else
ran. With --seconds it stops in time, and the same command goes on from its file: with what is
lacking, then with what something else on the machine disturbed. The figures say nothing about
GPUs.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from plain_agreement import run_trial

from autotune.app.session import open_session
from autotune.contract import Role, Start, TrialResult
from autotune.cost.constants import constants_of
from autotune.cost.predict import Prediction, predict
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.session import Session
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
MEASURED = ("step_time_s", "fastest_step_s", "peak_memory_bytes", "disturbed")
"""What a row has of a trial."""
_LACKING = {"disturbed": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", type=int, default=64)
    parser.add_argument("--model", default=JOB["model"])
    parser.add_argument("--record", type=Path, help="file for the rows and the figures, as JSON")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time for new layouts")
    options = parser.parse_args()
    rows = recorded(options.record)
    stops_at_s = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as scratch:
        job = {**JOB, "model": options.model}
        session = open_session(None, job, results=Path(scratch))
        candidates = chosen(session, options.layouts, rows)
        fleet = local_fleet(session.environment, world=session.job.world)
        try:
            for candidate in (*lacking(session, candidates, rows), *candidates):
                layout = session.engine.describe(candidate)
                if time.monotonic() < stops_at_s and rows.get(layout, _LACKING)["disturbed"]:
                    rows[layout] = measured(measure(session, fleet, candidate))
        finally:
            fleet.close()
            found = report(session, candidates, rows)
            if options.record:
                options.record.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def lacking(
    session: Session, candidates: list[Candidate], rows: dict[str, dict[str, Any]]
) -> list[Candidate]:
    """Candidates that have no row."""
    return [each for each in candidates if session.engine.describe(each) not in rows]


def recorded(path: Path | None) -> dict[str, dict[str, Any]]:
    """Layouts that an earlier run of this command measured, in words -> what was measured."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["layout"]: {name: row[name] for name in MEASURED} for row in rows}


def chosen(session: Session, n: int, rows: dict[str, dict[str, Any]]) -> list[Candidate]:
    """The layouts that have a row, and others up to `n`."""
    layouts = [(session.engine.describe(each), each) for each in session.lattice.candidates]
    kept = [candidate for layout, candidate in layouts if layout in rows]
    others = [candidate for layout, candidate in layouts if layout not in rows]
    return [*kept, *spread(session, others, n - len(kept))]


def spread(session: Session, candidates: list[Candidate], n: int) -> list[Candidate]:
    """Layouts at even distances in the order of their predicted step times."""
    if n <= 0 or not candidates:
        return []
    order = np.argsort(prediction_of(session, candidates).step_time_s, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(n, len(order))).astype(int))
    return [candidates[int(order[place])] for place in places]


def prediction_of(session: Session, candidates: list[Candidate]) -> Prediction:
    """What a search on these ranks is told before its first trial."""
    constants = constants_of(session.environment)
    return predict(session.engine.plans(candidates), constants)


def measure(session: Session, fleet: GangFleet, candidate: Candidate) -> TrialResult:
    """One short trial, after a warm start."""
    run = Run(candidate=candidate, role=Role.SEARCH)
    return run_trial(session, fleet, run, start=Start.WARM, budget_s=SECONDS)


def measured(result: TrialResult) -> dict[str, Any]:
    """What is kept of a trial."""
    return {
        "step_time_s": result.step_time_s,
        "fastest_step_s": min(result.step_times_s),
        "peak_memory_bytes": result.peak_memory_bytes,
        "disturbed": bool(result.disturbed),
    }


def report(
    session: Session, candidates: list[Candidate], rows: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Print how far the order is the predicted one, and return it with the rows."""
    tried = [each for each in candidates if session.engine.describe(each) in rows]
    prediction = prediction_of(session, tried)
    layouts = [session.engine.describe(candidate) for candidate in tried]
    table = pd.DataFrame([{"layout": layout, **rows[layout]} for layout in layouts])
    table["predicted_step_time_s"] = np.ravel(prediction.step_time_s)
    table["predicted_peak_memory_bytes"] = np.ravel(prediction.peak_memory_bytes)
    best = table["predicted_step_time_s"].idxmin()
    found: dict[str, Any] = {
        "command": "python benchmarks/megatron_order.py",
        "on": session.environment.device_name,
        "megatron_core": session.environment.megatron_core,
        "model": session.job.model.name,
        "layouts": len(table),
        "lacking": len(candidates) - len(table),
        "disturbed": int(table["disturbed"].sum()),
        "rank_correlation_step_time": ranked(table, "step_time_s"),
        "rank_correlation_fastest_step": ranked(table, "fastest_step_s", "step_time_s"),
        "rank_correlation_peak_memory": ranked(table, "peak_memory_bytes"),
        "error_of_fastest_step": off(table["predicted_step_time_s"], table["fastest_step_s"]),
        "error_of_peak_memory": off(
            table["predicted_peak_memory_bytes"], table["peak_memory_bytes"]
        ),
        "slowest_over_fastest": float(
            table["fastest_step_s"].max() / table["fastest_step_s"].min()
        ),
        "regret_of_the_predicted_best": float(
            table["fastest_step_s"][best] / table["fastest_step_s"].min()
        ),
    }
    for name, value in found.items():
        print(f"{name:32}{value}")
    return {**found, "rows": json.loads(table.to_json(orient="records"))}


def ranked(rows: pd.DataFrame, column: str, predicted: str = "") -> float:
    """Spearman's rank correlation of what was measured with what was predicted."""
    return float(rows[column].rank().corr(rows[f"predicted_{predicted or column}"].rank()))


def off(said: pd.Series, measured: pd.Series) -> float:
    """Median of |predicted / measured - 1|."""
    return float((said / measured - 1.0).abs().median())


if __name__ == "__main__":
    sys.exit(main())
