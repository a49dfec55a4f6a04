"""How long collectives take: alpha-beta over the slowest link that their group crosses."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.device import LinkName
from autotune.cost.plans import Algorithm, Column, Plans

TREE_SHARE = 0.92
"""Share of a ring's bus bandwidth that trees reach. Source: NVIDIA/nccl, src/graph/tuning.cc, the
factor of NCCL_ALGO_TREE."""
_SPEEDS = ("all_reduce_speed", "all_to_all_speed", "send_speed")
"""Fields of a link that its columns call alike."""


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
    is_measured: Column = 0.0
    """Whether the figures are the curves of a probe."""
    all_reduce_hop_s: Column = 0.0
    """Latency of an all-reduce's measured curve, per hop; 0: `hop_s`."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The network between nodes, as one group of ranks meets it."""

    inside: Column
    """Ranks of the group that reach each other at the network's full rate."""
    oversubscription: Column = 1.0
    """Bandwidth of the nodes among which that holds, over that of the links beyond."""
    inside_hop_s: Column = 0.0
    """Latency of the switches between these nodes, beyond a first one."""
    across_hop_s: Column = 0.0
    """The same between nodes of two such sets."""
    pair_links: Column = 1.0
    """Shares of the network that one rank has for a send while others of its node are silent."""
    other_rails: Column = 0.0
    """Share of the ranks on other nodes that are under another rail's switch."""


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
    fabric: Fabric
    """What lies between those others."""
    algorithm: Column = 0.0
    """An `Algorithm`: how all-reduces go."""
    step_s: Column = 0.0
    """Least time of a step of a ring that leaves a domain."""

    @cached_property
    def crosses(self) -> Column:
        """Whether some of them reach others by the network alone."""
        return np.greater(self.ranks, self.local)

    @cached_property
    def hop_s(self) -> Column:
        """Latency from one rank to the next, on average round the ring."""
        return self._mean_hop(self.near.hop_s, self.far.hop_s)

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
        """The same of sends: only the last rank of a domain sends beyond it.

        It has its own share of the network, and where cards are fewer than devices also those of
        the silent ranks beside it.
        """
        return self._rate(self.near.send_speed, self.far.send_speed, self.fabric.pair_links)

    @cached_property
    def is_measured(self) -> Column:
        """Whether a probe measured the slowest link that a collective takes here."""
        return np.where(self.crosses, self.far.is_measured, self.near.is_measured)

    @cached_property
    def curve_hop_s(self) -> Column:
        """Latency per hop of the measured curve of all-reduces."""
        near, far = (
            np.where(np.greater(link.all_reduce_hop_s, 0), link.all_reduce_hop_s, link.hop_s)
            for link in (self.near, self.far)
        )
        return self._mean_hop(near, far)

    def _rate(self, near_speed: Column, far_speed: Column, links: Column) -> Column:
        """Rate that the near link allows, and beyond a domain so many far ones.

        Ranks are in the order of the nodes, and nodes in that of the fabric: a ring leaves a set
        of g nodes once. All rings that do so share its links beyond, which are those of g nodes
        over the oversubscription: each has (its ranks in the set) / oversubscription shares.
        """
        inside = self.near.bytes_per_s * near_speed
        fabric = self.fabric
        beyond = np.where(
            np.greater(self.ranks, fabric.inside), fabric.inside / fabric.oversubscription, links
        )
        outside = self.far.bytes_per_s * np.minimum(links, beyond) * far_speed
        # A rank that is alone in its domain never takes the near link.
        crossing = np.where(np.greater(self.local, 1), np.minimum(inside, outside), outside)
        return np.where(self.crosses, crossing, inside)

    def _mean_hop(self, near_s: Column, far_s: Column) -> Column:
        """One hop in `local` leaves a domain, and one in `inside` the nodes that are close.

        A ring that leaves a domain takes every step by the host's thread that drives the network.
        Source: NVIDIA/nccl, src/graph/tuning.cc, "inter-node rings still have to launch nsteps *
        net overhead".
        """
        fabric = self.fabric
        near_s = np.where(self.crosses, np.maximum(near_s, self.step_s), near_s)
        far_s = far_s + fabric.inside_hop_s
        beyond_s = np.greater(self.ranks, fabric.inside) * _beyond_hop_s(fabric) / fabric.inside
        leaving_s = (far_s - near_s) / self.local + beyond_s
        return np.where(self.crosses, near_s + leaving_s, near_s)


def group(
    p: Plans,
    c: Constants,
    *,
    ranks: Column,
    stride: Column,
    network_share: float | None = None,
) -> RankGroup:
    """The group of ranks that are `stride` apart: measured links count in full, others in part.

    `network_share` is that part of the network's; by default the constants'.
    """
    near = _link(p, "nvlink", c.nvlink_share, c.nvlink_latency_s)
    far_share = c.network_share if network_share is None else network_share
    far = _link(p, "network", far_share, c.network_latency_s)
    local = np.clip(p.nvlink_domain / stride, 1.0, ranks)
    return RankGroup(
        ranks=ranks,
        local=local,
        near=near,
        far=far,
        fabric=_fabric(p, ranks=ranks, stride=stride, local=local),
        algorithm=p.all_reduce_algorithm,
        step_s=np.where(p.network_measured, 0.0, c.network_step_s),
    )


def _link(p: Plans, name: LinkName, share: Column, latency_s: Column) -> Link:
    """A link as its columns have it; where nobody measured it, with these."""
    measured, latency = getattr(p, f"{name}_measured"), getattr(p, f"{name}_latency_s")
    return Link(
        bytes_per_s=getattr(p, f"{name}_bytes_per_s") * np.where(measured, 1.0, share),
        hop_s=np.where(np.greater(latency, 0), latency, latency_s),
        is_measured=measured,
        all_reduce_hop_s=getattr(p, f"{name}_all_reduce_latency_s"),
        **{key: getattr(p, f"{name}_{key}") for key in _SPEEDS},
    )


def _fabric(p: Plans, *, ranks: Column, stride: Column, local: Column) -> Fabric:
    """The network as ranks that are `stride` apart meet it.

    A node's cards carry the shares of all its devices: each of r cards the shares of d / r
    devices. A send that d / r - 1 silent ranks beside it leave the whole card to has all of them.
    """
    devices = p.devices_per_node
    close = np.clip(p.fabric_nodes * devices / stride, local, np.maximum(local, ranks))
    rails = np.where(np.greater(p.rails, 0), p.rails, devices)
    per_rail = np.maximum(1.0, devices / rails)
    # Of the ranks in a node, the last of each group sends: as many as there are groups.
    senders = np.where(np.greater(local, 1), np.minimum(stride, devices), devices)
    return Fabric(
        inside=np.where(np.greater(p.fabric_nodes, 0), close, np.maximum(local, ranks)),
        oversubscription=p.oversubscription,
        inside_hop_s=p.inside_hop_s,
        across_hop_s=p.across_hop_s,
        pair_links=per_rail / np.minimum(per_rail, senders),
        other_rails=p.rail_optimized * (1.0 - 1.0 / np.minimum(local, rails)),
    )


def ring(near: Link, far: Link, *, ranks: Column, local: Column) -> RankGroup:
    """The ring through `ranks`, of which `local` at a time are joined by the near link.

    Within one NVLink domain it runs at NVLink's rate. Beyond, a ring leaves each domain through
    the network shares of all the ranks that it has there, and all rings of the domain do so at
    once: share x (ranks in the domain), never more than NVLink's. NCCL's hierarchy of rings and
    trees comes to the same bound. Source: Thakur, Rabenseifner and Gropp (IJHPCA 19, 2005),
    section 2, for alpha-beta; NVIDIA nccl-tests, doc/PERFORMANCE.md, for bus bandwidth.
    """
    return RankGroup(
        ranks=ranks,
        local=local,
        near=near,
        far=far,
        fabric=Fabric(inside=np.maximum(local, ranks)),
    )


def all_reduce_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` all-reduces of `size_bytes` each.

    The faster of ring and tree at that size, or the one that is forced. Where a probe measured the
    links, its curve decides instead: it timed what the library chose.
    """
    ring_s, tree_s = ring_all_reduce_s(g, size_bytes), tree_all_reduce_s(g, size_bytes)
    chosen_s = np.where(g.is_measured, _measured_s(g, size_bytes), np.minimum(ring_s, tree_s))
    forced = [np.equal(g.algorithm, algorithm) for algorithm in (Algorithm.RING, Algorithm.TREE)]
    return calls * np.select(forced, [ring_s, tree_s], default=chosen_s)


def ring_all_reduce_s(g: RankGroup, size_bytes: Column) -> Column:
    """A reduce-scatter round the ring and an all-gather after it, in seconds.

    2 (n - 1)/n x size / bandwidth, and 2 (n - 1) hops. Source: Thakur et al. (2005), section 4;
    NVIDIA/nccl, src/graph/tuning.cc, the steps of NCCL_ALGO_RING.
    """
    moving_s = 2.0 * (1.0 - 1.0 / g.ranks) * size_bytes / g.all_reduce_bytes_per_s
    return moving_s + 2.0 * (g.ranks - 1.0) * g.hop_s


def tree_all_reduce_s(g: RankGroup, size_bytes: Column) -> Column:
    """Up a tree and down again, in seconds.

    Two trees carry half each, and who is inside one is a leaf of the other: every rank sends and
    receives 2 x size. Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth
    broadcast, reduction and scan (Parallel Computing 35, 2009), sections 3 and 5. NCCL's trees
    join nodes; the l ranks of a domain are a chain. The way up or down takes l - 1 near hops, and
    log2(n / l) far ones, of which log2(n / g) leave a fabric's group of g ranks. Source:
    NVIDIA/nccl, src/graph/tuning.cc, the latency of NCCL_ALGO_TREE.
    """
    n, fabric = g.ranks, g.fabric
    moving_s = 2.0 * size_bytes / (TREE_SHARE * g.all_reduce_bytes_per_s)
    way_s = (g.local - 1.0) * g.near.hop_s
    far_s = g.far.hop_s + fabric.inside_hop_s
    way_s = way_s + np.log2(np.maximum(1.0, n / g.local)) * far_s
    way_s = way_s + np.log2(np.maximum(1.0, n / fabric.inside)) * _beyond_hop_s(fabric)
    # One rank moves nothing.
    return np.greater(n, 1) * (moving_s + 2.0 * way_s)


def _measured_s(g: RankGroup, size_bytes: Column) -> Column:
    """The curve of a probe: 2 (n - 1)/n x size / bandwidth, and 2 log2 n hops.

    It goes through the points whatever the library ran: `autotune.probe.curves` fits it so.
    """
    moving_s = 2.0 * (1.0 - 1.0 / g.ranks) * size_bytes / g.all_reduce_bytes_per_s
    return moving_s + 2.0 * np.log2(g.ranks) * g.curve_hop_s


def _beyond_hop_s(fabric: Fabric) -> Column:
    """Latency that a hop between two sets of close nodes takes longer than one within a set."""
    return fabric.across_hop_s - fabric.inside_hop_s


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
    rank's own share of the network, which no ring of the node helps with; and n - 1 sends. What
    leaves a fabric's group has the share over the oversubscription. What goes to another rail of a
    rail-optimized network crosses NVLink first, to the rank whose card is on that rail. Source:
    Thakur et al. (2005), section 4; Mandakolathur and Jeaugey, Doubling all2all Performance with
    NVIDIA Collective Communication Library 2.12 (NVIDIA, 2022), for the rails.
    """
    fabric = g.fabric
    others = np.maximum(0.0, g.ranks - g.local)
    nearby = g.local - 1.0 + fabric.other_rails * others
    beyond = fabric.oversubscription * np.maximum(0.0, g.ranks - fabric.inside)
    near_s = nearby / (g.near.bytes_per_s * g.near.all_to_all_speed)
    far_s = np.maximum(others, beyond) / (g.far.bytes_per_s * g.far.all_to_all_speed)
    return calls * (size_bytes / g.ranks * (near_s + far_s) + (g.ranks - 1.0) * g.hop_s)


def spread_s(
    g: RankGroup, token_bytes: Column, copies: Column, reach_share: Column, groups: Column
) -> Column:
    """Seconds in which each rank sends each token to the ranks of the `copies` experts it chose.

    A token crosses the network once to each node, and NVLink takes it on from there at the same
    time. Copies that go to m equally likely places reach m (1 - (1 - 1/m)^copies) of them. The
    likely places hold one of the `groups` of experts that the router chose, a `reach_share` of
    all. Source: deepseek-ai/DeepEP, README.md, and its branch hybrid-ep for domains of NVLink.
    """
    fabric = g.fabric
    sets = np.maximum(1.0, g.ranks / fabric.inside)
    nodes = np.maximum(1.0, g.ranks / g.local)

    def others(places: Column) -> Column:
        has_none = (1.0 - reach_share) ** np.maximum(1.0, groups / places)
        likely = np.maximum(1.0, places * (1.0 - has_none))
        return (1.0 - 1.0 / places) * likely * (1.0 - (1.0 - 1.0 / likely) ** copies)

    far = np.maximum(
        others(nodes), fabric.oversubscription * others(sets) * fabric.inside / g.local
    )
    near_s = others(g.ranks) / (g.near.bytes_per_s * g.near.all_to_all_speed)
    far_s = far / (g.far.bytes_per_s * g.far.all_to_all_speed)
    hops_s = np.greater(g.ranks, 1) * 2.0 * g.hop_s
    return token_bytes * np.maximum(near_s, far_s) + hops_s


def send_s(g: RankGroup, size_bytes: Column, calls: Column = 1.0) -> Column:
    """Time of `calls` sends of `size_bytes` to the next rank."""
    return calls * np.greater(g.ranks, 1) * (size_bytes / g.send_bytes_per_s + g.hop_s)
