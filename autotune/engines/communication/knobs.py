"""Knobs of NCCL and gloo: variables of the environment, whatever the engine.

An engine lists them among its own, and may narrow where they act. Each acts only where somebody
sets it to something else than the library would do by itself: a candidate that leaves all of them
alone is the run that it would be without them.

Facts and sources: NVIDIA/nccl, docs/userguide/source/env.rst (2.30), and the files named below.
"""

from collections.abc import Callable

from autotune.contract import KnobValue
from autotune.engines.communication.base import LOOPBACK
from autotune.space.knob import Context, Knob, Knobs

NCCL_BUFFER_BYTES = 4 * 2**20
"""NCCL's own `NCCL_BUFFSIZE`."""
_ENV = "NCCL: docs/userguide/source/env.rst"
_INTERFACE = r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}"
"""A name of the kernel's: at most 15 characters (IFNAMSIZ)."""


def spans_nodes(context: Context) -> bool:
    """Whether ranks are on several nodes, as far as it is known how many one has."""
    return context.n_devices == 0 or context.world > context.n_devices


def _on_gpus(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cuda" and context.world > 1


def _over_network(values: Knobs, context: Context) -> bool:
    return _on_gpus(values, context) and spans_nodes(context)


def _by_threads(values: Knobs, context: Context) -> bool:
    """Whether NCCL opens sockets besides its first: without helper threads there are none."""
    return _over_network(values, context) and int(values.get("nccl.socket_threads", 0)) > 0


def _on_cpu(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cpu" and context.world > 1


def _if_set(
    name: str, acts: Callable[[Knobs, Context], bool], *unset: KnobValue
) -> Callable[[Knobs, Context], bool]:
    """`acts`, but for the values that are what the library does by itself."""
    return lambda values, context: values.get(name) not in unset and acts(values, context)


def _named(values: Knobs, context: Context) -> bool:
    """Whether gloo gets other interfaces than the fleet names."""
    alone = values.get("gloo.interfaces") == LOOPBACK and not spans_nodes(context)
    return _on_cpu(values, context) and not alone


def _algorithm(name: str, collective: str, choices: tuple[str, ...], more: str) -> Knob:
    return Knob(
        name=name,
        default="default",
        choices=("default", *choices),
        needs_cuda=choices,
        scope="over more than one GPU",
        acts=_if_set(name, _on_gpus, "default"),
        help=f"algorithm of {collective}; default: NCCL chooses by each message's size. {more}",
        source=f"{_ENV}: NCCL_ALGO (by collective since 2.24); src/graph/tuning.cc",
    )


KNOBS: tuple[Knob, ...] = (
    _algorithm(
        "nccl.all_reduce",
        "all-reduce",
        ("ring", "tree", "nvls"),
        "nvls is NVLink SHARP, and its tree between nodes",
    ),
    _algorithm(
        "nccl.all_gather",
        "all-gather",
        ("ring", "nvls", "pat"),
        "There is no tree for it; pat is for one GPU of the group on each node",
    ),
    _algorithm(
        "nccl.reduce_scatter",
        "reduce-scatter",
        ("ring", "nvls", "pat"),
        "There is no tree for it; pat is for one GPU of the group on each node",
    ),
    Knob(
        # LL128 alone is no value: where a platform does not support it, it corrupts data
        # (env.rst), and `^LL` would switch it on everywhere (tuning.cc: parseList).
        name="nccl.proto",
        default="default",
        choices=("default", "simple", "ll", "no_ll128"),
        needs_cuda=("simple", "ll", "no_ll128"),
        scope="over more than one GPU",
        acts=_if_set("nccl.proto", _on_gpus, "default"),
        help="protocols that NCCL may use: simple for bandwidth, ll for latency; no_ll128: both, "
        "without LL128. NVIDIA advises to leave it alone but to look for a fault",
        source=f"{_ENV}: NCCL_PROTO",
    ),
    Knob(
        name="nccl.min_channels",
        default=0,
        maximum=64,
        scope="over more than one GPU, from 2 on",
        acts=_if_set("nccl.min_channels", _on_gpus, 0, 1),
        help="fewest channels, each of which takes a multiprocessor while it carries something; "
        "0: NCCL decides",
        source=f"{_ENV}: NCCL_MIN_CTAS (since 2.17, NCCL_MIN_NCHANNELS before); "
        "src/init.cc: envConfigOverride",
    ),
    Knob(
        name="nccl.max_channels",
        default=0,
        maximum=64,
        scope="over more than one GPU",
        acts=_if_set("nccl.max_channels", _on_gpus, 0),
        help="most channels: fewer leave more multiprocessors to what is computed meanwhile; 0: "
        "NCCL decides",
        source=f"{_ENV}: NCCL_MAX_CTAS (since 2.17, NCCL_MAX_NCHANNELS before); "
        "src/init.cc: envConfigOverride",
    ),
    Knob(
        name="nccl.buffer_bytes",
        default=NCCL_BUFFER_BYTES,
        minimum=1024,
        maximum=2**30,
        scope="over more than one GPU",
        acts=_if_set("nccl.buffer_bytes", _on_gpus, NCCL_BUFFER_BYTES),
        help="bytes of the buffer between two GPUs, one for each channel and connection: memory "
        "against pipelining",
        source=f"{_ENV}: NCCL_BUFFSIZE; src/init.cc: computeBuffSizes",
    ),
    Knob(
        name="nccl.cross_nic",
        default="default",
        choices=("default", "same", "any"),
        needs_cuda=("same", "any"),
        scope="over several nodes of GPUs with several network cards each",
        acts=_if_set("nccl.cross_nic", _over_network, "default"),
        help="whether a ring or tree may leave a node by one network card and enter the next by "
        "another: same for rails, any where all cards share a switch; default: same, unless "
        "another is faster",
        source=f"{_ENV}: NCCL_CROSS_NIC",
    ),
    Knob(
        name="nccl.gdr_level",
        default="default",
        choices=("default", "LOC", "PIX", "PXB", "PHB", "SYS"),
        needs_cuda=("LOC", "PIX", "PXB", "PHB", "SYS"),
        scope="over several nodes of GPUs whose network reads their memory",
        acts=_if_set("nccl.gdr_level", _over_network, "default"),
        help="longest way between a GPU and a network card that reads its memory directly: LOC "
        "none, PIX one PCIe switch, PXB several, PHB the CPU's, SYS another socket's; default: "
        "NCCL decides",
        source=f"{_ENV}: NCCL_NET_GDR_LEVEL; src/graph/paths.cc: ncclGetLevel",
    ),
    Knob(
        name="nccl.socket_threads",
        default=0,
        maximum=16,
        scope="over several nodes of GPUs without InfiniBand",
        acts=_if_set("nccl.socket_threads", _over_network, 0),
        help="threads of the host that serve a connection over sockets; 0: NCCL decides by the "
        "network card",
        source=f"{_ENV}: NCCL_SOCKET_NTHREADS; src/transport/net_socket.cc",
    ),
    Knob(
        name="nccl.sockets_per_thread",
        default=0,
        maximum=64,
        scope="with nccl.socket_threads",
        acts=_if_set("nccl.sockets_per_thread", _by_threads, 0),
        help="sockets that each of these threads opens; 0: NCCL decides by the network card",
        source=f"{_ENV}: NCCL_NSOCKS_PERTHREAD; src/transport/net_socket.cc",
    ),
    Knob(
        name="nccl.ib_qps",
        default=1,
        minimum=1,
        maximum=128,
        scope="over several nodes of GPUs with InfiniBand or RoCE",
        acts=_if_set("nccl.ib_qps", _over_network, 1),
        help="queue pairs of a connection: several find several ways through a fabric of levels",
        source=f"{_ENV}: NCCL_IB_QPS_PER_CONNECTION",
    ),
    Knob(
        name="gloo.interfaces",
        default="default",
        choices=("default",),
        pattern=rf"{_INTERFACE}(,{_INTERFACE}){{0,7}}",
        pattern_words="interfaces such as eth0,eth1",
        scope="for more than one CPU rank",
        acts=_if_set("gloo.interfaces", _named, "default"),
        help="network interfaces that carry collectives in turn; each entry is a device with a "
        "thread that polls it and two that compute, so that the same interface twice has twice "
        "the threads; default: the one that the fleet names",
        source="torch: ProcessGroupGloo.cpp, GLOO_SOCKET_IFNAME",
    ),
)
"""In an order in which a knob comes after those that it looks at."""
