"""How many trials a search needs to find its baseline, with and without the forecast.

Each problem is a job on accelerators that nobody needs to have; a trial answers by the memory that
the cost model predicts, times a factor by which the model is wrong for all candidates, times an
error of the candidate's own. The baseline is what the ladder holds first that fits by that. Blind
climbing bisects the ladder as if nothing were predicted.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from autotune.contract import Outcome, Role, TrialResult
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.accelerators import shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine
from autotune.job.job import Job, make_job
from autotune.planning.lattice import Lattice
from autotune.planning.outlook import FleetWishes, described
from autotune.record.study import Study, Trial
from autotune.search.climb import Rung, UntriedError, climb
from autotune.search.history import History
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import Steering, steering_of
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate

PROBLEMS = (
    ("llama-3-8b", "H100", 8, 4096, 64),
    ("llama-3-8b", "A100-80GB", 8, 8192, 128),
    ("llama-2-7b", "A100-40GB", 8, 2048, 256),
    ("llama-2-13b", "H100", 8, 4096, 128),
    ("llama-2-70b", "H200", 64, 4096, 512),
    ("llama-3.2-1b", "A100-40GB", 4, 2048, 64),
    ("gpt2-xl", "V100-32GB", 8, 1024, 256),
    ("mistral-7b", "L40S", 8, 4096, 64),
    ("qwen2.5-7b", "H100", 16, 4096, 256),
)
"""Model, accelerator, world, tokens per sample, samples per step."""
OWN_ERROR = 0.03
"""Deviation of a candidate's own error, of the logarithm."""


@dataclass(kw_only=True)
class Problem:
    """A ladder, and what its candidates truly need."""

    job: Job
    engine: Engine
    environment: Environment
    steering: Steering
    ladder: list[list[Candidate]]
    predicted_bytes: dict[str, float]
    needed_bytes: dict[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)
    n_trials: int = 0

    def make_true(self, off: float, seed: int) -> None:
        """Choose what candidates need; the model is off by that factor."""
        numbers = np.random.default_rng(seed)
        self.needed_bytes = {
            key: said * off * math.exp(OWN_ERROR * float(numbers.standard_normal()))
            for key, said in self.predicted_bytes.items()
        }
        self.history, self.n_trials = History(), 0

    def fits(self, candidate: Candidate) -> bool:
        """Whether it fits in truth."""
        return self.needed_bytes[candidate.hash] <= self.steering.objective.allowed_bytes

    def best(self) -> Candidate | None:
        """The baseline by the truth."""
        wanted = (c for rung in self.ladder for c in reversed(rung))
        return next((c for c in wanted if self.fits(c) and not self.engine.judge(c)), None)

    def known(self, candidate: Candidate) -> Rung | None:
        """The answer of a trial that has run."""
        if self.history.find(candidate) is None:
            return None
        return Rung.RUNS if self.fits(candidate) else Rung.TOO_LARGE

    def ask(self, candidate: Candidate) -> Rung:
        """The answer of a trial that has run; of an illegal candidate without one."""
        if (known := self.known(candidate)) is not None:
            return known
        if self.engine.judge(candidate):
            return Rung.FAILS
        raise UntriedError(candidate)

    def run(self, candidate: Candidate) -> None:
        """Run its trial."""
        spec = make_spec(
            Run(candidate=candidate, role=Role.BASELINE),
            study="baseline",
            number=self.n_trials,
            job=self.job,
            engine=self.engine,
            environment=self.environment,
        )
        need_bytes = int(self.needed_bytes[candidate.hash])
        ran = self.fits(candidate)
        result = TrialResult(
            number=self.n_trials,
            role=Role.BASELINE,
            candidate_hash=candidate.hash,
            outcome=Outcome.OK if ran else Outcome.OOM,
            step_time_s=1.0 if ran else None,
            samples_per_s=1.0 if ran else None,
            peak_memory_bytes=need_bytes if ran else None,
        )
        self.history = self.history.with_trial(Trial(folder=Path(), spec=spec, result=result))
        self.n_trials += 1

    def climb(self, *, blindly: bool) -> Candidate | None:
        """The baseline that a search finds, trial by trial."""
        while True:
            try:
                risks = partial(self.steering.risk, self.history)
                legal = [[c for c in rung if not self.engine.judge(c)] for rung in self.ladder]
                found, _ = climb(legal, self.known, self.ask, None if blindly else risks)
                return found
            except UntriedError as untried:
                self.run(untried.candidate)


def problem_of(model: str, gpu: str, world: int, seq_len: int, global_batch: int) -> Problem:
    """The ladder of a job on a described fleet.

    Raises:
        JobError: There is no such model or accelerator.
    """
    environment = described(FleetWishes(gpu=gpu), shipped_accelerators(), where="--gpu")
    precision = "bf16" if "bf16" in environment.precisions else "fp16"
    job = make_job(
        {
            "model": model,
            "seq_len": seq_len,
            "global_batch": global_batch,
            "world": world,
            "precision": precision,
        },
        where="benchmark",
    )
    engine = bind_engine(job, environment)
    ladder = [list(rung) for rung in engine.ladder()]
    candidates = [candidate for rung in ladder for candidate in rung]
    lattice = Lattice(
        candidates=candidates,
        context=engine.context,
        grid_size=len(candidates),
    )
    peaks = predict(engine.plans(candidates), constants_of(environment)).peak_memory_bytes
    return Problem(
        job=job,
        engine=engine,
        environment=environment,
        steering=steering_of(
            Session(
                job=job,
                engine=engine,
                place=RecordedPlace(environment, {}),
                study=Study(Path(), "baseline"),
                known_lattice=lattice,
            )
        ),
        ladder=ladder,
        predicted_bytes={c.hash: float(p) for c, p in zip(candidates, peaks, strict=True)},
    )


def count_trials(
    problems: Sequence[Problem], *, off: float, seeds: Sequence[int], blindly: bool
) -> tuple[list[int], int]:
    """Trials until the baseline is found, and how often another one was found.

    Args:
        problems: Those that have a baseline by the truth count.
        off: What candidates need, as a multiple of what is predicted.
        seeds: Of the candidates' own errors.
        blindly: Whether to climb without the forecast.
    """
    counts, n_others = [], 0
    for problem in problems:
        for seed in seeds:
            problem.make_true(off, seed)
            wanted = problem.best()
            if wanted is None:
                continue
            n_others += problem.climb(blindly=blindly) != wanted
            counts.append(problem.n_trials)
    return counts, n_others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="errors of candidates to draw")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    problems = [problem_of(*each) for each in PROBLEMS]
    found = []
    for off in (1.0, 1 / 1.2, 1.2):
        for blindly in (True, False):
            counts, n_others = count_trials(
                problems, off=off, seeds=range(options.seeds), blindly=blindly
            )
            found.append(
                {
                    "off": off,
                    "climbs": "blindly" if blindly else "by the forecast",
                    "searches": len(counts),
                    "mean": statistics.fmean(counts),
                    "median": statistics.median(counts),
                    "at_most": max(counts),
                    "another_baseline": n_others,
                }
            )
    if options.json:
        print(json.dumps(found))
        return
    print("needed / predicted  climbs           searches  trials: mean  median  at most  another")
    for row in found:
        print(
            f"{row['off']:18.2f}  {row['climbs']:15}  {row['searches']:8}  {row['mean']:12.1f}  "
            f"{row['median']:6g}  {row['at_most']:7}  {row['another_baseline']:7}"
        )


if __name__ == "__main__":
    main()
