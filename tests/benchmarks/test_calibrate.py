"""Constants that made the measurements are found again from few of them."""

import dataclasses

import numpy as np
import pytest

from autotune.base.errors import JobError
from autotune.cost import load_constants, predict
from benchmarks.calibrate import calibrate_constants, calibrate_with_shares
from tests.cost.plans import plans

SHIPPED = load_constants()
LAYOUTS = plans(
    tp=np.array([1.0, 2.0, 4.0, 8.0, 8.0]),
    pp=np.array([1.0, 2.0, 2.0, 1.0, 4.0]),
    micro_batch=np.array([1.0, 2.0, 1.0, 4.0, 1.0]),
    dp=8.0,
    grad_accum=8.0,
)


def test_slower_products_are_found() -> None:
    truth = dataclasses.replace(SHIPPED, matmul_share=0.6, nvlink_share=0.5)
    measured = predict(LAYOUTS, truth).step_time_s
    before = np.abs(np.log(measured / predict(LAYOUTS, SHIPPED).step_time_s))
    fitted = calibrate_constants(LAYOUTS, measured, SHIPPED, sigma=0.01)
    after = np.abs(np.log(measured / predict(LAYOUTS, fitted).step_time_s))
    assert before.max() > 0.2
    assert after.max() < 0.02


def test_one_wrong_row_does_not_bend_the_others() -> None:
    measured = predict(LAYOUTS, SHIPPED).step_time_s.copy()
    measured[2] *= 3
    fitted = calibrate_constants(LAYOUTS, measured, SHIPPED)
    ratios = predict(LAYOUTS, fitted).step_time_s / predict(LAYOUTS, SHIPPED).step_time_s
    assert np.median(np.abs(ratios - 1)) < 0.1


def test_memory_by_its_meter() -> None:
    truth = dataclasses.replace(SHIPPED, fragmentation=0.2, workspace_bytes=1e9)
    measured = predict(LAYOUTS, truth).memory.reserved_bytes
    fitted = calibrate_constants(
        LAYOUTS, measured, SHIPPED, meters=["reserved_bytes"] * 5, sigma=0.001
    )
    found = predict(LAYOUTS, fitted).memory.reserved_bytes
    assert found == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("measured", [np.array([]), np.array([1.0, 0.0, 1.0, 1.0, 1.0])])
def test_measurements_are_above_zero(measured: np.ndarray) -> None:
    with pytest.raises(JobError, match="above zero"):
        calibrate_constants(LAYOUTS, measured, SHIPPED)


def test_shares_of_devices_are_found_with_the_constants() -> None:
    layouts = plans(
        tp=np.tile(np.array([1.0, 2.0, 4.0, 8.0]), 3),
        micro_batch=np.repeat(np.array([1.0, 2.0, 4.0]), 4),
        dp=8.0,
        grad_accum=8.0,
    )
    kinds = np.tile(np.array([-1, 0, 1, 0]), 3)
    held = np.array([1.0, 0.7, 1.2])[kinds + 1]
    measured = predict(dataclasses.replace(layouts, sustained_share=held), SHIPPED).step_time_s
    fitted, shares = calibrate_with_shares(
        layouts, measured, SHIPPED, kinds, share_sigma=1.0, sigma=0.001
    )
    assert shares == pytest.approx([0.7, 1.2], rel=0.03)
    assert fitted.matmul_share == pytest.approx(SHIPPED.matmul_share, rel=0.03)
