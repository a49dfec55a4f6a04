"""Places of a node's devices among each other: fastest links, PCIe switches, network cards.

NVML says which GPUs NVLink joins, and /sys how they, cores and network cards hang on the machine.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.devices.hardware import usable_cores, visible_gpus


@dataclass(frozen=True, kw_only=True)
class DevicePlace:
    """Place of a device among those of its node."""

    domain: str = ""
    """Name of the devices that the fastest link joins (NVLink, a socket); empty: all."""
    shares: tuple[str, ...] = ()
    """Names of what it has in common with others: PCIe root port, network card."""


def devices_here(accelerator: str) -> tuple[tuple[str, ...], tuple[DevicePlace, ...]]:
    """UUIDs of this machine's GPUs, or numbers of its cores; and the place of each."""
    if accelerator == "cuda":
        uuids = tuple(gpu.uuid for gpu in visible_gpus())
        return uuids, gpu_places(uuids)
    cores = usable_cores()
    return tuple(map(str, cores)), core_places(cores)


def gpu_places(
    uuids: Sequence[str], *, driver: Any = None, sysfs: Path = Path("/sys")
) -> tuple[DevicePlace, ...]:
    """Places of GPUs; empty ones where driver or kernel do not say.

    Two GPUs below one root port share its link to the processor, whatever switches are below it.
    The network card of a GPU is the nearest one; where several are as near, GPUs take turns.

    Args:
        uuids: GPUs in the order of their slots.
        driver: Functions of NVML by name; None: those of pynvml.
        sysfs: Where the kernel shows devices.
    """
    if driver is None:
        import pynvml  # tens of milliseconds

        driver = pynvml
    try:
        driver.nvmlInit()
    except driver.NVMLError:
        return tuple(DevicePlace() for _ in uuids)
    try:
        handles = [driver.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        domains = _domains(handles, driver)
        links = [sysfs / "bus/pci/devices" / _bus_of(handle, driver) for handle in handles]
        paths = [_bridges(link.resolve()) if link.exists() else () for link in links]
    except driver.NVMLError:
        return tuple(DevicePlace() for _ in uuids)
    finally:
        with suppress(driver.NVMLError):
            driver.nvmlShutdown()
    cards = _cards(sysfs)
    ports = [f"PCIe root port {path[1]}" if len(path) > 1 else "" for path in paths]
    nearest = [_nearest(path, cards) for path in paths]
    return _placed(domains, ports, nearest)


def _placed(
    domains: Sequence[str], ports: Sequence[str], nearest: Sequence[tuple[str, ...]]
) -> tuple[DevicePlace, ...]:
    turns: dict[tuple[str, ...], int] = {}
    places = []
    for domain, port, cards in zip(domains, ports, nearest, strict=True):
        turn = turns.get(cards, 0)
        turns[cards] = turn + 1
        shares = [port] if port else []
        shares += [f"network card {cards[turn % len(cards)]}"] if cards else []
        places.append(DevicePlace(domain=domain, shares=tuple(shares)))
    return tuple(places)


def core_places(cores: Sequence[int], *, sysfs: Path = Path("/sys")) -> tuple[DevicePlace, ...]:
    """Places of cores: those of a NUMA node share its memory."""
    of_core: dict[int, str] = {}
    for folder in sorted((sysfs / "devices/system/node").glob("node[0-9]*")):
        with suppress(OSError, ValueError):
            listed = (folder / "cpulist").read_text(encoding="ascii").strip()
            of_core |= dict.fromkeys(numbers_in(listed), f"NUMA {folder.name}")
    return tuple(DevicePlace(domain=of_core.get(core, "")) for core in cores)


def numbers_in(ranges: str) -> list[int]:
    """The numbers that `0-3,8` names, as the kernel and Slurm write them."""
    ends = (part.partition("-") for part in filter(None, ranges.split(",")))
    return [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]


def _domains(handles: Sequence[Any], driver: Any) -> list[str]:
    """Name of each GPU's NVLink domain, joined directly or by others; empty where it has none."""

    def is_joined(one: int, other: int) -> bool:
        with suppress(driver.NVMLError):
            status = driver.nvmlDeviceGetP2PStatus(
                handles[one], handles[other], driver.NVML_P2P_CAPS_INDEX_NVLINK
            )
            return bool(status == driver.NVML_P2P_STATUS_OK)
        return False

    of = list(range(len(handles)))
    for one in range(len(handles)):
        for other in range(one):
            if is_joined(one, other):
                joined = of[one], of[other]
                of = [min(joined) if gpu in joined else gpu for gpu in of]
    return [f"NVLink of GPU {gpu}" if of.count(gpu) > 1 else "" for gpu in of]


def _bus_of(handle: Any, driver: Any) -> str:
    """The PCI address of a GPU as the kernel spells it: `0000:3b:00.0`."""
    bus_id = driver.nvmlDeviceGetPciInfo(handle).busId
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _bridges(path: Path) -> tuple[str, ...]:
    """Bridges from the host's to a device, the device last; empty where it is none of PCI's."""
    at = next((n for n, part in enumerate(path.parts) if part.startswith("pci")), None)
    return () if at is None else tuple(p for p in path.parts[at:] if p.count(":") in (1, 2))


def _cards(sysfs: Path) -> Mapping[str, tuple[str, ...]]:
    """Network cards by name, with the bridges to each; virtual ones are none."""
    for kind in ("infiniband", "net"):
        found = {
            card.name: path
            for card in sorted((sysfs / "class" / kind).glob("*"))
            if (card / "device").exists() and (path := _bridges((card / "device").resolve()))
        }
        if found:
            return found
    return {}


def _nearest(path: Sequence[str], cards: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names of the cards with most bridges in common with a device."""
    common = {name: _in_common(path, of_card) for name, of_card in cards.items()}
    most = max(common.values(), default=0)
    return tuple(name for name, n in common.items() if n == most)


def _in_common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
