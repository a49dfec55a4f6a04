"""Accelerators are found through NVML and the kernel; a made-up NVML stands in for GPUs."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest

from autotune.base.errors import FleetError
from autotune.devices import cgroup, hardware
from autotune.devices.hardware import detect_environment, peak_flops, visible_gpus
from tests.captured import captured

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
V100, T4 = "Tesla V100-SXM2-32GB", "Tesla T4"
CAPABILITIES = {A100: (8, 0), H100: (9, 0), V100: (7, 0), T4: (7, 5)}


class FakeNvmlError(Exception):
    """Stands in for pynvml.NVMLError."""


def fake_nvml(names: list[str], *, has_driver: bool = True) -> SimpleNamespace:
    def init() -> None:
        if not has_driver:
            raise FakeNvmlError("driver not found")

    def utilization(handle: int) -> SimpleNamespace:
        if "MIG" in names[handle]:
            raise FakeNvmlError("not supported")
        return SimpleNamespace(gpu=37)

    def capability(handle: int) -> tuple[int, int]:
        if names[handle] not in CAPABILITIES:
            raise FakeNvmlError("not supported")
        return CAPABILITIES[names[handle]]

    return SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.rpartition("-")[2]),
        nvmlDeviceGetName=lambda handle: names[handle],
        nvmlDeviceGetUUID=lambda handle: f"GPU-abc{handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(
            total=(80 - handle) * 2**30, used=handle * 2**30
        ),
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetCudaComputeCapability=capability,
    )


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def install(
    monkeypatch: pytest.MonkeyPatch, names: list[str], *, cuda: str | None = "13.0"
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(names))
    monkeypatch.setattr(hardware, "torch_cuda_version", lambda: cuda)


@pytest.mark.cases("name", "tflops")
def test_peaks_are_dense_and_by_name(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


@pytest.mark.cases("name")
def test_no_peak_is_guessed(name: str) -> None:
    assert peak_flops(name) is None


@pytest.mark.cases("visible", "uuids")
def test_visible_devices_are_read_as_cuda_reads_them(monkeypatch, visible, uuids):
    install(monkeypatch, [A100, A100, A100])
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = visible_gpus()
    assert [gpu.uuid for gpu in found] == uuids
    assert [gpu.index for gpu in found] == list(range(len(uuids)))


def test_gpus_show_what_others_do_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [A100, A100 + " MIG 1g.10gb"])
    whole, part = visible_gpus()
    assert (whole.memory_bytes, whole.memory_used_bytes) == (80 * 2**30, 0)
    assert (whole.utilization, part.utilization) == (0.37, None)
    assert part.memory_used_bytes == 2**30


@pytest.mark.cases("names", "has_bf16")
def test_bf16_is_what_all_gpus_compute_in_and_not_what_torch_emulates(
    monkeypatch: pytest.MonkeyPatch, names: list[str], has_bf16: bool
) -> None:
    install(monkeypatch, names)
    found = detect_environment().precisions
    assert found == (("fp32", "bf16", "fp16") if has_bf16 else ("fp32", "fp16"))


def test_an_environment_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [H100, H100])
    environment = detect_environment()
    assert environment.accelerator == "cuda"
    assert (environment.n_devices, environment.device_name) == (2, H100)
    assert environment.device_memory_bytes == 79 * 2**30  # the smaller of the two
    assert environment.peak_flops == 989e12


def test_unlike_gpus_have_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [H100, A100])
    assert detect_environment().peak_flops is None


@pytest.mark.parametrize(("asked", "cuda"), [("cpu", "13.0"), ("", None)])
def test_cores_are_the_devices_where_gpus_are_not_wanted_or_not_usable(monkeypatch, asked, cuda):
    install(monkeypatch, [A100], cuda=cuda)
    monkeypatch.setenv("DS_ACCELERATOR", asked)
    environment = detect_environment()
    assert environment.accelerator == "cpu"
    assert environment.peak_flops is None
    assert 0 < environment.device_memory_bytes <= psutil.virtual_memory().total


@pytest.mark.cases("asked", "names", "cuda", "says")
def test_what_is_asked_for_and_not_there_is_refused(monkeypatch, asked, names, cuda, says):
    install(monkeypatch, names, cuda=cuda)
    monkeypatch.setenv("DS_ACCELERATOR", asked)
    with pytest.raises(FleetError, match=says):
        detect_environment()


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([A100], has_driver=False))
    assert visible_gpus() == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version_of", lambda name: None if name == "torch" else "1")
    with pytest.raises(FleetError, match="torch is not installed"):
        detect_environment()


def test_a_missing_engine_is_no_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version_of", lambda n: None if n == "deepspeed" else "1")
    assert detect_environment().deepspeed_version == ""


def test_cores_and_memory_are_those_left_by_affinity_and_cgroup(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    monkeypatch.setattr(cgroup, "cpu_quota", lambda: None)
    assert hardware.usable_cores() == [3, 5, 7]
    monkeypatch.setattr(cgroup, "cpu_quota", lambda: 2.5)
    assert hardware.usable_cores() == [3, 5]
    monkeypatch.setattr(cgroup, "cpu_quota", lambda: 0.5)
    assert hardware.usable_cores() == [3]
    monkeypatch.setattr(cgroup, "memory_limit_bytes", lambda: 12345)
    assert hardware.usable_memory_bytes() == 12345


@pytest.mark.cases("line", "version")
def test_what_torch_is_built_for_is_read_from_its_file(tmp_path, monkeypatch, line, version):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip = None\n")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda _: spec)
    assert hardware.torch_cuda_version() == version


def test_the_installed_torch_agrees() -> None:
    import torch

    assert hardware.torch_cuda_version() == torch.version.cuda


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from autotune.devices.hardware import detect_environment;"
        "detect_environment();"
        "print([m for m in ('torch', 'deepspeed', 'numpy') if m in sys.modules])"
    )
    done = captured([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]", done.stderr
