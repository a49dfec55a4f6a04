"""What NCCL and gloo really do in a rank, where the candidate chose something of it.

NCCL says it in its own log. It goes into files of the trial's folder, and leaves out `TUNING`,
which would write a line for every collective of the measured steps (src/enqueue.cc).
Formats of the lines: NVIDIA/nccl, src/debug.cc and the files named below, 2.24 to 2.30.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.contract import RANKS_DIR, TrialSpec

LOG_FILE = "nccl-{rank:02d}.log"
"""Name of a rank's log, below `RANKS_DIR`."""
_LOG_ENV = "NCCL_DEBUG_FILE"
_OF_VARIABLES = "NCCL_"

_LINE = re.compile(r"(?:\[[^\]]*\] )?(\S+:\d+:\d+) \[-?\d+\] NCCL INFO (.*)")
"""A line, perhaps with a time before it: who writes (host, process, thread), and what."""
_SET = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?")
"""src/misc/param.cc ends numbers with a full stop; src/graph/tuning.cc and paths.cc end with the
value. A variable that nobody read is not there."""
_NETWORK = re.compile(r"Using network (.+)")
_COMM = re.compile(r"comm \S+ rank \d+ nRanks (\d+) nNodes \d+ .*")
_CHANNELS = re.compile(r"(\d+) coll channels, .*")
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)\S*.*")
"""All four: src/init.cc."""
_MATRIX = "Enabled NCCL Func/Proto/Algo Matrix:"
"""src/graph/tuning.cc: a table in the lines that follow, of rank 0 of a communicator, since 2.24.
Of a long host's name the last of it is cut off."""

_FUNCTIONS = {
    "nccl.all_reduce": "AllReduce",
    "nccl.all_gather": "AllGather",
    "nccl.reduce_scatter": "ReduceScatter",
}
_BOUNDS = {"nccl.min_channels": min, "nccl.max_channels": max}


@dataclass(kw_only=True)
class NcclLog:
    """What NCCL's log says."""

    version: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    network: str = ""
    """Name of what carries messages between nodes: `IB`, `Socket` or a plug-in's."""
    channels: int | None = None
    """Channels of the largest communicator."""
    algorithms: dict[str, str] | None = None
    """Collective -> the algorithms that it may use, with commas; without those whose row is cut.
    None: there is no table."""


def listen(spec: TrialSpec, folder: Path, rank: int) -> None:
    """Have NCCL write its log, if the candidate sets one of its variables; before it starts."""
    if any(name.startswith(_OF_VARIABLES) for name in spec.engine.environment):
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV"
        os.environ[_LOG_ENV] = str(folder / RANKS_DIR / LOG_FILE.format(rank=rank))


def read_back(expected: Mapping[str, Any]) -> dict[str, Any]:
    """What NCCL and gloo say of the settings that are expected of them.

    A connection between nodes is made by some ranks alone, so the logs of all ranks on this node
    count. The table of algorithms is rank 0's: on other nodes its entries are answered as asked,
    since that rank compares them.
    """
    found: dict[str, Any] = {}
    if any(name.startswith(_OF_VARIABLES) for name in expected):
        folder = Path(os.environ[_LOG_ENV]).parent
        paths = sorted(folder.glob("nccl-*.log"))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
        has_first = (folder / LOG_FILE.format(rank=0)).exists()
        found |= compared(parse(texts), expected, has_table=has_first)
    if "gloo_threads" in expected:
        found |= _gloo()
    return found


def compared(log: NcclLog, expected: Mapping[str, Any], *, has_table: bool) -> dict[str, Any]:
    """What a log says, under the names that are expected."""
    found: dict[str, Any] = {n: v for n, v in log.settings.items() if n in expected}
    for name, function in _FUNCTIONS.items():
        if name not in expected:
            continue
        if log.algorithms is not None:
            found[name] = log.algorithms.get(function, expected[name])
        elif not has_table:
            found[name] = expected[name]
    if log.channels is not None:
        found["nccl_channels"] = log.channels
        for name, bound in _BOUNDS.items():
            if name in expected:
                found[name] = bound(log.channels, expected[name])
    versions = {"nccl_version": log.version, "nccl_network": log.network}
    return found | {name: text for name, text in versions.items() if text}


def parse(texts: Iterable[str]) -> NcclLog:
    """Read NCCL's logs, one text for each rank."""
    log = NcclLog()
    largest = 0
    for text in texts:
        ranks: dict[str, int] = {}
        """Ranks of the communicator that each thread makes."""
        lines = iter(text.splitlines())
        for line in lines:
            if (version := _VERSION.match(line)) is not None:
                log.version = version[1]  # written without a prefix as well
            if (matched := _LINE.fullmatch(line)) is None:
                continue
            writer, message = matched.groups()
            if (setting := _SET.fullmatch(message)) is not None:
                log.settings[setting[1]] = setting[2]
            elif (network := _NETWORK.fullmatch(message)) is not None:
                log.network = network[1]
            elif (comm := _COMM.fullmatch(message)) is not None:
                ranks[writer] = int(comm[1])
            elif (channels := _CHANNELS.match(message)) is not None:
                size = ranks.get(writer, 0)
                if log.channels is None or size > largest:
                    log.channels, largest = int(channels[1]), size
            elif (version := _VERSION.match(message)) is not None:
                log.version = version[1]
            elif message.startswith(_MATRIX):
                log.algorithms = {**(log.algorithms or {}), **dict(_rows(lines))}
    return log


def _rows(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Collectives of a table with their algorithms; the header is the first of the lines."""
    names = next(lines, "").split("|")[-1].split()
    for line in lines:
        cells = line.split("|")
        if len(cells) != 3:
            return
        switches = cells[2].split()
        if len(switches) == len(names):
            enabled = [n for n, on in zip(names, switches, strict=True) if on != "0"]
            yield cells[0].strip(), ",".join(enabled)


def _gloo() -> dict[str, int]:
    """Devices and threads of the process group of CPU ranks; empty: it is not gloo's own."""
    import torch.distributed as dist
    from torch import device

    group: Any = dist.group.WORLD
    options = getattr(group._get_backend(device("cpu")), "options", None)
    if options is None or not hasattr(options, "_threads"):
        return {}
    return {"gloo_devices": len(options._devices), "gloo_threads": options._threads}
