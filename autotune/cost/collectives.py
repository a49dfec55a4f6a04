"""How long collectives take: alpha-beta over the slowest link that their group crosses."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans


@dataclass(frozen=True, kw_only=True)
class Link:
    """The links by which one rank reaches others, at their full rate."""

    bytes_per_s: Column
    """Bus bandwidth of gathers."""
    hop_s: Column
    all_reduce_speed: Column
    """Share of that rate which all-reduces reach."""
    all_to_all_speed: Column
    send_speed: Column


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks that talk to each other, and what lies between them."""

    ranks: Column
    local: Column
    """Ranks that one of them reaches without the network, itself included."""
    near: Link
    """Link to those."""
    far: Link
    """Link to all others."""
    hop_s: Column
    """Latency from one rank to the next, on average round the ring."""

    @cached_property
    def bytes_per_s(self) -> Column:
        """Bus bandwidth of a ring through all of them, of gathers."""
        return self._rate(1.0, 1.0, self.local)

    @cached_property
    def all_reduce_bytes_per_s(self) -> Column:
        """The same of all-reduces."""
        return self._rate(self.near.all_reduce_speed, self.far.all_reduce_speed, self.local)

    @cached_property
    def send_bytes_per_s(self) -> Column:
        """The same of sends: only the last rank of a domain sends beyond it, by its own link."""
        return self._rate(self.near.send_speed, self.far.send_speed, 1.0)

    def _rate(self, near_speed: Column, far_speed: Column, links: Column) -> Column:
        """Rate that the near link allows, and beyond a domain so many far ones."""
        inside = self.near.bytes_per_s * near_speed
        outside = self.far.bytes_per_s * links * far_speed
        # A rank that is alone in its domain never takes the near link.
        crossing = np.where(np.greater(self.local, 1), np.minimum(inside, outside), outside)
        return np.where(np.greater(self.ranks, self.local), crossing, inside)


def group(p: Plans, c: Constants, *, ranks: Column, stride: Column) -> RankGroup:
    """The group of ranks that are `stride` apart: measured links count in full, others in part."""
    near = Link(
        bytes_per_s=p.nvlink_bytes_per_s * np.where(p.nvlink_measured, 1.0, c.nvlink_share),
        hop_s=np.where(np.greater(p.nvlink_latency_s, 0), p.nvlink_latency_s, c.nvlink_latency_s),
        all_reduce_speed=p.nvlink_all_reduce_speed,
        all_to_all_speed=p.nvlink_all_to_all_speed,
        send_speed=p.nvlink_send_speed,
    )
    far = Link(
        bytes_per_s=p.network_bytes_per_s * np.where(p.network_measured, 1.0, c.network_share),
        hop_s=np.where(
            np.greater(p.network_latency_s, 0), p.network_latency_s, c.network_latency_s
        ),
        all_reduce_speed=p.network_all_reduce_speed,
        all_to_all_speed=p.network_all_to_all_speed,
        send_speed=p.network_send_speed,
    )
    return ring(near, far, ranks=ranks, local=np.clip(p.nvlink_domain / stride, 1.0, ranks))


def ring(near: Link, far: Link, *, ranks: Column, local: Column) -> RankGroup:
    """The ring through `ranks`, of which `local` at a time are joined by the near link.

    Within one NVLink domain it runs at NVLink's rate. Beyond, a ring leaves each domain through
    the network shares of all the ranks that it has there, and all rings of the domain do so at
    once: share x (ranks in the domain), never more than NVLink's. NCCL's hierarchy of rings and
    trees comes to the same bound. Source: Thakur, Rabenseifner and Gropp (IJHPCA 19, 2005),
    section 2, for alpha-beta; NVIDIA nccl-tests, doc/PERFORMANCE.md, for bus bandwidth.
    """
    hop_s = np.where(
        np.greater(ranks, local), near.hop_s + (far.hop_s - near.hop_s) / local, near.hop_s
    )
    return RankGroup(ranks=ranks, local=local, near=near, far=far, hop_s=hop_s)


def all_reduce_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-reduces of `size_bytes` each.

    2 (n - 1)/n x size / bandwidth, and 2 log2 n hops, since NCCL takes trees where latency counts.
    Source: Thakur et al. (2005), section 4; Jeaugey, "Massively scale your deep learning
    training with NCCL 2.4" (NVIDIA, 2019), for the trees.
    """
    rounds = 2.0 * (1.0 - 1.0 / g.ranks)
    moving_s = rounds * size_bytes / g.all_reduce_bytes_per_s
    return calls * (moving_s + 2.0 * np.log2(g.ranks) * g.hop_s)


def gather_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-gathers or reduce-scatters, `size_bytes` being the whole, not a shard.

    (n - 1)/n x size / bandwidth, and n - 1 hops: NCCL has only rings for these. Source: Thakur et
    al. (2005), section 4.
    """
    hops = g.ranks - 1.0
    return calls * hops * (size_bytes / (g.ranks * g.bytes_per_s) + g.hop_s)


def exchange_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-to-alls in which each rank sends `size_bytes` in all.

    size / n to each of the others: over NVLink to those nearby, and to all others through the
    rank's own share of the network, which no ring of the node helps with; and n - 1 sends. Source:
    Thakur et al. (2005), section 4.
    """
    near_s = (g.local - 1.0) / (g.near.bytes_per_s * g.near.all_to_all_speed)
    far_s = np.maximum(0.0, g.ranks - g.local) / (g.far.bytes_per_s * g.far.all_to_all_speed)
    return calls * (size_bytes / g.ranks * (near_s + far_s) + (g.ranks - 1.0) * g.hop_s)


def send_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` sends of `size_bytes` to the next rank."""
    return calls * np.greater(g.ranks, 1) * (size_bytes / g.send_bytes_per_s + g.hop_s)
