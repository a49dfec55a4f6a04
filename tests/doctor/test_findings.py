"""What the doctor concludes from the facts, and how bad it is."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from autotune.devices.in_use import Device
from autotune.doctor.diagnosis import Examination, Level, Machine, Remark, Speed
from autotune.doctor.findings import conclude, minimum_versions

GIB = 2**30
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
GPU = Device(index=0, name="NVIDIA H200", busy=0.0, memory_bytes=GIB, memory_used_bytes=0)
CORES = tuple(
    Device(index=i, name="Xeon", busy=0.02, memory_bytes=None, memory_used_bytes=None)
    for i in (0, 1)
)
HEALTHY = Machine(
    python="3.11.7",
    packages={
        "torch": "2.13.0",
        "deepspeed": "0.19.6",
        "transformers": "5.23.0",
        "optuna": "5.0.0",
    },
    tools=dict.fromkeys(("gcc", "g++", "ninja", "nvcc", "numactl", "ssh", "pdsh"), "/usr/bin/x"),
    uncompiled="",
    has_python_headers=True,
    has_libaio=True,
    accelerator="cuda",
    accelerator_problem="",
    accelerator_fix="",
    torch_cuda="13.0",
    n_gpus=1,
    devices=(GPU,),
    load_average=0.1,
    memory_bytes=64 * GIB,
    memlock_bytes=None,
    shm_bytes=8 * GIB,
    extensions_folder="/cache",
    extensions_built=("cpu_adam", "fused_adam"),
    extensions_missing=(),
    stale_locks=(),
)
EVEN = Speed(
    devices=(0, 1),
    matmul="1024 x 1024 fp32",
    matmul_flops=(100e9, 95e9),
    all_reduce_bytes=32 * 2**20,
    all_reduce_busbw=1.5e9,
    wall_s=6.0,
)


def findings_of(speed: Speed | None = None, **changes: Any) -> tuple[Remark, ...]:
    return conclude(dataclasses.replace(HEALTHY, **changes), speed)


def bad(findings: tuple[Remark, ...]) -> list[Remark]:
    return [finding for finding in findings if finding.level is not Level.OK]


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    assert bad(findings_of(EVEN)) == []


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Fields of the machine, of which a row says what differs from a healthy one."""
    fields = dict(changes)
    if lost := fields.pop("without", None):
        fields["tools"] = {**HEALTHY.tools, lost: None}
    if "deepspeed" in fields:
        fields["packages"] = {**HEALTHY.packages, "deepspeed": fields.pop("deepspeed")}
    if "gpus" in fields:
        gpus = enumerate(fields.pop("gpus"))
        fields["devices"] = tuple(dataclasses.replace(GPU, index=n, **each) for n, each in gpus)
    if fields.get("accelerator") == "cpu":
        fields["devices"] = CORES
    return fields


@pytest.mark.cases("changes", "level", "subject", "says", "fix")
def test_each_trouble_is_named_with_its_fix(changes, level, subject, says, fix) -> None:
    found = bad(findings_of(**changed(changes)))
    found = [finding for finding in found if finding.subject == subject]
    assert [finding.level for finding in found] == [level]
    assert says in found[0].message
    assert fix in found[0].fix


def test_a_core_needs_no_nvcc() -> None:
    changes = {"accelerator": "cpu", "devices": CORES, "tools": {**HEALTHY.tools, "nvcc": None}}
    assert {finding.subject for finding in bad(findings_of(**changes))} == {"needs CUDA"}


def test_a_busy_core_comes_with_the_load() -> None:
    busy = (CORES[0], dataclasses.replace(CORES[1], busy=0.9))
    found = findings_of(accelerator="cpu", devices=busy, load_average=3.25)
    message = next(finding.message for finding in found if finding.subject == "idle")
    assert "device 1 (90%)" in message
    assert "load average 3.25" in message


def test_a_device_that_nothing_is_known_of_is_not_called_busy() -> None:
    unknown = dataclasses.replace(GPU, busy=None)
    assert bad(findings_of(devices=(unknown,))) == []


def test_a_slow_device_is_named_with_how_slow() -> None:
    uneven = dataclasses.replace(EVEN, devices=(0, 1, 2), matmul_flops=(100e9, 100e9, 80e9))
    (found,) = bad(findings_of(uneven))
    assert (found.level, found.subject) == (Level.WARN, "equally fast")
    assert "device 2 (-20%)" in found.message
    assert "100 GFLOP/s" in found.message


def test_figures_are_given_with_what_was_measured() -> None:
    messages = {finding.subject: finding.message for finding in findings_of(EVEN)}
    assert messages["all-reduce"] == "1.50 GB/s bus bandwidth (32 MiB over 2 devices)"
    assert "1024 x 1024 fp32" in messages["equally fast"]


def test_a_measurement_of_some_devices_says_so() -> None:
    found = findings_of(EVEN, accelerator="cpu", devices=CORES * 4)
    message = next(finding.message for finding in found if finding.subject == "equally fast")
    assert "2 of 8" in message


def test_one_device_has_no_bandwidth() -> None:
    alone = dataclasses.replace(EVEN, devices=(0,), matmul_flops=(1e12,), all_reduce_busbw=None)
    found = findings_of(alone)
    assert "all-reduce" not in {finding.subject for finding in found}
    assert any("1.00 TFLOP/s" in finding.message for finding in found)


def test_a_failed_measurement_is_a_failure_with_its_cause() -> None:
    failed = dataclasses.replace(EVEN, matmul_flops=(), problem="rank 1: NCCL error")
    (found,) = bad(findings_of(failed))
    assert found.level is Level.FAIL
    assert "rank 1: NCCL error" in found.message


def test_the_diagnosis_is_as_bad_as_its_worst_finding() -> None:
    def level_of(**changes: Any) -> Level:
        machine = dataclasses.replace(HEALTHY, **changes)
        return Examination(machine=machine, speed=None, findings=conclude(machine, None)).level

    assert level_of() is Level.OK
    assert level_of(shm_bytes=None) is Level.WARN
    assert level_of(shm_bytes=None, python="3.9") is Level.FAIL


def test_minimum_versions_are_those_of_the_package() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["megatron"]]
    declared = dict(line.partition(",")[0].split(">=") for line in wanted)
    declared["python"] = project["requires-python"].removeprefix(">=")
    least = minimum_versions()
    assert {name: Version(declared[name]) for name in least} == {
        name: Version(version) for name, version in least.items()
    }


def test_an_engine_that_is_not_installed_is_no_fault() -> None:
    found = [remark for remark in conclude(HEALTHY, None) if remark.subject == "megatron-core"]
    assert [(remark.level, "no trials of megatron" in remark.message) for remark in found] == [
        (Level.OK, True)
    ]
