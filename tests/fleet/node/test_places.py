"""Places of devices, on a driver and a /sys that are made up: no machine here has a GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.fleet.node.places import DevicePlace, core_places, gpu_places


class NoAnswerError(Exception):
    """NVML's error."""


class Driver:
    """NVML with GPUs at some PCI addresses, pairs of which NVLink joins."""

    NVMLError = NoAnswerError
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self, addresses: list[str], joined: set[frozenset[int]]) -> None:
        self.addresses = addresses
        self.joined = joined
        self.is_open = False

    def nvmlInit(self) -> None:  # NVML's name
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self.addresses[handle])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, _: int) -> int:
        return 0 if frozenset((one, other)) in self.joined else 5


def machine(sysfs: Path, devices: dict[str, str], cards: dict[str, str], kind: str) -> Path:
    """A /sys with PCI devices below bridges, and network cards among them."""
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    for address, bridges in devices.items():
        folder = sysfs / "devices" / bridges / address
        folder.mkdir(parents=True)
        (sysfs / "bus/pci/devices" / address).symlink_to(folder)
    (sysfs / "class" / kind).mkdir(parents=True)
    for name, address in cards.items():
        (sysfs / "class" / kind / name).mkdir()
        (sysfs / "class" / kind / name / "device").symlink_to(
            sysfs / "devices" / devices[address] / address
        )
    return sysfs


LEFT, RIGHT = "pci0000:3a/0000:3a:00.0", "pci0000:ad/0000:ad:00.0"


def test_gpus_below_one_root_port_share_it_and_the_card_beside_them(tmp_path: Path) -> None:
    sysfs = machine(
        tmp_path,
        {
            "0000:3c:00.0": f"{LEFT}/0000:3b:00.0",
            "0000:3d:00.0": f"{LEFT}/0000:3b:01.0",
            "0000:3e:00.0": f"{LEFT}/0000:3b:02.0",
            "0000:ae:00.0": RIGHT,
            "0000:af:00.0": "pci0000:ad/0000:ad:01.0",
        },
        {"mlx5_0": "0000:3e:00.0", "mlx5_1": "0000:af:00.0"},
        "infiniband",
    )
    driver = Driver(
        ["00000000:3C:00.0", "00000000:3D:00.0", "00000000:AE:00.0"], {frozenset((0, 1))}
    )
    assert gpu_places(["GPU-0", "GPU-1", "GPU-2"], driver=driver, sysfs=sysfs) == (
        DevicePlace(
            domain="NVLink of GPU 0", shares=("PCIe root port 0000:3a:00.0", "network card mlx5_0")
        ),
        DevicePlace(
            domain="NVLink of GPU 0", shares=("PCIe root port 0000:3a:00.0", "network card mlx5_0")
        ),
        DevicePlace(shares=("PCIe root port 0000:ad:00.0", "network card mlx5_1")),
    )
    assert not driver.is_open


def test_nvlink_domains_are_what_links_join_in_turn(tmp_path: Path) -> None:
    chain = {frozenset((0, 2)), frozenset((2, 3)), frozenset((1, 4))}
    driver = Driver([f"00000000:0{n}:00.0" for n in range(6)], chain)
    found = gpu_places([f"GPU-{n}" for n in range(6)], driver=driver, sysfs=tmp_path)
    first, second = "NVLink of GPU 0", "NVLink of GPU 1"
    assert [place.domain for place in found] == [first, second, first, first, second, ""]


def test_as_near_cards_are_taken_in_turns(tmp_path: Path) -> None:
    sysfs = machine(
        tmp_path,
        {f"0000:3b:0{n}.0": "pci0000:3a" for n in range(6)},
        {"eth0": "0000:3b:04.0", "eth1": "0000:3b:05.0"},
        "net",
    )
    driver = Driver([f"00000000:3B:0{n}.0" for n in range(4)], set())
    found = gpu_places([f"GPU-{n}" for n in range(4)], driver=driver, sysfs=sysfs)
    assert [place.shares[-1] for place in found] == [
        *("network card eth0", "network card eth1", "network card eth0", "network card eth1")
    ]


def test_a_driver_that_does_not_answer_leaves_places_empty(tmp_path: Path) -> None:
    driver = Driver([], set())

    def fail(*_: Any) -> None:
        raise NoAnswerError

    driver.nvmlDeviceGetPciInfo = fail  # type: ignore[method-assign]
    assert gpu_places(["GPU-0"], driver=driver, sysfs=tmp_path) == (DevicePlace(),)
    driver.nvmlInit = fail  # type: ignore[method-assign]
    assert gpu_places(["GPU-0"], driver=driver, sysfs=tmp_path) == (DevicePlace(),)


@pytest.mark.cases("lists", "domains")
def test_cores_belong_to_a_numa_node(tmp_path: Path, lists: list[str], domains: list[str]) -> None:
    for number, listed in enumerate(lists):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{listed}\n")
    assert [place.domain for place in core_places([0, 2, 8], sysfs=tmp_path)] == domains
