"""Which candidate is tried next: gain, risk, what was lost, and a share for looking around."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from autotune.cost.forecast import Forecast, SeenErrors, Shot
from autotune.cost.residual import Features, Seen
from autotune.search.steering import LAST_RISK, Posterior

N = 12


def forecast(limit_bytes: float | None = 100.0, **changes: object) -> Forecast:
    """Twelve candidates, ever slower and smaller by the forecast."""
    first = np.linspace(0.2, 0.8, N)
    features = Features(
        shares=np.stack([first, 1 - first], 1), position=np.arange(N, dtype=float)[:, None] / 4
    )
    made = Forecast(
        seconds=np.linspace(1.0, 2.1, N),
        features=features,
        peak_bytes=np.linspace(60.0, 5.0, N),
        limit_bytes=limit_bytes,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


FORECAST = forecast()
BY_PART = np.exp(2.0 * FORECAST.features.shares[:, 1])
"""An error that is the larger the larger a candidate's second part."""


def believed(
    shots: Mapping[int, Shot] | None = None,
    said: Forecast = FORECAST,
    known: SeenErrors | None = None,
) -> Posterior:
    """What is believed after trials of some rows."""
    shots = shots or {}
    tried = said.take(np.array([*shots], np.intp))
    return Posterior(forecast=said, tried=tried, shots=[*shots.values()], known=known)


def every(*but: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    is_open = np.ones(N, bool)
    is_open[list(but)] = False
    return is_open


def test_before_any_trial_the_forecast_decides() -> None:
    assert believed().choose(every()) == 0
    assert believed().choose(every(0, 1)) == 2
    without_limit = believed(said=forecast(limit_bytes=None))
    assert (without_limit.risk == 0).all()
    assert without_limit.choose(every()) == 0


def test_where_the_forecast_is_wrong_the_search_goes_elsewhere() -> None:
    truth = FORECAST.seconds * BY_PART
    shots: dict[int, Shot] = {}
    for _ in range(5):
        row = believed(shots).choose(every(*shots))
        shots[row] = Shot(seconds=truth[row], peak_bytes=20.0)
    assert int(np.argmin(truth)) in shots


def test_a_trial_in_flight_is_not_proposed_and_its_neighbours_promise_less() -> None:
    done = {4: Shot(seconds=1.5, peak_bytes=40.0)}
    alone, beside = believed(done), believed({**done, 1: Shot(is_running=True)})
    assert beside.deviation[1] < alone.deviation[1]
    assert beside.time.mean == pytest.approx(alone.time.mean)


def test_what_would_likely_not_fit_is_left_for_later() -> None:
    tight = believed(said=forecast(limit_bytes=30.0))
    chosen = tight.choose(every())
    assert tight.risk[chosen] <= tight.allowed_risk
    assert tight.forecast.peak_bytes[chosen] < 30
    assert chosen > 0, "the fastest would need twice the memory"


def test_the_threshold_loosens_as_trials_run() -> None:
    risks = [
        believed(dict.fromkeys(range(n), Shot(seconds=1.0, peak_bytes=50.0))).allowed_risk
        for n in range(N)
    ]
    assert risks == sorted(risks)
    assert risks[0] < risks[-1] == LAST_RISK


def test_after_one_that_ran_out_of_memory_nothing_larger_is_tried() -> None:
    lost = believed({5: Shot(is_out_of_memory=True)})
    assert lost.is_dropped[:6].all(), "they need more by estimate, and so does the one itself"
    assert not lost.is_dropped[6:].any()
    assert lost.choose(every(5)) > 5
    assert lost.risk[6] > believed().risk[6]
    assert not believed({0: Shot(seconds=3.0, peak_bytes=60.0)}).is_dropped.any()


def test_if_all_are_too_risky_the_least_risky_is_tried() -> None:
    tiny = forecast(limit_bytes=1.0)
    assert believed(said=tiny).choose(every()) == N - 1
    assert believed({11: Shot(is_out_of_memory=True)}, tiny).choose(every(11)) == 10


def test_what_other_studies_saw_steers_the_first_trial() -> None:
    theirs = Seen(
        features=FORECAST.features,
        log_ratio=np.log(BY_PART),
        side=np.zeros(N),
        study=np.ones(N, np.intp),
        kinship=np.ones(N),
    )
    known = SeenErrors(times=theirs, peaks=theirs, n_trials=N)
    chosen = believed(known=known).choose(every())
    assert abs(chosen - int(np.argmin(FORECAST.seconds * BY_PART))) <= 1
    assert chosen > 0


def test_the_expected_gain_is_a_share_and_falls_as_candidates_are_measured() -> None:
    gains = []
    shots: dict[int, Shot] = {}
    for row in range(0, N, 2):
        shots[row] = Shot(seconds=FORECAST.seconds[row], peak_bytes=20.0)
        gains.append(believed(shots).expected_gain(every(*shots)))
    assert 0 < gains[-1] < gains[0] < 1
    assert believed().expected_gain(every()) == float("inf"), "nothing was measured"
    assert believed().expected_gain(every(*range(N))) == 0.0, "nothing may be tried"
