"""Variables by which a candidate's communication knobs reach its ranks, and their read-back."""

from collections.abc import Mapping
from typing import Any

from autotune.contract import KnobValue
from autotune.engines.communication.base import ALGORITHMS
from autotune.engines.releases import is_at_least
from autotune.space.knob import Knobs

_NAMES: Mapping[str, Mapping[KnobValue, str]] = {
    "nccl.proto": {"simple": "Simple", "ll": "LL", "no_ll128": "LL,Simple"},
    "nccl.cross_nic": {"same": "0", "any": "1"},
}
"""Values that the library calls something else, by knob."""
_PLAIN: Mapping[str, str] = {
    "nccl.proto": "NCCL_PROTO",
    "nccl.buffer_bytes": "NCCL_BUFFSIZE",
    "nccl.cross_nic": "NCCL_CROSS_NIC",
    "nccl.gdr_level": "NCCL_NET_GDR_LEVEL",
    "nccl.socket_threads": "NCCL_SOCKET_NTHREADS",
    "nccl.sockets_per_thread": "NCCL_NSOCKS_PERTHREAD",
    "nccl.ib_qps": "NCCL_IB_QPS_PER_CONNECTION",
    "gloo.interfaces": "GLOO_SOCKET_IFNAME",
}
"""Knobs that are a variable each."""
_CHANNELS: Mapping[str, tuple[str, str]] = {
    "nccl.min_channels": ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"),
    "nccl.max_channels": ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"),
}
"""Knobs whose variable has a new name since 2.17; the old one is still read (2.30)."""
_CTAS_SINCE = "2.17"
_OF_COLLECTIVE = dict(zip(ALGORITHMS, ("allreduce", "allgather", "reducescatter"), strict=True))
"""Names that NCCL has for the collectives; it ignores case (src/init.cc: ncclFuncStr)."""
_ALGORITHMS: Mapping[tuple[str, KnobValue], tuple[str, ...]] = {
    # Within a node NVLSTree is switched off, and between nodes NVLS is (src/graph/tuning.cc).
    ("nccl.all_reduce", "nvls"): ("NVLS", "NVLSTree"),
    **{(knob, "nvls"): ("NVLS",) for knob in ALGORITHMS[1:]},
    **{(knob, "ring"): ("Ring",) for knob in ALGORITHMS},
    **{(knob, "pat"): ("PAT",) for knob in ALGORITHMS[1:]},
    ("nccl.all_reduce", "tree"): ("Tree",),
}
"""Algorithms that stay enabled for a choice, as NCCL calls them."""
_DEVICE_THREADS = 2
"""Threads of gloo for each device (torch: ProcessGroupGloo.cpp)."""


def environment_of(values: Knobs, nccl: str) -> dict[str, str]:
    """Variables that a candidate's ranks start with."""
    found: dict[str, str] = {}
    chosen = {k: _ALGORITHMS[k, values[k]] for k in ALGORITHMS if k in values}
    if chosen:
        found["NCCL_ALGO"] = ";".join(
            f"{_OF_COLLECTIVE[knob]}:{','.join(names)}" for knob, names in chosen.items()
        )
    for knob, variable in _PLAIN.items():
        if knob in values:
            found[variable] = _NAMES.get(knob, {}).get(values[knob], str(values[knob]))
    for knob, (old, new) in _CHANNELS.items():
        if knob in values:
            is_new = bool(nccl) and is_at_least(nccl, _CTAS_SINCE)
            found[new if is_new else old] = str(values[knob])
    return found


def expected_of(values: Knobs, nccl: str) -> dict[str, Any]:
    """Settings that the libraries must report in the ranks (`autotune.trial.communication`)."""
    found: dict[str, Any] = {
        name: text
        for name, text in environment_of(values, nccl).items()
        if name.startswith("NCCL_")
    }
    for knob in ALGORITHMS:
        if knob in values:
            found[knob] = ",".join(_ALGORITHMS[knob, values[knob]])
    for knob in _CHANNELS:
        if knob in values:
            found[knob] = values[knob]
    if "gloo.interfaces" in values:
        devices = len(str(values["gloo.interfaces"]).split(","))
        found |= {"gloo_devices": devices, "gloo_threads": devices * _DEVICE_THREADS}
    return found
