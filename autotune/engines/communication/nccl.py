"""Rules about NCCL: what its release takes, what its algorithms need, and values that clash.

They are read off NVIDIA/nccl, 2.21 to 2.30; none has a witness, since NCCL runs on GPUs alone.
"""

from collections.abc import Collection

from autotune.engines.communication.base import ALGORITHMS, Communication
from autotune.engines.releases import is_at_least
from autotune.space.rule import Finding, rule

_BY_COLLECTIVE_SINCE = "2.24"
_MORE_CHANNELS_SINCE = "2.25"
_NVLS_OF_PAIRS_SINCE = "2.29"
_MOST_SOCKETS = 64
_TUNING = "NCCL: src/graph/tuning.cc: ncclTopoTuneModel"
_ENV = "NCCL: docs/userguide/source/env.rst"
_NOT_NVLS = "take ring, or tree for nccl.all_reduce"


@rule(f"{_ENV}: NCCL_ALGO (since 2.24)")
def _by_collective(run: Communication) -> Finding | None:
    """An algorithm for one collective needs NCCL 2.24: older ones take one list for all."""
    chosen = [] if is_at_least(run.nccl, _BY_COLLECTIVE_SINCE) else _chosen(run)
    return _against(
        run,
        chosen,
        f": NCCL {run.nccl} takes one list of algorithms for every collective; by collective "
        f"since {_BY_COLLECTIVE_SINCE}",
        f"leave {' and '.join(chosen)} at default, or take a newer NCCL",
    )


@rule(f"{_ENV}: NCCL_NVLS_ENABLE")
def _nvls_device(run: Communication) -> Finding | None:
    """NVLink SHARP needs Hopper or later behind third-generation NVSwitch or newer."""
    chosen = _chosen(run, "nvls") if run.lacks_nvls else []
    what = ": NVLink SHARP is there from Hopper on, behind NVSwitch, and these devices are not"
    return _against(run, chosen, what, _NOT_NVLS)


@rule("NCCL: src/transport/nvls.cc: ncclNvlsInit, gpuCount")
def _nvls_ranks(run: Communication) -> Finding | None:
    """NVLink SHARP needs three GPUs of a group on a node, and two since NCCL 2.29.

    From 2.24 on nothing takes its place: the collective fails.
    """
    counts = {"nccl.all_reduce": run.fewest_on_a_node}
    here = {name: counts.get(name, run.sharing[1]) for name in _chosen(run, "nvls")}
    # Where the release is unknown, pairs may have it.
    is_old = not is_at_least(run.nccl, _NVLS_OF_PAIRS_SINCE)
    least = 3 if is_old else 2
    few = {name: count for name, count in here.items() if count < least}
    what = (
        f": a group has {min(few.values(), default=0)} of its ranks on a node, and NVLink SHARP "
        f"needs {least}" + (f" in NCCL {run.nccl}" if is_old else "")
    )
    return _against(run, few, what, _NOT_NVLS)


@rule(f"{_TUNING}: collnetEnable; src/enqueue.cc: updateCollCostTable")
def _nvls_nodes(run: Communication) -> Finding | None:
    """All-gather and reduce-scatter by NVLS end with the node, but for CollNet, which is off."""
    size, here = run.sharing
    shared = [name for name in _chosen(run, "nvls") if name != "nccl.all_reduce"]
    return _against(
        run,
        shared if size > here else [],
        f": its group of {size} has {here} ranks on a node, and between nodes NVLS needs CollNet, "
        "which NCCL leaves off",
        f"leave {' and '.join(shared)} at default, or take ring",
    )


@rule(f"{_TUNING}: ncclPatEnable; {_ENV}: NCCL_ALGO, PAT since 2.23")
def _pat_ranks(run: Communication) -> Finding | None:
    """PAT is for groups that have one GPU on each node."""
    size, here = run.sharing
    chosen = [] if here == 1 and size > 1 else _chosen(run, "pat")
    what = f": its group of {size} has {here} ranks on a node, and PAT is for one on each"
    return _against(run, chosen, what, "take ring")


@rule(f"{_TUNING}: NVLS and PAT have NCCL_PROTO_SIMPLE alone")
def _simple_alone(run: Communication) -> Finding | None:
    """NVLS and PAT know the protocol Simple alone."""
    chosen = [*_chosen(run, "nvls"), *_chosen(run, "pat")]
    return _against(
        run,
        chosen if run.values.get("nccl.proto") == "ll" else [],
        " and nccl.proto=ll: that algorithm knows the protocol Simple alone, so that there is "
        "none left",
        "leave nccl.proto at default",
        also=("nccl.proto",),
    )


@rule("NCCL: src/init.cc: envConfigOverride, minCTAs is larger than maxCTAs")
def _channels_order(run: Communication) -> Finding | None:
    """The fewest channels are no more than the most: NCCL sets both to the most."""
    least, most = (int(run.values.get(f"nccl.{end}_channels", 0)) for end in ("min", "max"))
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
    most = 64 if is_at_least(run.nccl, _MORE_CHANNELS_SINCE) else 32
    names = ("nccl.min_channels", "nccl.max_channels")
    above = [name for name in names if int(run.values.get(name, 0)) > most]
    what = f": NCCL {run.nccl} has {most} channels, and cuts the rest"
    return _against(run, above, what, f"set {' and '.join(above)} to {most} at most")


@rule(f"{_ENV}: NCCL_SOCKET_NTHREADS; src/transport/net_socket.cc: MAX_SOCKETS")
def _sockets(run: Communication) -> Finding | None:
    """A connection has at most 64 sockets: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD."""
    names = ("nccl.socket_threads", "nccl.sockets_per_thread")
    threads, per_thread = (int(run.values.get(name, 0)) for name in names)
    if threads * per_thread <= _MOST_SOCKETS:
        return None
    return Finding(
        message=f"{' x '.join(names)} = {threads} x {per_thread} = {threads * per_thread}: NCCL "
        f"opens {_MOST_SOCKETS} at most, and lowers the second",
        at=names,
        advice=f"set nccl.sockets_per_thread to {_MOST_SOCKETS // threads}",
    )


@rule(f"{_ENV}: NCCL_BUFFSIZE, powers of 2")
def _buffer(run: Communication) -> Finding | None:
    """NCCL's documentation asks for a buffer that is a power of two."""
    size = int(run.values.get("nccl.buffer_bytes", 1))
    return _against(
        run,
        ["nccl.buffer_bytes"] if size & (size - 1) else [],
        " is no power of 2, as NCCL's documentation asks for",
        f"set nccl.buffer_bytes to {1 << (size.bit_length() - 1)}",
    )


def _chosen(run: Communication, algorithm: str = "") -> list[str]:
    """Knobs that choose an algorithm, or a certain one."""
    return [
        name for name in ALGORITHMS if name in run.values and algorithm in ("", run.values[name])
    ]


def _against(
    run: Communication, names: Collection[str], what: str, advice: str, also: tuple[str, ...] = ()
) -> Finding | None:
    """A finding about knobs with their values, and others; nothing where there is none of them."""
    listed = ", ".join(f"{name}={run.values[name]}" for name in names)
    return Finding(message=listed + what, at=(*names, *also), advice=advice) if names else None
