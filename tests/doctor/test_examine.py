"""The diagnosis as a whole: data that a machine can read."""

import json
from collections.abc import Sequence

import pytest

from autotune.devices import in_use
from autotune.doctor import Level, Speed, diagnose, findings


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """What was asked of the measurement, which is not run here."""
    calls: list[tuple[str, list[int]]] = []

    def measure_speed(accelerator: str, devices: Sequence[int]) -> Speed:
        calls.append((accelerator, list(devices)))
        return Speed(
            devices=tuple(devices),
            matmul="",
            matmul_flops=(),
            all_reduce_bytes=0,
            all_reduce_busbw=None,
            wall_s=0.0,
            problem="rank 0: no route",
        )

    monkeypatch.setattr(findings, "measure_speed", measure_speed)
    monkeypatch.setattr(in_use, "_SAMPLE_S", 0.01)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return calls


def test_every_device_is_measured_and_the_answer_is_json(
    asked: list[tuple[str, list[int]]],
) -> None:
    diagnosis = diagnose()
    assert asked == [("cpu", [device.index for device in diagnosis.machine.devices])]
    assert diagnosis.level is Level.FAIL
    data = json.loads(json.dumps(diagnosis.to_dict()))
    assert data["level"] == "fail"
    assert data["machine"]["packages"]["torch"] == diagnosis.machine.packages["torch"]
    assert {"level", "subject", "message", "fix"} == set(data["findings"][0])
    assert any("no route" in finding["message"] for finding in data["findings"])


def test_it_can_look_without_measuring(asked: list[tuple[str, list[int]]]) -> None:
    assert diagnose(measure=False).speed is None
    assert asked == []


def test_nothing_is_measured_on_an_accelerator_that_is_not_there(
    asked: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    diagnosis = diagnose()
    assert (diagnosis.speed, asked) == (None, [])
    assert diagnosis.level is Level.FAIL
