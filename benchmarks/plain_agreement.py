"""Does a trial's figure match plain training? Trials and plain runs of the same configurations.

    python benchmarks/plain_agreement.py [--rounds N] [--case NAME] [--json]

For each case the trial (measured by autotune) and the plain run (`plain_training.py` on the
exported folder, which imports nothing of autotune) take turns, so that a busy machine meets both
alike; on CPU both keep the memory that they free, since how long the kernel takes to clear pages
wanders more than 5%. The ratio is the geometric mean over the rounds, with its 95% interval. Exits
with 1 if an interval lies outside 5%, and with 3 if one is too wide to tell: take more rounds or a
quieter machine.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.app.session import open_session
from autotune.base.errors import NothingFeasibleError
from autotune.base.student_t import t_quantile
from autotune.contract import Role, Start, TrialResult, TrialSpec
from autotune.devices.hardware import visible_gpus
from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.engines.deepspeed.knobs import environment_of
from autotune.export.door import export_handout, handout_of
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.session import Session
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical

TOLERANCE = 0.05
_LARGEST_LOG = 700.0
"""Of which `exp` is finite: one round has no interval."""
PLAIN = Path(__file__).with_name("plain_training.py")
JOB = {"model": "tiny-llama", "seq_len": 32, "global_batch": 16, "world": 2, "precision": "bf16"}
if GPUS := len(visible_gpus()):
    JOB |= {"model": "gpt2", "seq_len": 512, "global_batch": 8 * GPUS, "world": GPUS}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration to measure both ways."""

    name: str
    knobs: dict[str, Any]
    job: dict[str, Any]


CASES = (
    Case(name="grad_accum 8", knobs={"zero.stage": 1, "micro_batch": 1}, job={}),
    Case(name="tp 2", knobs={"zero.stage": 1, "micro_batch": 4, "tp": 2}, job={}),
    Case(name="fp16", knobs={"zero.stage": 2, "micro_batch": 4}, job={"precision": "fp16"}),
    Case(name="stage 3", knobs={"zero.stage": 3, "micro_batch": 8}, job={}),
    Case(
        name="offload",
        knobs={"zero.stage": 2, "micro_batch": 4, "offload.optimizer": "cpu"},
        job={},
    ),
    Case(
        name="recompute, fp32",
        knobs={"zero.stage": 0, "micro_batch": 8, "recompute": "full"},
        job={"precision": "fp32"},
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    os.environ.update(environment_of({"host_allocator": "keep"}))
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if options.case and case.name not in options.case:
                continue
            rows[case.name] = compare(case, Path(scratch) / case.name, options.rounds)
            print(f"{case.name:18}{worded(rows[case.name])}", flush=True)
    if options.json:
        print(json.dumps(rows))
    verdicts = {row["verdict"] for row in rows.values() if "verdict" in row}
    if "differs" in verdicts:
        return 1
    return 3 if "too noisy to tell" in verdicts else 0


def compare(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    try:
        session = open_session(None, {**JOB, **case.job, "study": "agreement"}, results=folder)
    except NothingFeasibleError as error:
        return {"refused": error.hint}
    build(session.environment.accelerator, print)
    candidate = candidate_of(session, case.knobs)
    if violations := session.engine.judge(candidate):
        return {"refused": violations[0].message}
    exported = export(session, candidate, folder / "export")
    fleet = local_fleet(session.environment, world=session.job.world)
    measured, plain = [], []
    for turn in range(rounds):
        # Each comes first in every second round: a machine that slows down favours neither.
        if turn % 2:
            plain.append(plain_samples_per_s(session, exported))
            measured.append(trial_samples_per_s(session, fleet, candidate, turn))
        else:
            measured.append(trial_samples_per_s(session, fleet, candidate, turn))
            plain.append(plain_samples_per_s(session, exported))
    return {
        "trial_samples_per_s": measured,
        "plain_samples_per_s": plain,
        **compared([math.log(m / p) for m, p in zip(measured, plain, strict=True)]),
    }


def compared(logs: list[float], tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Ratio, interval and verdict from each round's log ratio."""
    mean, half_width = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        half_width = t_quantile(0.975, len(logs) - 1) * error
    low, high = mean - half_width, mean + half_width
    limit = math.log(1 + tolerance)
    verdict = "too noisy to tell"
    if -limit <= low and high <= limit:
        verdict = "agrees"
    elif low > limit or high < -limit:
        verdict = "differs"
    return {
        "ratio": math.exp(mean),
        "low": math.exp(low),
        "high": math.exp(min(high, _LARGEST_LOG)),
        "verdict": verdict,
    }


def trial_samples_per_s(
    session: Session, fleet: GangFleet, candidate: Candidate, turn: int
) -> float:
    run = Run(candidate=candidate, role=Role.CONFIRM, confirm_round=turn)
    samples_per_s = run_trial(session, fleet, run).samples_per_s
    assert samples_per_s is not None
    return samples_per_s


def run_trial(
    session: Session,
    fleet: GangFleet,
    run: Run,
    start: Start | None = None,
    budget_s: float | None = None,
) -> TrialResult:
    """A measured trial, started another way and measured for so long where that is named."""
    spec = spec_of(session, run)
    if start is not None:
        spec = replace(spec, measure=replace(spec.measure, start=start))
    if budget_s is not None:
        spec = replace(spec, measure=replace(spec.measure, budget_s=budget_s))
    result = fleet.submit(spec, folder_of(session, spec, run.candidate)).wait()
    if result.samples_per_s is None:
        sys.exit(f"the trial of {run.candidate} ended {result.outcome}: {result.evidence}")
    return result


def spec_of(session: Session, run: Run) -> TrialSpec:
    """The next trial of a session's study."""
    return session.spec_of(run, session.study.next_number())


def folder_of(session: Session, spec: TrialSpec, candidate: Candidate) -> Path:
    """The folder of a trial, with what its ranks read."""
    session.study.trials_folder.mkdir(parents=True, exist_ok=True)
    return session.study.write_spec(spec, session.engine.files(candidate))


def export(session: Session, candidate: Candidate, folder: Path) -> Path:
    """The folder of a candidate's files for plain training."""
    export_handout(
        handout_of(
            candidate,
            engine=session.engine,
            job=session.job,
            environment=session.environment,
        ),
        folder,
        to="deepspeed",
    )
    return folder


def candidate_of(session: Session, knobs: dict[str, Any]) -> Candidate:
    """The canonical candidate of some knobs."""
    return Candidate.of(
        canonical(knobs, Context.of(session.job, session.environment)),
        world=session.job.world,
        global_batch=session.job.global_batch,
    )


def plain_samples_per_s(session: Session, exported: Path) -> float:
    done = subprocess.run(
        [sys.executable, str(PLAIN), str(exported), "--json"],
        env={**os.environ, **extensions_environment(session.environment.accelerator)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_s"])


def worded(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"not here: {row['refused']}"
    spread = " ".join(
        f"{t:.2f}/{p:.2f}"
        for t, p in zip(row["trial_samples_per_s"], row["plain_samples_per_s"], strict=True)
    )
    interval = f"{row['low']:.3f} to {row['high']:.3g}"
    return f"{row['verdict']}: {row['ratio']:.3f} of plain ({interval})  trial/plain {spread}"


if __name__ == "__main__":
    sys.exit(main())
