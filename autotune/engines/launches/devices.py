"""The devices and the tasks of a node, against the ranks that a launch starts there."""

from collections.abc import Iterator
from typing import NamedTuple

from autotune.base.units import format_count
from autotune.engines.launches.line import OWN_LAUNCHERS, Ranks, VisibleDevices
from autotune.space.rule import Consequence


class Misfit(NamedTuple):
    """What does not fit on a node, or between nodes."""

    rule: str
    problem: str
    fix: str
    consequence: Consequence | None = None


def misfits(ranks: Ranks, visible: VisibleDevices | None) -> Iterator[Misfit]:
    """What does not fit on a node, and nodes that do not find one another.

    Its ranks and devices, and the tasks of Slurm's that each start a launcher.
    """
    per_node, gpus, tasks = ranks.per_node, ranks.gpus, ranks.tasks or ranks.tasks_per_node or 1
    nodes = ranks.world // per_node if ranks.world and per_node else None
    nodes = nodes and (1 if ranks.reaches_nodes else nodes)
    if ranks.unmet:
        fix = "give --rdzv_backend c10d --rdzv_endpoint HOST:29500, where HOST is the first node"
        if ranks.launcher in OWN_LAUNCHERS:
            fix = "set MASTER_ADDR to the first node, NODE_RANK to the number of each, from 0 on"
        # What starts a line that stands alone may set PET_NODE_RANK and its like.
        surely: Consequence = "raised" if ranks.starter else "may_raise"
        yield Misfit("lone_nodes", f"{ranks.unmet}, until it gives up", fix, surely)
    elif ranks.left_nodes:
        has = f"the job has {ranks.left_nodes + 1} nodes, and {ranks.launcher} stands without srun"
        fix = "start it by srun, one task a node, name the nodes in a hostfile, or ask for one"
        yield Misfit("lone_nodes", f"{has}: the first node alone runs it", fix)
    if ranks.unlisted:
        fix = "name what it has, or say all devices of a node in the hostfile"
        yield Misfit("visible_devices", f"{ranks.unlisted}: DeepSpeed's launcher refuses it", fix)
        return
    if per_node is None:
        return
    if ranks.launcher and tasks > 1 and ((ranks.tasks_per_node or 1) > 1 or nodes is not None):
        if nodes is None or tasks > nodes:
            on_each = f", {ranks.tasks_per_node} on a node" if ranks.tasks_per_node else ""
            counted = format_count(nodes, "node") if nodes and not ranks.reaches_nodes else ""
            what = f"srun starts {tasks} tasks{on_each}, and each of them starts {ranks.launcher} "
            what += f"with {format_count(per_node, 'rank')}{counted and f' for {counted}'}"
            if ranks.reaches_nodes:
                yield Misfit(
                    "tasks", f"{what}: it starts those of all nodes itself", "leave srun out"
                )
                return
            if nodes and ranks.tasks_per_node == 1:
                fix = f"tell {ranks.launcher} of {tasks} nodes (torchrun: --nnodes {tasks})"
                yield Misfit("lone_nodes", f"{what}: they do not train together", fix)
            else:
                fix = "start one task a node (--ntasks-per-node=1), and leave the ranks to "
                fix += ranks.launcher
                yield Misfit("tasks", f"{what}: they clash over ports and devices", fix)
                return
        per_node *= ranks.tasks_per_node or 1  # each task is a node to the launcher
    if visible is not None and per_node > visible.count:
        source = f"{visible.source}={visible.names}"
        left = f"{source} leaves {visible.count} of a node's devices visible"
        yield _too_few(left, visible.count, per_node)
    elif visible is None and gpus is not None and per_node > gpus:
        yield _too_few(f"the job asks for {format_count(gpus, 'GPU')} a node", gpus, per_node)
    elif visible is None and gpus is not None and per_node < gpus:
        yield Misfit(
            "idle_devices",
            f"the job asks for {gpus} GPUs a node, and the line starts "
            f"{format_count(per_node, 'rank')} on it: {gpus - per_node} of them stay idle",
            f"start {gpus} ranks a node, or ask for {format_count(per_node, 'GPU')}",
        )


def _too_few(what: str, first: int, per_node: int) -> Misfit:
    ranks = f"rank {first} ends" if first == per_node - 1 else f"ranks from {first} on end"
    return Misfit(
        "visible_devices",
        f"{what}, and the line starts {per_node} ranks on it: {ranks} with an invalid device "
        "ordinal",
        f"start {first} ranks a node, or make {per_node} devices visible",
    )
