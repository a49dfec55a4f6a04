"""What `nvidia-smi topo -m` says, in texts as it prints them; no machine here has two GPUs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.fleet.node.places import DevicePlace, gpu_places
from autotune.fleet.node.topo import parse_topo
from tests.fleet.node.test_places import Driver, NoAnswerError

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501

SWITCHED = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\t"
    "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-47\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tPIX\tSYS\t0-47\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPXB\t48-95\t1\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPXB\t48-95\t1\t\tN/A\n"
    "NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\t\n"
    f"{LEGEND}\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)
BRIDGED = (
    "        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity\n"
    "GPU0     X      NV4     PHB     SYS     PHB     0-15\n"
    "GPU1    NV4      X      SYS     SYS     SYS     0-15\n"
    "GPU2    PHB     SYS      X      PIX     NODE    16-31\n"
    "GPU3    SYS     SYS     PIX      X      NODE    16-31\n"
    f"mlx5_0  PHB     SYS     NODE    NODE     X\n{LEGEND}"
)


def test_a_matrix_of_tabs_has_links_and_cards_by_their_names() -> None:
    topo = parse_topo(SWITCHED)
    assert all(topo.joined(one, other) for one in range(4) for other in range(4) if one != other)
    assert topo.nearest_cards(0) == ("mlx5_0",)
    assert topo.nearest_cards(3) == ("mlx5_1",)
    assert topo.port_of(0) == ""


def test_a_matrix_of_blanks_is_read_as_well() -> None:
    topo = parse_topo(BRIDGED)
    assert [topo.joined(0, other) for other in (1, 2, 3)] == [True, False, False]
    assert (topo.port_of(2), topo.port_of(3)) == ("PCIe switch of GPU 2",) * 2
    assert topo.port_of(0) == ""
    assert topo.nearest_cards(1) == ("mlx5_0",), "the only one, however far"


@pytest.mark.parametrize("text", ["", "command not found", "GPU0\t X \n", SWITCHED[:70], LEGEND])
def test_what_is_no_matrix_joins_nothing(text: str) -> None:
    topo = parse_topo(text)
    assert not topo.joined(0, 1)
    assert topo.nearest_cards(0) == ()


def test_it_answers_where_nvml_and_the_kernel_do_not(tmp_path: Path) -> None:
    driver = Driver([f"00000000:0{n}:00.0" for n in range(4)], set())
    asked: list[str] = []

    def fail(*_: Any) -> None:
        raise NoAnswerError

    def ask(command: Sequence[str]) -> str:
        asked.append(" ".join(command))
        # The slots are not in the order of the indices.
        listed = "".join(f"{3 - n}, GPU-{n}\n" for n in range(4))
        return SWITCHED if "topo" in command else listed

    driver.nvmlDeviceGetP2PStatus = fail  # type: ignore[method-assign]
    uuids = [f"GPU-{n}" for n in range(4)]
    found = gpu_places(uuids, driver=driver, sysfs=tmp_path, ask=ask)
    assert [place.domain for place in found] == ["NVLink of GPU 0"] * 4
    assert [place.shares for place in found] == [
        *(("network card mlx5_1",),) * 2,
        *(("network card mlx5_0",),) * 2,
    ]
    assert asked[-1] == "nvidia-smi topo -m"
    silent = gpu_places(uuids, driver=driver, sysfs=tmp_path, ask=lambda _: "")
    assert silent == (DevicePlace(),) * 4
