"""The devices and the tasks of a node, against the ranks that a launch starts there."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from autotune.base.data import table_beside
from autotune.base.units import format_count
from autotune.engines.launches.line import OWN_LAUNCHERS, Ranks, VisibleDevices
from autotune.space.rule import Consequence

_WORDS = table_beside(__file__, "misfits.json")


class Misfit(NamedTuple):
    """What does not fit on a node, or between nodes."""

    rule: str
    problem: str
    fix: str
    consequence: Consequence | None = None


def misfit(row: str, consequence: Consequence | None = None, /, **facts: Any) -> Misfit:
    """What a row of `misfits.json` says, with facts put in."""
    rule, *texts = _WORDS[row]
    problem, fix = (text.format(**facts) for text in texts)
    return Misfit(rule, problem, fix, consequence)


def misfits(ranks: Ranks, visible: VisibleDevices | None) -> Iterator[Misfit]:
    """What does not fit on a node, and nodes that do not find one another.

    Its ranks and devices, and the tasks of Slurm's that each start a launcher.
    """
    per_node, gpus, tasks = ranks.per_node, ranks.gpus, ranks.tasks or ranks.tasks_per_node or 1
    nodes = ranks.world // per_node if ranks.world and per_node else None
    nodes = nodes and (1 if ranks.reaches_nodes else nodes)
    launcher = ranks.launcher
    if ranks.unmet:
        row = "unmet_variables" if launcher in OWN_LAUNCHERS else "unmet"
        # What starts a line that stands alone may set PET_NODE_RANK and its like.
        yield misfit(row, "raised" if ranks.starter else "may_raise", why=ranks.unmet)
    elif ranks.left_nodes:
        yield misfit("left_nodes", nodes=ranks.left_nodes + 1, launcher=launcher)
    if ranks.idle_nodes:
        yield misfit("idle_nodes", nodes=format_count(ranks.idle_nodes, "node"))
    if ranks.is_taken:
        yield misfit("taken_port", launcher=launcher, port=ranks.port)
    if ranks.unlisted:
        yield misfit("unlisted", why=ranks.unlisted)
        return
    if per_node is None:
        return
    if launcher and tasks > 1 and ((ranks.tasks_per_node or 1) > 1 or nodes is not None):
        if nodes is None or tasks > nodes:
            yield _tasks(ranks, tasks, nodes, format_count(per_node, "rank"))
            if ranks.reaches_nodes or not (nodes and ranks.tasks_per_node == 1):
                return
        per_node *= ranks.tasks_per_node or 1  # each task is a node to the launcher
    if visible is not None and per_node > visible.count:
        source = f"{visible.source}={visible.names}"
        left = f"{source} leaves {visible.count} of a node's devices visible"
        yield _too_few(left, visible.count, per_node)
    elif visible is None and gpus is not None and per_node > gpus:
        what = f"the job asks for {format_count(gpus, 'GPU')} a node or task"
        yield _too_few(what, gpus, per_node)
    elif visible is None and gpus is not None and per_node < gpus:
        counted = {"ranks": format_count(per_node, "rank"), "asks": format_count(per_node, "GPU")}
        yield misfit("idle_devices", gpus=gpus, idle=gpus - per_node, **counted)


def _tasks(ranks: Ranks, tasks: int, nodes: int | None, counted: str) -> Misfit:
    """More tasks than the launcher that each of them starts is told of nodes."""
    row = "started_by_all" if ranks.reaches_nodes else "clashing_tasks"
    if nodes and ranks.tasks_per_node == 1 and not ranks.reaches_nodes:
        row = "untold_nodes"
    on_each = f", {ranks.tasks_per_node} on a node" if ranks.tasks_per_node else ""
    where = f" for {format_count(nodes, 'node')}" if nodes and not ranks.reaches_nodes else ""
    facts = {"on_each": on_each, "launcher": ranks.launcher, "ranks": f"{counted}{where}"}
    return misfit(row, tasks=tasks, **facts)


def _too_few(what: str, first: int, per_node: int) -> Misfit:
    ranks = f"rank {first} ends" if first == per_node - 1 else f"ranks from {first} on end"
    return misfit("too_few_devices", what=what, per_node=per_node, ranks=ranks, first=first)
