"""What reads NVML, with a driver library of the tests in the place of NVIDIA's.

It is all of a fleet of GPUs up to the first kernel: inventory, doctor, plan, places, telemetry,
draining. The installed torch is shown to processes as built for CUDA, and computes nothing here.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.base.errors import FleetError
from autotune.devices.hardware import cuda_names, visible_gpus
from autotune.fleet.node.places import gpu_places
from autotune.fleet.node.ranks import lacking_bytes, used_bytes
from autotune.fleet.node.telemetry import Telemetry
from autotune.trial.memory import DeviceMemory
from tests.nvml import H100_MIB, StubDriver, StubGpu, gpus, torch_of_cuda

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 2**20


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubDriver]:
    """The library, in this process as well: who loads it by its name gets the loaded one."""
    stub = StubDriver(tmp_path_factory.mktemp("nvml") / "driver")
    ctypes.CDLL(str(stub.folder / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    yield stub
    stub.hide()


@pytest.fixture(scope="module")
def cuda_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_of_cuda(tmp_path_factory.mktemp("torch"))


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def autotune(
    driver: StubDriver, torch: Path, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "DS_ACCELERATOR"}
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        env={
            **inherited,
            **driver.environment(),
            "PYTHONPATH": f"{torch}:{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("number", [1, 8])
def test_a_plan_for_this_machine_is_one_for_its_gpus(driver, cuda_torch, tmp_path, number):
    driver.show(*gpus(number))
    flags = ("--model", "llama-3.2-1b", "--seq-len", "2048", "--global-batch", "16")
    done = autotune(
        driver, cuda_torch, tmp_path, "search", *flags, "--space", "smoke", "--dry-run", "--json"
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["accelerator"], plan["world"]) == ("cuda", number)
    assert plan["device_name"] == "NVIDIA H100 80GB HBM3"
    assert plan["prospect"]["allowed_bytes"] == H100_MIB * MIB


def test_doctor_names_gpus_that_others_use(driver, cuda_torch, tmp_path):
    idle, busy = gpus(2)
    driver.show(idle, StubGpu(uuid=busy.uuid, percent=97, used_mib=70_000))
    done = autotune(driver, cuda_torch, tmp_path, "doctor", "--json")
    messages = [(f["subject"], f["message"]) for f in json.loads(done.stdout)["findings"]]
    assert ("accelerator", "2 GPUs: NVIDIA H100 80GB HBM3") in messages
    about_idle = [message for subject, message in messages if subject == "idle"]
    assert any("device 1 (97%)" in message for message in about_idle)
    assert any("device 1 (68.4 GiB)" in message for message in about_idle)
    # The first kernel is where the pretence ends, and its failure is told as one.
    assert "Torch not compiled with CUDA enabled" in dict(messages)["communication"]


def test_a_lost_gpu_is_named_and_can_be_hidden(driver, monkeypatch):
    first, second = gpus(2)
    driver.show(StubGpu(uuid=first.uuid, state="lost"), second)
    with pytest.raises(FleetError, match="GPU is lost") as error:
        visible_gpus()
    assert "CUDA_VISIBLE_DEVICES" in error.value.hint
    for hidden in ("1", second.uuid, second.uuid[:12]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert [gpu.uuid for gpu in visible_gpus()] == [second.uuid]


def test_a_trial_is_shown_its_gpus_by_number(driver: StubDriver) -> None:
    first, second, third = gpus(3)
    driver.show(StubGpu(uuid=first.uuid, state="lost"), second, third)
    assert cuda_names([third.uuid, second.uuid]) == ["2", "1"]
    assert cuda_names(["MIG-0"]) == ["MIG-0"], "a slice has no number"


def test_slices_are_devices_by_their_own_names(driver, monkeypatch):
    (card,) = gpus(1)
    name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    slices = [
        StubGpu(uuid=f"MIG-{n}", name=name, total_mib=40_448, state="slice") for n in range(2)
    ]
    driver.show(card, *slices)
    assert [gpu.uuid for gpu in visible_gpus()] == [card.uuid], "a slice is reached by its name"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0,MIG-1")
    found = visible_gpus()
    assert [gpu.uuid for gpu in found] == ["MIG-0", "MIG-1"]
    assert {gpu.memory_bytes for gpu in found} == {40_448 * MIB}
    assert [gpu.utilization for gpu in found] == [None, None]
    assert not any(place.domain for place in gpu_places(["MIG-0"]))


def test_two_islands_of_nvlink_are_two_domains(driver: StubDriver) -> None:
    uuids = [gpu.uuid for gpu in gpus(8)]
    driver.show(*(StubGpu(uuid=uuid, nvlink=1 + n // 4) for n, uuid in enumerate(uuids)))
    domains = [place.domain for place in gpu_places(uuids)]
    assert domains == ["NVLink of GPU 0"] * 4 + ["NVLink of GPU 4"] * 4


def test_a_clock_that_heat_holds_down_is_seen(driver: StubDriver) -> None:
    cool, hot = gpus(2)
    driver.show(
        StubGpu(uuid=cool.uuid, percent=90, power_w=650, celsius=61),
        StubGpu(uuid=hot.uuid, percent=90, power_w=690, celsius=88, mhz=1200, throttle=0x40),
    )
    telemetry = Telemetry([cool.uuid, hot.uuid], period_s=0.01)
    telemetry.start()
    while len(telemetry.readings) < 8:
        assert telemetry._thread.is_alive()
    telemetry.stop(wait_s=5.0)
    first, last = telemetry.readings[0], telemetry.readings[-1]
    use = telemetry.between(first.at_s, last.at_s)
    assert use.utilization == pytest.approx(0.9)
    assert use.power_w == pytest.approx(670, abs=15)
    assert (use.temperature_c, use.clock_hz) == (88, pytest.approx((1980e6 + 1200e6) / 2, rel=0.1))
    assert {reading.device for reading in telemetry.readings} == {0, 1}
    assert list(use.throttle_reasons) == ["temperature, by the hardware"]


def test_telemetry_outlives_a_gpu_that_is_lost_and_gives_the_driver_back(driver):
    (gpu,) = gpus(1)
    driver.show(gpu)
    library = ctypes.CDLL(str(driver.folder / "libnvidia-ml.so.1"))
    users = ctypes.c_int.in_dll(library, "stub_users")
    before = users.value
    telemetry = Telemetry([gpu.uuid], period_s=0.01)
    telemetry.start()
    while len(telemetry.readings) < 2:
        pass
    driver.show(StubGpu(uuid=gpu.uuid, state="lost"))
    while telemetry.readings[-1].utilization is not None:
        pass
    assert users.value == before + 1
    telemetry.stop(wait_s=5.0)
    assert users.value == before
    first, second = telemetry.readings[:2]
    assert first.utilization == 0.0
    assert second.energy_j - first.energy_j == pytest.approx(1.0), "1000 mJ a reading"


def test_what_a_device_lacks_is_unknown_and_the_rest_stands(driver: StubDriver) -> None:
    (gpu,) = gpus(1)
    driver.show(StubGpu(uuid=gpu.uuid, power_w=300, state="old"))
    telemetry = Telemetry([gpu.uuid], period_s=0.01)
    telemetry.start()
    telemetry.stop(wait_s=5.0)
    reading = telemetry.readings[0]
    assert (reading.energy_j, reading.power_w, reading.temperature_c) == (None, 300, 40)


def test_a_rank_reads_the_memory_of_its_gpu_without_a_package(driver: StubDriver) -> None:
    mine, other = gpus(2)
    driver.show(mine, StubGpu(uuid=other.uuid, used_mib=9_000))
    memory = DeviceMemory("1")
    assert memory.used_bytes() == DeviceMemory(other.uuid).used_bytes() == 9_000 * MIB
    driver.show(mine, StubGpu(uuid=other.uuid, state="lost"))
    with pytest.raises(OSError, match="GPU is lost"):
        memory.used_bytes()
    with pytest.raises(OSError, match="Not Found"):
        DeviceMemory("GPU-of-nobody")


def test_a_card_is_drained_once_its_memory_is_back(driver: StubDriver) -> None:
    mine, other = gpus(2)
    driver.show(mine, other)
    before = used_bytes([mine.uuid])
    driver.show(StubGpu(uuid=mine.uuid, used_mib=30_000), StubGpu(uuid=other.uuid, used_mib=9_000))
    assert lacking_bytes(before) == (30_000 - mine.used_mib) * MIB
    driver.show(StubGpu(uuid=mine.uuid, used_mib=mine.used_mib + 10))
    assert lacking_bytes(before) == 0, "next to none"
    driver.show(mine, StubGpu(uuid=other.uuid, used_mib=9_000))
    assert lacking_bytes(before) == 0
