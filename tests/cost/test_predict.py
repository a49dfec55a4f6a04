"""Columns in, arrays out: chunks, broadcasting, constants."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml

from autotune.base.errors import JobError
from autotune.cost import Constants, load_constants, predict
from autotune.cost.constants import SHIPPED
from tests.cost.plans import plans


def test_chunks_change_nothing() -> None:
    values = np.tile(np.array([1.0, 2.0, 4.0, 8.0]), 3000)
    many = predict(plans(tp=values))
    few = predict(plans(tp=values[:4]))
    assert many.step_time_s[-4:] == pytest.approx(few.step_time_s)
    assert many.memory.peak_bytes[4096:4100] == pytest.approx(few.memory.peak_bytes)


def test_plain_numbers_are_one_candidate() -> None:
    predicted = predict(plans())
    for values in (predicted.step_time_s, predicted.peak_memory_bytes, predicted.times.step_s):
        assert values.shape == (1,)


def test_columns_of_several_lengths_are_refused() -> None:
    with pytest.raises(JobError, match="several lengths"):
        plans(tp=np.ones(2), pp=np.ones(3))


def test_rows_picks_candidates() -> None:
    p = plans(tp=np.array([1.0, 2.0, 4.0]))
    assert predict(p.take(np.array([2, 0]))).step_time_s == pytest.approx(
        predict(p).step_time_s[[2, 0]]
    )


def test_constants_must_be_complete_and_numbers(tmp_path: Path) -> None:
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    for change, message in (
        ({"matmul_share": None}, "matmul_share"),
        ({"typo": 1.0}, "typo: missing or unknown"),
        ({"typo": 1.0, 7: 1.0}, "7, typo: missing or unknown"),
        ({"launch_s": "fast"}, "launch_s"),
    ):
        path = tmp_path / f"{message[:4]}.yaml"
        path.write_text(yaml.safe_dump({**values, **change}), encoding="utf-8")
        with pytest.raises(JobError, match=message):
            load_constants(path)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("matmul_share", 0, "at most 1"),
        ("matmul_share", 1.2, "at most 1"),
        ("launch_s", -1e-5, "at most 3600"),
        ("context_bytes", float("nan"), "at most 1.1259e+15"),
        ("matmul_traffic", float("inf"), "at most 1e+06"),
        ("overlap_share", True, "at most 1"),
    ],
)
def test_a_constant_that_cannot_be_is_named(tmp_path, name, value, allowed) -> None:
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**values, name: value}), encoding="utf-8")
    with pytest.raises(JobError) as error:
        load_constants(path)
    assert error.value.message == f"{path}: {name}: {value!r} is not allowed"
    assert error.value.hint.endswith(allowed)


def test_every_shipped_share_is_one() -> None:
    constants = load_constants()
    for field in dataclasses.fields(Constants):
        value = getattr(constants, field.name)
        assert value > 0
        if field.name.endswith("_share"):
            assert value <= 1
