"""Predicted beside measured: what counts as inside, and where it is shown."""

from pathlib import Path

import pytest

from autotune.contract import ContractError, Outcome, Predicted, TrialSpec, to_dict
from autotune.record.study import Trial
from autotune.report.verdict import forecast_errors
from tests import trials as samples
from tests.report.told import macro
from tests.search.scripted import GIB, fault, ok
from tests.trials import changed


def said(step_time_s: float, reach: float = 1.5) -> Predicted:
    return Predicted(
        step_time_s=step_time_s,
        step_time_low_s=step_time_s / reach,
        step_time_high_s=step_time_s * reach,
        peak_memory_bytes=5 * GIB,
        peak_memory_low_bytes=4.5 * GIB,
        peak_memory_high_bytes=6 * GIB,
    )


def trial(samples_per_s: float, predicted: Predicted | None, peak: float = 4 * GIB) -> Trial:
    spec = changed(samples.spec(0), predicted=predicted)
    return Trial(folder=Path(), spec=spec, result=ok(spec, samples_per_s, peak=peak))


def test_inside_is_between_the_ends_and_off_is_the_median():
    # A global batch of 4: 10 samples/s are 0.4 s a step.
    trials = [
        trial(10.0, said(0.4), peak=5 * GIB),
        trial(10.0, said(0.5)),
        trial(10.0, said(0.8)),
        trial(10.0, None),
    ]
    assert forecast_errors(trials) == [
        {"name": "step time", "error": pytest.approx(0.25), "n": 3, "n_inside": 2},
        {"name": "memory", "error": pytest.approx(0.25), "n": 3, "n_inside": 1},
    ]


def test_what_did_not_measure_is_not_counted():
    spec = changed(samples.spec(0), predicted=said(0.4))
    lost = Trial(folder=Path(), spec=spec, result=fault(spec, Outcome.OOM))
    running = Trial(folder=Path(), spec=spec, result=None)
    assert forecast_errors([lost, running, trial(10.0, None)]) == []


def test_a_prediction_is_said_in_the_unit_of_the_figure():
    spec = changed(samples.spec(0), predicted=said(0.4, reach=2.0))
    predicted, batch = spec.provenance.predicted, spec.layout.global_batch
    assert macro("predicted_rate", predicted, batch) == "10.0 (5.00 to 20.0)"
    assert macro("predicted_memory", predicted) == "5 GiB (4.5 GiB to 6 GiB)"


def test_a_prediction_survives_the_record():
    spec = changed(samples.spec(0), predicted=said(0.4))
    assert TrialSpec.from_dict(to_dict(spec)) == spec
    broken = to_dict(spec)
    broken["provenance"]["predicted"]["step_time_s"] = "soon"
    with pytest.raises(ContractError, match="predicted"):
        TrialSpec.from_dict(broken)
