"""Which candidate is tried next: gain, risk, what was lost, and a share for looking around."""

import dataclasses

import numpy as np
import pytest

from autotune.cost.forecast import Forecast
from autotune.cost.knowledge import Recalled
from autotune.cost.residual import Features, Seen
from autotune.search.acquisition import LAST_RISK, Posterior, Shot

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


def every(*but: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    is_open = np.ones(N, bool)
    is_open[list(but)] = False
    return is_open


def test_before_any_trial_the_forecast_decides() -> None:
    posterior = Posterior(forecast=forecast(), shots=[])
    assert posterior.choose(every()) == 0
    assert posterior.choose(every(0, 1)) == 2


def test_what_is_not_open_is_never_chosen() -> None:
    shots = [Shot(row=0, seconds=1.0, peak_bytes=60.0)]
    for closed in range(N):
        others = {closed, 0}
        assert Posterior(forecast=forecast(), shots=shots).choose(every(*others)) not in others


def test_where_the_forecast_is_wrong_the_search_goes_elsewhere() -> None:
    # What should be fast is slow, the more so the larger its second part.
    truth = forecast().seconds * np.exp(2.0 * forecast().features.shares[:, 1])
    shots: list[Shot] = []
    for _ in range(5):
        row = Posterior(forecast=forecast(), shots=shots).choose(every(*(s.row for s in shots)))
        shots.append(Shot(row=row, seconds=truth[row], peak_bytes=20.0))
    assert int(np.argmin(truth)) in [shot.row for shot in shots]


def test_a_trial_in_flight_is_not_proposed_and_its_neighbours_promise_less() -> None:
    done = [Shot(row=4, seconds=1.5, peak_bytes=40.0)]
    alone = Posterior(forecast=forecast(), shots=done)
    beside = Posterior(forecast=forecast(), shots=[*done, Shot(row=1, is_running=True)])
    assert beside.deviation[1] < alone.deviation[1]
    assert beside.time.mean == pytest.approx(alone.time.mean)


def test_what_would_likely_not_fit_is_left_for_later() -> None:
    tight = forecast(limit_bytes=30.0)
    posterior = Posterior(forecast=tight, shots=[])
    chosen = posterior.choose(every())
    assert posterior.risk[chosen] <= posterior.allowed_risk
    assert tight.peak_bytes[chosen] < 30
    assert chosen > 0, "the fastest would need twice the memory"


def test_the_threshold_loosens_as_trials_run() -> None:
    shots = [Shot(row=row, seconds=1.0, peak_bytes=50.0) for row in range(N)]
    risks = [Posterior(forecast=forecast(), shots=shots[:n]).allowed_risk for n in range(N)]
    assert risks == sorted(risks)
    assert risks[0] < risks[-1] == LAST_RISK


def test_after_one_that_ran_out_of_memory_nothing_larger_is_tried() -> None:
    shots = [Shot(row=5, is_out_of_memory=True)]
    posterior = Posterior(forecast=forecast(), shots=shots)
    assert posterior.is_dropped[:6].all(), "they need more by estimate, and so does the one itself"
    assert not posterior.is_dropped[6:].any()
    assert posterior.choose(every(5)) > 5
    assert posterior.risk[6] > Posterior(forecast=forecast(), shots=[]).risk[6]


def test_a_larger_one_that_ran_says_nothing_against_a_smaller_one() -> None:
    shots = [Shot(row=0, seconds=3.0, peak_bytes=60.0)]
    assert not Posterior(forecast=forecast(), shots=shots).is_dropped.any()


def test_if_all_are_too_risky_the_least_risky_is_tried() -> None:
    assert Posterior(forecast=forecast(limit_bytes=1.0), shots=[]).choose(every()) == N - 1
    lost = [Shot(row=11, is_out_of_memory=True)]
    assert Posterior(forecast=forecast(limit_bytes=1.0), shots=lost).choose(every(11)) == 10


def test_without_a_limit_memory_decides_nothing() -> None:
    posterior = Posterior(forecast=forecast(limit_bytes=None), shots=[])
    assert (posterior.risk == 0).all()
    assert posterior.choose(every()) == 0


def test_what_other_studies_saw_steers_the_first_trial() -> None:
    at = forecast().features
    theirs = Seen(
        features=at,
        log_ratio=2.0 * at.shares[:, 1],
        side=np.zeros(N),
        study=np.ones(N, np.intp),
        kinship=np.ones(N),
    )
    known = Recalled(times=theirs, peaks=theirs, n_trials=N)
    chosen = Posterior(forecast=forecast(), shots=[], known=known).choose(every())
    truth = forecast().seconds * np.exp(2.0 * at.shares[:, 1])
    assert abs(chosen - int(np.argmin(truth))) <= 1
    assert chosen > 0


def test_the_expected_gain_is_a_share_and_falls_as_candidates_are_measured() -> None:
    truth = forecast().seconds
    gains = []
    shots = [Shot(row=row, seconds=truth[row], peak_bytes=20.0) for row in range(0, N, 2)]
    for n in range(1, len(shots) + 1):
        posterior = Posterior(forecast=forecast(), shots=shots[:n])
        gains.append(posterior.expected_gain(every(*(shot.row for shot in shots[:n]))))
    assert 0 < gains[-1] < gains[0] < 1


def test_nothing_is_expected_where_nothing_may_be_tried_and_anything_where_nothing_ran() -> None:
    assert Posterior(forecast=forecast(), shots=[]).expected_gain(every()) == float("inf")
    assert Posterior(forecast=forecast(), shots=[]).expected_gain(every(*range(N))) == 0.0
