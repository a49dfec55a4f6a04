"""Rules about NCCL: what its release takes, what its algorithms need, and values that clash.

They are read off NVIDIA/nccl, 2.21 to 2.30; none has a witness, since NCCL runs on GPUs alone.
"""

from autotune.engines.communication.base import ALGORITHMS, Communication, is_before
from autotune.space.rule import Finding, rule

_BY_COLLECTIVE_SINCE = "2.24"
_MORE_CHANNELS_SINCE = "2.25"
_NVLS_OF_PAIRS_SINCE = "2.29"
_MOST_SOCKETS = 64
_TUNING = "NCCL: src/graph/tuning.cc: ncclTopoTuneModel"
_ENV = "NCCL: docs/userguide/source/env.rst"


@rule(f"{_ENV}: NCCL_ALGO (since 2.24)")
def _by_collective(run: Communication) -> Finding | None:
    """An algorithm for one collective needs NCCL 2.24: older ones take one list for all."""
    chosen = _chosen(run)
    if not chosen or not is_before(run.nccl, _BY_COLLECTIVE_SINCE):
        return None
    return Finding(
        message=f"{_listed(run, chosen)}: NCCL {run.nccl} takes one list of algorithms for every "
        f"collective; by collective since {_BY_COLLECTIVE_SINCE}",
        at=tuple(chosen),
        advice=f"leave {' and '.join(chosen)} at default, or take a newer NCCL",
    )


@rule(f"{_ENV}: NCCL_NVLS_ENABLE")
def _nvls_device(run: Communication) -> Finding | None:
    """NVLink SHARP needs Hopper or later behind third-generation NVSwitch or newer."""
    chosen = _chosen(run, "nvls")
    if not chosen or not run.lacks_nvls:
        return None
    return Finding(
        message=f"{_listed(run, chosen)}: NVLink SHARP is there from Hopper on, behind NVSwitch, "
        "and these devices are not",
        at=tuple(chosen),
        advice="take ring, or tree for nccl.all_reduce",
    )


@rule("NCCL: src/transport/nvls.cc: ncclNvlsInit, gpuCount")
def _nvls_ranks(run: Communication) -> Finding | None:
    """NVLink SHARP needs three GPUs of a group on a node, and two since NCCL 2.29.

    From 2.24 on nothing takes its place: the collective fails.
    """
    counts = {"nccl.all_reduce": run.fewest_on_a_node}
    here = {name: counts.get(name, run.sharing[1]) for name in _chosen(run, "nvls")}
    # Where the release is unknown, pairs may have it.
    is_old = is_before(run.nccl, _NVLS_OF_PAIRS_SINCE)
    least = 3 if is_old else 2
    few = {name: count for name, count in here.items() if count < least}
    if not few:
        return None
    return Finding(
        message=f"{_listed(run, list(few))}: a group has {min(few.values())} of its ranks on a "
        f"node, and NVLink SHARP needs {least}" + (f" in NCCL {run.nccl}" if is_old else ""),
        at=tuple(few),
        advice="take ring, or tree for nccl.all_reduce",
    )


@rule(f"{_TUNING}: collnetEnable; src/enqueue.cc: updateCollCostTable")
def _nvls_nodes(run: Communication) -> Finding | None:
    """All-gather and reduce-scatter by NVLS end with the node, but for CollNet, which is off."""
    size, here = run.sharing
    chosen = [name for name in _chosen(run, "nvls") if name != "nccl.all_reduce"]
    if not chosen or size <= here:
        return None
    return Finding(
        message=f"{_listed(run, chosen)}: its group of {size} has {here} ranks on a node, and "
        "between nodes NVLS needs CollNet, which NCCL leaves off",
        at=tuple(chosen),
        advice=f"leave {' and '.join(chosen)} at default, or take ring",
    )


@rule(f"{_TUNING}: ncclPatEnable; {_ENV}: NCCL_ALGO, PAT since 2.23")
def _pat_ranks(run: Communication) -> Finding | None:
    """PAT is for groups that have one GPU on each node."""
    size, here = run.sharing
    chosen = _chosen(run, "pat")
    if not chosen or (here == 1 and size > 1):
        return None
    return Finding(
        message=f"{_listed(run, chosen)}: its group of {size} has {here} ranks on a node, and PAT "
        "is for one on each",
        at=tuple(chosen),
        advice="take ring",
    )


@rule(f"{_TUNING}: NVLS and PAT have NCCL_PROTO_SIMPLE alone")
def _simple_alone(run: Communication) -> Finding | None:
    """NVLS and PAT know the protocol Simple alone."""
    chosen = [*_chosen(run, "nvls"), *_chosen(run, "pat")]
    if not chosen or run.values.get("nccl.proto") != "ll":
        return None
    return Finding(
        message=f"{_listed(run, chosen)} and nccl.proto=ll: that algorithm knows the protocol "
        "Simple alone, so that there is none left",
        at=(*chosen, "nccl.proto"),
        advice="leave nccl.proto at default",
    )


@rule("NCCL: src/init.cc: envConfigOverride, minCTAs is larger than maxCTAs")
def _channels_order(run: Communication) -> Finding | None:
    """The fewest channels are no more than the most: NCCL sets both to the most."""
    least = int(run.values.get("nccl.min_channels", 0))
    most = int(run.values.get("nccl.max_channels", 0))
    if not most or least <= most:
        return None
    return Finding(
        message=f"nccl.min_channels={least} > nccl.max_channels={most}: NCCL takes {most} twice",
        at=("nccl.min_channels", "nccl.max_channels"),
        advice=f"set nccl.min_channels to {most}, which is that run",
    )


@rule(f"{_ENV}: NCCL_MAX_CTAS (32 prior to 2.25); src/include/device.h: MAXCHANNELS")
def _channels_limit(run: Communication) -> Finding | None:
    """NCCL has 64 channels, and before 2.25 it has 32; what is above is cut."""
    most = 32
    names = ("nccl.min_channels", "nccl.max_channels")
    above = [name for name in names if int(run.values.get(name, 0)) > most]
    if not above or not is_before(run.nccl, _MORE_CHANNELS_SINCE):
        return None
    return Finding(
        message=f"{_listed(run, above)}: NCCL {run.nccl} has {most} channels, and cuts the rest",
        at=tuple(above),
        advice=f"set {' and '.join(above)} to {most} at most",
    )


@rule(f"{_ENV}: NCCL_SOCKET_NTHREADS; src/transport/net_socket.cc: MAX_SOCKETS")
def _sockets(run: Communication) -> Finding | None:
    """A connection has at most 64 sockets: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD."""
    threads = int(run.values.get("nccl.socket_threads", 0))
    per_thread = int(run.values.get("nccl.sockets_per_thread", 0))
    if threads * per_thread <= _MOST_SOCKETS:
        return None
    return Finding(
        message=f"nccl.socket_threads x nccl.sockets_per_thread = {threads} x {per_thread} = "
        f"{threads * per_thread}: NCCL opens {_MOST_SOCKETS} at most, and lowers the second",
        at=("nccl.socket_threads", "nccl.sockets_per_thread"),
        advice=f"set nccl.sockets_per_thread to {_MOST_SOCKETS // threads}",
    )


@rule(f"{_ENV}: NCCL_BUFFSIZE, powers of 2")
def _buffer(run: Communication) -> Finding | None:
    """NCCL's documentation asks for a buffer that is a power of two."""
    size = int(run.values.get("nccl.buffer_bytes", 1))
    if size & (size - 1) == 0:
        return None
    return Finding(
        message=f"nccl.buffer_bytes={size} is no power of 2, as NCCL's documentation asks for",
        at=("nccl.buffer_bytes",),
        advice=f"set nccl.buffer_bytes to {1 << (size.bit_length() - 1)}",
    )


def _chosen(run: Communication, algorithm: str = "") -> list[str]:
    """Knobs that choose an algorithm, or a certain one."""
    return [
        name for name in ALGORITHMS if name in run.values and algorithm in ("", run.values[name])
    ]


def _listed(run: Communication, names: list[str]) -> str:
    return ", ".join(f"{name}={run.values[name]}" for name in names)
