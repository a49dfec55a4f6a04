"""The calibrated sampler in anybody's study."""

from collections.abc import Callable

import numpy as np
import optuna
import pytest

from autotune.cost.forecast import Forecast
from autotune.cost.residual import Features
from autotune.search.calibrated import MEMORY_CONSTRAINT, PEAK_ATTRIBUTE, CalibratedSampler

TP, SIZE = (1, 1, 1, 2, 2, 2, 4, 4, 4), (1, 2, 4) * 3
N = len(TP)
LIMIT_BYTES = 50.0


def forecast() -> Forecast:
    tp, size = np.array(TP, float), np.array(SIZE, float)
    parts = np.stack([4 / size, tp, np.ones(N)], 1)
    return Forecast(
        seconds=parts.sum(axis=1),
        features=Features(
            shares=parts / parts.sum(axis=1, keepdims=True),
            position=np.log2(np.stack([tp, size], 1)),
        ),
        peak_bytes=10 + 12 * size / tp,
        limit_bytes=LIMIT_BYTES,
    )


def sampler(**changes: object) -> CalibratedSampler:
    return CalibratedSampler(
        {"tp": TP, "micro_batch": SIZE},
        **{"forecast": forecast(), "seed": 0, **changes},  # type: ignore[arg-type]
    )


def true_seconds(tp: int, size: int) -> float:
    """Splitting costs thrice what the forecast says."""
    return 4 / size + 3 * tp + 1


def objective(trial: optuna.Trial) -> float:
    tp = trial.suggest_int("tp", 1, 8)
    size = trial.suggest_categorical("micro_batch", [1, 2, 4])
    peak = 12 + 14 * size / tp
    trial.set_constraint(MEMORY_CONSTRAINT, float(peak > LIMIT_BYTES))
    if peak > LIMIT_BYTES:
        return 1e6
    trial.set_user_attr(PEAK_ATTRIBUTE, peak)
    return true_seconds(tp, size)


def run(
    n_trials: int,
    its: Callable[[optuna.Trial], float] = objective,
    *,
    direction: str = "minimize",
    chosen: CalibratedSampler | None = None,
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=direction, sampler=chosen or sampler())
    study.optimize(its, n_trials=n_trials)
    return study


def rows(study: optuna.Study) -> list[tuple[int, int]]:
    return [(t.params["tp"], t.params["micro_batch"]) for t in study.trials]


def test_only_candidates_are_proposed_and_none_twice() -> None:
    study = run(N)
    assert sorted(rows(study)) == sorted(zip(TP, SIZE, strict=True))


def test_the_best_is_found_early() -> None:
    assert (1, 2) in rows(run(4)), "(1, 4) is faster, and does not fit"


def test_a_rate_is_maximised_as_its_inverse_is_minimised() -> None:
    fast = run(6, lambda trial: 1 / objective(trial), direction="maximize")
    assert rows(fast) == rows(run(6))


def test_other_knobs_are_left_to_another_sampler() -> None:
    def with_bucket(trial: optuna.Trial) -> float:
        seconds = objective(trial)
        bucket = trial.suggest_float("bucket", 1e6, 1e9, log=True)
        return seconds * (1 + 0.02 * abs(np.log10(bucket) - 8))

    study = run(15, with_bucket)
    assert len({t.params["bucket"] for t in study.trials}) == 15
    assert len(set(rows(study))) < 15, "the same row with another bucket is another candidate"


def test_a_knob_that_does_not_act_in_a_row_is_not_the_rows_to_choose() -> None:
    stages = [0, 0, 0, 3, 3, 3, 3, 3, 3]
    buckets = [None if stage == 0 else size for stage, size in zip(stages, SIZE, strict=True)]
    chosen = CalibratedSampler(
        {"stage": stages, "micro_batch": SIZE, "bucket": buckets}, forecast=forecast(), seed=0
    )

    def its(trial: optuna.Trial) -> float:
        stage = trial.suggest_categorical("stage", [0, 3])
        size = trial.suggest_categorical("micro_batch", [1, 2, 4])
        if stage == 3:
            assert trial.suggest_categorical("bucket", [1, 2, 4]) == size
        return 1.0 + size

    assert len(run(6, its, chosen=chosen).trials) == 6


def test_a_trial_that_failed_is_not_tried_again() -> None:
    def fails(trial: optuna.Trial) -> float:
        objective(trial)
        raise ValueError("broken")

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    study = optuna.create_study(sampler=sampler())
    study.optimize(fails, n_trials=4, catch=ValueError)
    assert len(set(rows(study))) == 4


def test_trials_in_flight_are_different_ones() -> None:
    study = optuna.create_study(sampler=sampler())
    asked = [study.ask() for _ in range(4)]
    picked = {
        (t.suggest_int("tp", 1, 8), t.suggest_categorical("micro_batch", [1, 2, 4])) for t in asked
    }
    assert len(picked) == 4


def test_rows_that_are_closed_are_not_proposed() -> None:
    study = run(3, chosen=sampler(closed=[0, 1, 2]))
    assert all(tp > 1 for tp, _ in rows(study))


def test_a_study_goes_on_after_the_last_candidate() -> None:
    assert len(run(N + 2).trials) == N + 2


def test_a_study_that_does_not_allow_a_candidate_is_told_so() -> None:
    def narrow(trial: optuna.Trial) -> float:
        trial.suggest_int("tp", 2, 4)
        return 1.0

    with pytest.raises(ValueError, match="tp=1 of the candidates is not in the study's"):
        run(1, narrow)


def test_columns_and_forecast_are_equally_long() -> None:
    with pytest.raises(ValueError, match=r"columns of .* and a forecast of 9"):
        CalibratedSampler({"tp": (1, 2)}, forecast=forecast())
    with pytest.raises(ValueError, match="columns of"):
        CalibratedSampler({}, forecast=forecast())
