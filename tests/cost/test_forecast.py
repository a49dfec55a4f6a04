"""The analytic model's word in a form that can be calibrated."""

import numpy as np
import pytest

from autotune.cost.forecast import forecast
from autotune.cost.predict import predict
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from tests.replay.tables import sweep


def test_parts_are_shares_and_choices_are_doublings() -> None:
    rows = [{name: str(value) for name, value in row.items()} for row in sweep()]
    plans = rows_to_plans(rows, shipped_accelerators()).plans
    assert plans is not None
    found, predicted = forecast(plans), predict(plans)
    assert len(found) == len(rows)
    assert found.seconds == pytest.approx(predicted.step_time_s)
    assert found.peak_bytes == pytest.approx(predicted.peak_memory_bytes)
    assert found.features.shares.sum(axis=1) == pytest.approx(1)
    assert found.memory_features is not None
    assert found.memory_features.shares.sum(axis=1) == pytest.approx(1)
    assert found.features.position[:, 0] == pytest.approx(
        [np.log2(float(row["tp"])) for row in rows]
    )
    assert found.limit_bytes == pytest.approx(float(np.min(plans.memory_bytes)))


def test_some_of_the_candidates() -> None:
    rows = [{name: str(value) for name, value in row.items()} for row in sweep()]
    plans = rows_to_plans(rows, shipped_accelerators()).plans
    assert plans is not None
    whole = forecast(plans)
    part = whole.take(np.array([3, 1]))
    assert part.seconds == pytest.approx(whole.seconds[[3, 1]])
    assert part.features.position == pytest.approx(whole.features.position[[3, 1]])
