"""What trials say of the model's error: parts, bounds, other studies, and what stays unknown."""

import dataclasses
import time

import numpy as np
import pytest

from autotune.cost.normal import Floats, beyond_bound, log_expected_gain
from autotune.cost.residual import (
    MEMORY_PRIOR,
    TIME_PRIOR,
    ErrorFits,
    Features,
    Seen,
    _AtBounds,
    _with_bounds,
    calibrate,
)


def features(shares: Floats, position: Floats | None = None) -> Features:
    shares = np.asarray(shares, dtype=np.float64)
    if position is None:
        position = np.zeros((len(shares), 1))
    return Features(shares=shares, position=np.asarray(position, dtype=np.float64))


def mixed(n: int) -> Features:
    """Features of two parts, from all of the one to all of the other; one doubling each."""
    first = np.linspace(0, 1, n)
    return features(np.stack([first, 1 - first], 1), np.arange(n, dtype=float)[:, None] / 2)


def none_seen(at: Features) -> Seen:
    return Seen.here(at.take(np.array([], dtype=np.intp)), np.array([]))


def test_before_any_trial_the_forecast_stands_and_its_error_is_wide() -> None:
    at = mixed(5)
    found = calibrate(at, none_seen(at), TIME_PRIOR)
    assert found.mean == pytest.approx(0)
    assert (found.deviation > TIME_PRIOR.everywhere).all()


def test_an_error_that_all_share_is_learned_from_one_trial() -> None:
    at = mixed(5)
    seen = Seen.here(at.take(np.array([2])), np.array([0.4]))
    found = calibrate(at, seen, TIME_PRIOR)
    assert found.mean[2] == pytest.approx(0.4, abs=0.02)
    assert (found.mean > 0.1).all()
    assert found.deviation[2] == found.deviation.min()


def test_a_trial_that_is_far_off_says_less_of_other_layouts() -> None:
    # One whose host takes most of its time, and one whose products do, several doublings apart.
    at = features(np.array([[0.3, 0.7], [0.95, 0.05]]), np.array([[4.0, 1.0], [0.0, 3.0]]))
    moved = {
        error: calibrate(at, Seen.here(at.take(np.array([0])), np.array([error])), TIME_PRIOR)
        for error in (0.2, 1.2)
    }
    near, far = (found.mean[1] / error for error, found in moved.items())
    assert far < 0.8 * near < 0.5
    assert moved[1.2].deviation[1] > 1.5 * moved[0.2].deviation[1]


def test_the_part_that_is_wrong_is_found() -> None:
    # What is wrong is the first part alone, by half: log(1 + share / 2).
    at = mixed(9)
    truth = np.log1p(0.5 * at.shares[:, 0])
    rows = np.array([0, 4, 6])
    found = calibrate(at, Seen.here(at.take(rows), truth[rows]), TIME_PRIOR)
    assert found.mean[8] == pytest.approx(truth[8], abs=0.08)
    assert found.mean[2] == pytest.approx(truth[2], abs=0.05)
    assert abs(found.mean[8]) > abs(found.mean[2])


def test_what_is_alike_errs_alike_and_far_away_less_is_known() -> None:
    position = np.array([[0.0], [1.0], [8.0]])
    at = features(np.ones((3, 1)), position)
    rough = dataclasses.replace(
        TIME_PRIOR, rough=dataclasses.replace(TIME_PRIOR.rough, median=0.3)
    )
    found = calibrate(at, Seen.here(at.take(np.array([0])), np.array([0.5])), rough)
    assert found.deviation[0] < found.deviation[1] < found.deviation[2]
    assert found.mean[1] > found.mean[2]


def test_errors_beyond_all_that_was_believed_make_everything_less_certain() -> None:
    # Peaks off by as much as 60% and in no order, which the prior holds to be impossible.
    at, z = mixed(12), []
    rows = np.arange(0, len(at), 2)
    for seed in range(5):
        errors = np.random.default_rng(seed).normal(0.0, 0.4, len(at))
        found = calibrate(at, Seen.here(at.take(rows), errors[rows]), MEMORY_PRIOR)
        z += list(((errors - found.mean) / found.deviation)[rows + 1])
    # Without a factor common to the scales it is 18.
    assert np.sqrt(np.mean(np.square(z))) < 6


def test_out_of_memory_raises_the_estimate_and_no_more_than_it_must() -> None:
    at = mixed(5)
    row = np.array([2])

    def told(bound: float) -> float:
        seen = Seen.here(at.take(row), np.array([bound]), [1])
        return float(calibrate(at, seen, MEMORY_PRIOR).mean[2])

    assert told(0.1) > 0.1
    assert told(0.3) > told(0.1)
    assert told(-2.0) == pytest.approx(0, abs=1e-3), "it was known to need more than that"


def test_what_ran_with_nobody_looking_fits_at_least() -> None:
    at = mixed(5)
    row = np.array([2])
    ran = Seen.here(at.take(row), np.array([-0.2]), [-1])
    assert calibrate(at, ran, MEMORY_PRIOR).mean[2] < -0.2
    easily = Seen.here(at.take(row), np.array([2.0]), [-1])
    assert calibrate(at, easily, MEMORY_PRIOR).mean[2] == pytest.approx(0, abs=1e-3)


def test_a_bound_holds_beside_measurements() -> None:
    at = mixed(5)
    rows = np.array([0, 1, 4])
    seen = Seen.here(at.take(rows), np.array([0.0, 0.0, 0.3]), [0, 0, 1])
    found = calibrate(at, seen, MEMORY_PRIOR)
    assert found.mean[4] > found.mean[3] > found.mean[1]
    assert found.mean[0] == pytest.approx(0, abs=0.05)


def with_bounds(n: int, n_bounds: int) -> Seen:
    """Trials of which the last ran out of memory a little above what the model says."""
    side = np.where(np.arange(n) < n - n_bounds, 0.0, 1.0)
    return Seen.here(mixed(n), np.where(side > 0, 0.05, 0.02 * np.cos(np.arange(n))), side)


def test_what_bounds_say_one_by_one_is_what_a_fit_of_all_of_them_says() -> None:
    seen = with_bounds(12, 4)
    seen.side[-1] = -1  # and one ran, with nobody looking
    values, extra = _with_bounds(seen, MEMORY_PRIOR)
    rows = np.flatnonzero(seen.side)
    told = _AtBounds(seen.take(np.arange(8)), seen.take(rows), MEMORY_PRIOR)
    so_far = np.where(seen.side != 0, np.inf, 0.0)
    for position, row in enumerate(rows):
        here = seen.features.take(rows[position : position + 1])
        fitted = ErrorFits(seen, values, so_far, MEMORY_PRIOR).at(here)
        mean, variance = told.believed(position)
        assert mean == pytest.approx(fitted.mean[0], abs=1e-10)
        assert variance**0.5 == pytest.approx(fitted.deviation[0], rel=1e-8)
        assert np.isfinite(extra[row])
        told.learn(position, values[row], extra[row])
        so_far[row] = extra[row]


def test_a_bound_costs_no_fit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    cholesky = np.linalg.cholesky

    def counted(covariance: Floats) -> Floats:
        fitted.append(len(covariance))
        return cholesky(covariance)

    monkeypatch.setattr(np.linalg, "cholesky", counted)

    def fits(n_bounds: int) -> int:
        fitted.clear()
        calibrate(mixed(1), with_bounds(40, n_bounds), MEMORY_PRIOR)
        return len(fitted)

    assert fits(30) == fits(1) <= 3 * fits(0)


def test_a_bound_of_another_study_is_weighed_by_what_that_study_measured() -> None:
    """Its own measurements tell that a peak is above the limit: that it was says nothing more."""
    theirs = Seen(
        features=mixed(3),
        log_ratio=np.full(3, 0.2),
        side=np.zeros(3),
        study=np.ones(3, np.intp),
        kinship=np.full(3, 0.3),
    )
    bound = dataclasses.replace(
        theirs.take(np.array([1])), log_ratio=np.array([0.1]), side=np.ones(1)
    )
    without = calibrate(mixed(3), theirs, MEMORY_PRIOR)
    told = calibrate(mixed(3), Seen.join(theirs, bound), MEMORY_PRIOR)
    assert told.mean == pytest.approx(without.mean, abs=1e-6)


def test_another_study_teaches_the_less_the_less_it_is_akin() -> None:
    at = mixed(5)
    rows = np.array([0, 1, 3, 4])

    def of_another(kinship: float) -> Seen:
        n = len(rows)
        return Seen(
            features=at.take(rows),
            log_ratio=np.full(n, 0.5),
            side=np.zeros(n),
            study=np.ones(n, np.intp),
            kinship=np.full(n, kinship),
        )

    close, far, none = (calibrate(at, of_another(k), TIME_PRIOR) for k in (1.0, 0.5, 0.0))
    assert close.mean[2] > far.mean[2] > none.mean[2]
    assert close.deviation[2] < far.deviation[2] < none.deviation[2]
    assert none.mean[2] == pytest.approx(0, abs=1e-6)


def test_what_this_study_says_comes_before_what_another_said() -> None:
    at = mixed(5)
    rows = np.array([0, 2, 4])
    theirs = Seen(
        features=at.take(rows),
        log_ratio=np.full(3, 0.5),
        side=np.zeros(3),
        study=np.ones(3, np.intp),
        kinship=np.full(3, 0.7),
    )
    ours = Seen.here(at.take(np.array([1, 3])), np.array([-0.2, -0.2]))
    found = calibrate(at, Seen.join(ours, theirs), TIME_PRIOR)
    assert found.mean[1] == pytest.approx(-0.2, abs=0.05)
    assert found.mean[2] < 0


def test_a_large_lattice_is_calibrated_in_pieces_that_agree() -> None:
    at = mixed(9000)
    rows = np.array([10, 4500, 8999])
    seen = Seen.here(at.take(rows), np.array([0.1, 0.2, 0.3]))
    whole = calibrate(at, seen, TIME_PRIOR)
    part = calibrate(at.take(np.array([5000])), seen, TIME_PRIOR)
    assert whole.mean[5000] == pytest.approx(part.mean[0], rel=1e-9)
    assert whole.deviation[5000] == pytest.approx(part.deviation[0], rel=1e-6)


def test_many_trials_of_a_large_lattice_take_seconds_at_most() -> None:
    at = mixed(2000)
    rows = np.linspace(0, 1999, 100).astype(np.intp)
    started = time.process_time()
    calibrate(at, Seen.here(at.take(rows), np.zeros(100)), TIME_PRIOR)
    assert time.process_time() - started < 10


def test_expected_gain_is_smooth_where_the_formula_changes() -> None:
    z = np.array([-20.1, -20.0001, -19.9999, -19.9, 0.0, 3.0])
    found = log_expected_gain(z)
    assert (np.diff(found) > 0).all()
    assert found[4] == pytest.approx(np.log(0.39894), abs=1e-4)
    assert found[2] - found[1] < 0.02


def test_a_normal_value_above_a_bound() -> None:
    mean, variance = beyond_bound(0.0, 1.0, 0.0, is_above=True)
    assert mean == pytest.approx(0.79788, abs=1e-4)
    assert variance == pytest.approx(1 - 0.79788**2, abs=1e-4)
    far_mean, far_variance = beyond_bound(0.0, 1.0, 40.0, is_above=True)
    assert 40 < far_mean < 40.1
    assert 0 < far_variance < 1e-3
    assert beyond_bound(1.0, 4.0, 0.5, is_above=False)[0] == pytest.approx(
        -beyond_bound(-1.0, 4.0, -0.5, is_above=True)[0]
    )
