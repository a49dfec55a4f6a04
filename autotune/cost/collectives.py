"""How long collectives take: alpha-beta over the slowest link that their group crosses."""

from dataclasses import dataclass

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that talk to each other, and what lies between them."""

    ranks: Column
    bytes_per_s: Column
    """Bus bandwidth of a ring through all of them."""
    hop_s: Column
    """Latency from one rank to the next, on average round the ring."""
    local: Column
    """Ranks that one of them reaches without the network, itself included."""
    nvlink_bytes_per_s: Column
    network_bytes_per_s: Column
    """Of one rank."""
    all_reduce_speed: Column
    """Of those rates, that all-reduces reach; 1 across nodes, where nobody measured it."""
    all_to_all_speed: Column
    """The same, of all-to-alls to ranks nearby."""
    send_speed: Column


def group(p: Plans, c: Constants, *, ranks: Column, stride: Column) -> Group:
    """The ring through ranks that are `stride` apart.

    Within one NVLink domain it runs at NVLink's rate. Beyond, a ring leaves each domain through
    the network shares of all the ranks that it has there, and all rings of the domain do so at
    once: share x (ranks in the domain), never more than NVLink's. NCCL's hierarchy of rings and
    trees comes to the same bound. Source: Thakur, Rabenseifner and Gropp (IJHPCA 19, 2005),
    section 2, for alpha-beta; NVIDIA nccl-tests, doc/PERFORMANCE.md, for bus bandwidth.
    """
    local = np.clip(p.nvlink_domain / stride, 1.0, ranks)
    crosses = np.greater(ranks, local)
    nvlink = p.nvlink_bytes_per_s * np.where(p.nvlink_measured, 1.0, c.nvlink_share)
    near_s = np.where(np.greater(p.nvlink_latency_s, 0), p.nvlink_latency_s, c.nvlink_latency_s)
    own_network = p.network_bytes_per_s * c.network_share
    network = own_network * local
    return Group(
        ranks=ranks,
        bytes_per_s=np.where(crosses, np.minimum(nvlink, network), nvlink),
        hop_s=np.where(
            crosses,
            near_s + (c.network_latency_s - near_s) / local,
            near_s,
        ),
        local=local,
        nvlink_bytes_per_s=nvlink,
        network_bytes_per_s=own_network,
        all_reduce_speed=np.where(crosses, 1.0, p.all_reduce_speed),
        all_to_all_speed=p.all_to_all_speed,
        send_speed=np.where(crosses, 1.0, p.send_speed),
    )


def all_reduce_s(g: Group, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-reduces of `size_bytes` each.

    2 (n - 1)/n x size / bandwidth, and 2 log2 n hops, since NCCL takes trees where latency counts.
    Source: Thakur et al. (2005), section 4; Jeaugey, "Massively scale your deep learning
    training with NCCL 2.4" (NVIDIA, 2019), for the trees.
    """
    rounds = 2.0 * (1.0 - 1.0 / g.ranks)
    bytes_per_s = g.bytes_per_s * g.all_reduce_speed
    return calls * (rounds * size_bytes / bytes_per_s + 2.0 * np.log2(g.ranks) * g.hop_s)


def gather_s(g: Group, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-gathers or reduce-scatters, `size_bytes` being the whole, not a shard.

    (n - 1)/n x size / bandwidth, and n - 1 hops: NCCL has only rings for these. Source: Thakur et
    al. (2005), section 4.
    """
    hops = g.ranks - 1.0
    return calls * hops * (size_bytes / (g.ranks * g.bytes_per_s) + g.hop_s)


def exchange_s(g: Group, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-to-alls in which each rank sends `size_bytes` in all.

    size / n to each of the others: over NVLink to those nearby, and to all others through the
    rank's own share of the network, which no ring of the node helps with; and n - 1 sends. Source:
    Thakur et al. (2005), section 4.
    """
    near_s = (g.local - 1.0) / (g.nvlink_bytes_per_s * g.all_to_all_speed)
    far_s = np.maximum(0.0, g.ranks - g.local) / g.network_bytes_per_s
    return calls * (size_bytes / g.ranks * (near_s + far_s) + (g.ranks - 1.0) * g.hop_s)


def send_s(g: Group, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` sends of `size_bytes` to the next rank."""
    return calls * np.greater(g.ranks, 1) * (size_bytes / (g.bytes_per_s * g.send_speed) + g.hop_s)
