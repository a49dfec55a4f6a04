"""Standings and snapshots to show."""

import dataclasses

from autotune.contract import KnobValue, Outcome, Phase, Role
from autotune.job.job import make_job
from autotune.record.answer import Speedup, Standing
from autotune.search.base import Snapshot, Stage
from autotune.search.confirm import Comparison
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.race import COLD, Race
from autotune.search.runner import Running
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from tests.jobs import CPU

JOB = make_job({"model": "tiny-gpt2", "seq_len": 64, "global_batch": 16, "world": 2}, where="test")
CONTEXT = Context(
    model=JOB.model.shape, world=2, global_batch=16, precision="bf16", accelerator="cpu"
)
SPEED = JOB.objective.name


def candidate(**knobs: KnobValue) -> Candidate:
    """`zero__stage=2` is the knob `zero.stage`."""
    named = {name.replace("__", "."): value for name, value in knobs.items()}
    return Candidate.of(named, world=2, global_batch=16)


def standing(trial: int, samples_per_s: float, **knobs: KnobValue) -> Standing:
    return Standing(
        trial=trial,
        candidate=candidate(**knobs),
        samples_per_s=samples_per_s,
        samples_per_s_low=samples_per_s * 0.98,
        samples_per_s_high=samples_per_s * 1.02,
        peak_memory_bytes=800 * 2**20,
        n_runs=1,
        n_disturbed=0,
    )


def comparison(n_rounds: int = 2, **changes: object) -> Comparison:
    """Two rounds of a final comparison; its figures are lower than those of the search."""

    def ran(trial: int, samples_per_s: float, **knobs: KnobValue) -> Standing:
        return dataclasses.replace(standing(trial, samples_per_s, **knobs), n_runs=2)

    shown = Comparison(
        members=(),
        baseline=None,
        first_round=0,
        rules=COLD,
        history=History(),
        objective=Objective.of(JOB, CPU),
    )
    figures = {
        "race": Race(peaks={}, baseline=None, logs={}, n_rounds=n_rounds, rules=COLD),
        "leader": ran(5, 55.0, zero__stage=1, micro_batch=4, overlap_comm=True),
        "start": ran(1, 50.0, zero__stage=0, micro_batch=8),
        "others": (ran(7, 54.0, zero__stage=2, micro_batch=4),),
        "gain": Speedup(ratio=1.1, low=1.02, high=1.19),
    }
    vars(shown).update(figures | changes)
    return shown


def snapshot() -> Snapshot:
    long = candidate(
        zero__stage=3,
        micro_batch=4,
        recompute="every_2",
        offload__optimizer="cpu",
        offload__param="cpu",
        reduce_bucket_size=1000,
    )
    return Snapshot(
        stage=Stage.SEARCH,
        counts={Outcome.OK: 6, Outcome.OOM: 1},
        trials=(),
        n_done=7,
        n_budget=20,
        running=(
            Running(
                number=9,
                role=Role.SEARCH,
                candidate=long,
                phase=Phase.MEASURED,
                elapsed_s=4.1,
                usual_s=10.5,
            ),
        ),
        baseline=standing(1, 50.0, zero__stage=0, micro_batch=8),
        best=standing(5, 60.0, zero__stage=1, micro_batch=4, overlap_comm=True),
        elapsed_s=62.0,
        time_left_s=130.0,
        note="",
    )
