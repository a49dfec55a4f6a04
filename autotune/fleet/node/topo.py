"""What `nvidia-smi topo -m` says: how each GPU is joined to the others and to network cards.

Source of the words: the legend that it prints, and the nvidia-smi documentation, section topo.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.base.guarded_process import run_guarded

_NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Ways over PCIe: one bridge, several, the host's bridge, within a NUMA node, between two."""
_BELOW_ONE_PORT = ("PIX", "PXB")
_NVLINK = re.compile(r"NV\d+")
_GPU = re.compile(r"GPU(\d+)")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CARD = re.compile(r"\s*(NIC\d+): (\S+)")
_ANSWER_S = 20.0
Ask = Callable[[Sequence[str]], str]
"""Runs a command, and returns what it printed; empty where it failed."""


@dataclass(frozen=True, kw_only=True)
class Topo:
    """The matrix, by GPU's index."""

    ways: Mapping[int, Mapping[int, str]]
    """From a GPU to another: `NV12`, `PIX`, ..."""
    cards: Mapping[int, Mapping[str, str]]
    """From a GPU to a network card of that name."""

    def joined(self, one: int, other: int) -> bool:
        return _NVLINK.fullmatch(self.ways.get(one, {}).get(other, "")) is not None

    def port_of(self, gpu: int) -> str:
        """Name of the PCIe switch below which a GPU is with others; empty: with none."""
        near = [o for o, way in self.ways.get(gpu, {}).items() if way in _BELOW_ONE_PORT]
        return f"PCIe switch of GPU {min(gpu, *near)}" if near else ""

    def nearest_cards(self, gpu: int) -> tuple[str, ...]:
        """The network cards that are nearest to a GPU; several where they are as near."""
        ways = self.cards.get(gpu, {})
        known = [way for way in _NEAREST_FIRST if way in ways.values()]
        return tuple(name for name, way in ways.items() if known and way == known[0])


def parse_topo(text: str) -> Topo:
    """Read the matrix; what is none of a GPU's rows, or is cut short, is left out."""
    lines = _ESCAPE.sub("", text).splitlines()
    names = {found[1]: found[2] for line in lines if (found := _CARD.fullmatch(line.rstrip()))}
    header: list[str] = []
    ways: dict[int, dict[int, str]] = {}
    cards: dict[int, dict[str, str]] = {}
    for line in lines:
        cells = line.split("\t") if "\t" in line else re.split(r"\s{2,}", line)
        cells = [cell.strip() for cell in cells]
        gpu = _GPU.fullmatch(cells[0])
        if gpu is None:
            if not header and any(_GPU.fullmatch(cell) for cell in cells):
                header = [cell for cell in cells if cell]
            continue
        of = int(gpu[1])
        for name, way in zip(header, cells[1:], strict=False):
            if other := _GPU.fullmatch(name):
                if int(other[1]) != of:
                    ways.setdefault(of, {})[int(other[1])] = way
            elif way in _NEAREST_FIRST:
                cards.setdefault(of, {})[names.get(name, name)] = way
    return Topo(ways=ways, cards=cards)


def ask_topo(uuids: Sequence[str], ask: Ask | None = None) -> tuple[Topo, list[int]] | None:
    """The matrix, and the index of each GPU in it; None where nvidia-smi does not say."""
    ask = _run if ask is None else ask
    listed = ask(["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"])
    rows = (line.partition(",") for line in listed.splitlines())
    indices = {uuid.strip(): int(n) for n, _, uuid in rows if n.strip().isdigit()}
    if not all(uuid in indices for uuid in uuids):
        return None
    topo = parse_topo(ask(["nvidia-smi", "topo", "-m"]))
    return topo, [indices[uuid] for uuid in uuids]


def _run(command: Sequence[str]) -> str:
    try:
        done = run_guarded(command, timeout_s=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
