"""What do listed configurations do here, and what was predicted? One trial of each, in turn.

    python benchmarks/listed_candidates.py LIST --out FILE.csv [--accelerators FILE] [--minutes N]
    python benchmarks/listed_candidates.py LIST --out FILE.csv --predict simulate:1xH100

LIST is a YAML file: `jobs`, by name, each a job and its `configurations`, whose knobs are tried in
the order of the file. FILE.csv gets a row as soon as a trial has ended, whatever its outcome, with
the step time and the peak memory that were predicted before; those that it holds already are not
run again. With --accelerators predictions go by the file of a probe. With --predict nothing runs:
the predictions of the rows that FILE.csv holds are made anew, for the devices that are named. The
last lines are the errors of the predictions, in the median. The studies lie beside FILE.csv, for
`tests.record_tried`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from plain_agreement import candidate_of, folder_of, spec_of

from autotune.app.session import open_session
from autotune.contract import Outcome, Role, TrialResult
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.accelerators import Accelerator, accelerators_with
from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.plans import plans_of
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.session import Session
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate

LEAST_S = 25.0
"""Time below which no further trial is begun."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="table of what came of them")
    parser.add_argument("--accelerators", type=Path, help="file of a probe, for predictions")
    parser.add_argument("--predict", metavar="FLEET", help="predict anew, and run nothing")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of them")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.minutes * 60
    jobs = yaml.safe_load(options.list.read_text(encoding="utf-8"))["jobs"]
    table = accelerators_with(options.accelerators)
    rows = pd.read_csv(options.out).to_dict("records") if options.out.exists() else []
    if options.predict:
        predict_anew(rows, jobs, options.predict, table)
        write(rows, options.out)
        print("\n".join([*map(said, rows), errors(pd.DataFrame(rows))]))
        return 0
    done = {(row["job"], row["knobs"]) for row in rows}
    studies = options.out.with_suffix(".studies")
    for name, wanted in jobs.items():
        session = open_session(None, {**wanted["job"], "study": name}, results=studies)
        build(session.environment.accelerator, print)
        with closing(local_fleet(session.environment, world=session.job.world)) as fleet:
            for knobs in wanted["configurations"]:
                if (name, said_of(knobs)) in done:
                    continue
                if ends_s - time.monotonic() < LEAST_S:
                    print("the time is over; the same command goes on")
                    break
                row = tried(session, fleet, knobs, table)
                rows.append({"job": name, "knobs": said_of(knobs), **row})
                write(rows, options.out)
                print(said(rows[-1]), flush=True)
    if rows:
        print(errors(pd.DataFrame(rows)))
    return 0


def predict_anew(
    rows: list[dict[str, Any]], jobs: dict[str, Any], fleet: str, table: tuple[Accelerator, ...]
) -> None:
    """Put today's predictions in the place of those that stand in the rows."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, wanted in jobs.items():
            wish = {**wanted["job"], "study": name}
            session = open_session(None, wish, results=Path(scratch), fleet=fleet)
            known = {said_of(knobs): knobs for knobs in wanted["configurations"]}
            for row in rows:
                if row["job"] == name and row["knobs"] in known:
                    candidate = candidate_of(session, known[row["knobs"]])
                    row.update(predicted(session, candidate, table))


def predicted(
    session: Session, candidate: Candidate, table: tuple[Accelerator, ...]
) -> dict[str, float]:
    """Step time and peak memory, uncorrected by any trial."""
    plans = plans_of([candidate], session.job, session.environment, accelerators=table)
    guess = predict(plans, constants_of(session.environment))
    return {
        "predicted_step_time_s": float(guess.step_time_s[0]),
        "predicted_peak_memory_bytes": float(guess.peak_memory_bytes[0]),
    }


def tried(
    session: Session, fleet: GangFleet, knobs: dict[str, Any], table: tuple[Accelerator, ...]
) -> dict[str, Any]:
    """One configuration: what was predicted, and what came of its trial."""
    candidate = candidate_of(session, knobs)
    job = session.job
    about = {
        "model": session.job.model.name,
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "world": job.world,
        "memory_limit_bytes": job.memory_limit_bytes,
    }
    if violations := session.engine.judge(candidate):
        return {**about, "outcome": "illegal", "evidence": violations[0].message}
    result = run(session, fleet, candidate)
    return {
        **about,
        "outcome": str(result.outcome),
        "evidence": " ".join(result.evidence.split())[:200],
        "start": str(result.start),
        "samples_per_s": result.samples_per_s,
        "step_time_s": result.step_time_s,
        "step_time_low_s": result.step_time_low_s,
        "step_time_high_s": result.step_time_high_s,
        "peak_memory_bytes": result.peak_memory_bytes,
        **predicted(session, candidate, table),
        "context_and_comm_bytes": result.memory_bytes.get("context_and_comm"),
        "loss_first": result.loss_first,
        "loss_last": result.loss_last,
        "wall_s": result.wall_s,
        "phases_s": json.dumps({str(p): round(s, 2) for p, s in result.phases_s.items()}),
    }


def run(session: Session, fleet: GangFleet, candidate: Candidate) -> TrialResult:
    """A trial as a search runs it, without the diagnostic pass."""
    spec = spec_of(session, Run(candidate=candidate, role=Role.SEARCH))
    spec = replace(spec, measure=replace(spec.measure, diagnoses=False))
    folder = folder_of(session, spec, candidate)
    result = fleet.submit(spec, folder).wait()
    session.study.write_result(folder, result)
    if result.outcome is not Outcome.OK:
        print((folder / "stderr.log").read_text(encoding="utf-8")[-1500:], file=sys.stderr)
    return result


def said_of(knobs: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in knobs.items())


def said(row: dict[str, Any]) -> str:
    """A line of what came of a configuration."""
    if row["outcome"] != Outcome.OK:
        return f"{row['job']}: {row['knobs']}: {row['outcome']}: {row['evidence']}"
    return (
        f"{row['job']}: {row['knobs']}: {row['samples_per_s']:.4g} samples/s, step "
        f"{row['step_time_s'] * 1e3:.1f} ms (predicted {row['predicted_step_time_s'] * 1e3:.1f}), "
        f"peak {row['peak_memory_bytes'] / 2**30:.2f} GiB (predicted "
        f"{row['predicted_peak_memory_bytes'] / 2**30:.2f}), {row['start']}, {row['wall_s']:.1f} s"
    )


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Write the whole table; a reader never meets half of one."""
    new = out.with_suffix(".new")
    pd.DataFrame(rows).to_csv(new, index=False, float_format="%.6g")
    os.replace(new, out)


def errors(rows: pd.DataFrame) -> str:
    """Errors of the predictions by job, in the median, and the rank correlation of step times."""
    lines = []
    for job, theirs in rows[rows["outcome"] == "ok"].groupby("job", sort=False):
        of_time = np.abs(theirs["predicted_step_time_s"] / theirs["step_time_s"] - 1)
        of_memory = np.abs(theirs["predicted_peak_memory_bytes"] / theirs["peak_memory_bytes"] - 1)
        rank = theirs["predicted_step_time_s"].rank().corr(theirs["step_time_s"].rank())
        lines.append(
            f"{job}: {len(theirs)} ran; step time {of_time.median():.1%} and memory "
            f"{of_memory.median():.1%} off in the median, rank correlation {rank:.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
