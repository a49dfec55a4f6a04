"""Faults of nodes that are reached by ssh: killed, stopped, cut off, full, slow, another time.

Trials take four ranks on two nodes, in network namespaces. Whatever happens to one of them, the
trial ends, nothing stays on any node, and the next trial runs on both.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from autotune.contract import Outcome
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.hostfile import HostfileTransport
from autotune.record.study import Study
from tests.chaos.arena import Ground
from tests.chaos.disks import fill, needs_mounts
from tests.chaos.faults import Fault, must
from tests.chaos.gangs import Gangs
from tests.chaos.models import PLACES
from tests.clusters.ssh import SshNodes, lacks_for_ssh_nodes, run, ssh_nodes
from tests.searches import Search

_FAR_TIME = """
import time
_true = time.time
time.time = lambda: _true() + {seconds}
"""


class Nodes(Gangs):
    """Two nodes with two slots each, a fleet of them, and a study."""

    def __init__(self, folder: Path) -> None:
        """Make them."""
        records = folder / "records"
        records.mkdir()
        with contextlib.ExitStack() as made:
            self.cluster: SshNodes = made.enter_context(
                ssh_nodes(folder, 2, slots=2, is_apart=[records])
            )
            options = FleetOptions(ssh=self.cluster.ssh)
            transport = HostfileTransport(str(self.cluster.hostfile), options)
            super().__init__(transport, records, world=4, seen=self.cluster.temporary)
            self._nodes = made.pop_all()

    def close(self) -> None:
        """End all of it."""
        with self._nodes:
            super().close()

    def check(self) -> None:
        """Both nodes are back, nothing of a trial is on them, and they train a sound one."""
        self.wait(lambda: not self.fleet.absent(), "a node that is back is not taken back")
        self.trains()
        self.wait(lambda: not self.ranks(), f"ranks are left: {self.ranks()}")
        left = self.cluster.left("**/spec.json")
        must(not left, f"files of trials are left: {left}")

    def ranks(self, node: int | None = None) -> list[psutil.Process]:
        """Ranks on a node, or on both."""
        found = []
        for process in self.cluster.processes(node):
            with contextlib.suppress(psutil.Error):
                if "autotune.trial.wrapper" in process.cmdline():
                    found.append(process)
        return found

    def agent(self, node: int) -> psutil.Process:
        """The agent of a node."""
        return self.cluster.agents(node)[0]


def nodes_of(ground: Ground) -> Nodes:
    """The nodes that the faults share; made when they are first asked for."""
    return ground.shared("nodes", Nodes)


def _agent_killed(nodes: Nodes, node: int) -> Callable[[], None]:
    nodes.agent(node).kill()
    return _nothing


def _agent_stopped(nodes: Nodes, node: int) -> Callable[[], None]:
    nodes.agent(node).suspend()
    return _nothing


def _node_killed(nodes: Nodes, node: int) -> Callable[[], None]:
    nodes.cluster.kill(node)
    return functools.partial(nodes.cluster.boot, node)


def _cable_cut(nodes: Nodes, node: int) -> Callable[[], None]:
    nodes.cluster.cut(node)
    return functools.partial(nodes.cluster.mend, node)


def _ranks_killed(nodes: Nodes, node: int) -> Callable[[], None]:
    for rank in nodes.ranks(node):
        rank.kill()
    return _nothing


def _nothing() -> None:
    """Mend nothing."""


_EVENTS: dict[str, Callable[[Nodes, int], Callable[[], None]]] = {
    "agent killed": _agent_killed,
    "agent stopped": _agent_stopped,
    "node killed": _node_killed,
    "network cut and restored": _cable_cut,
    "all ranks of a node killed": _ranks_killed,
}
"""What happens to a node, by its name; each returns what mends it."""


_OF_SSH = "tests/fleet/transports/test_ssh_faults.py::test_"
ASKED = {
    "agent killed": f"{_OF_SSH}an_agent_that_is_killed_costs_its_trial_and_no_other",
    "node killed": f"{_OF_SSH}a_node_that_dies_is_left_out_until_it_is_back",
    "network cut and restored": f"{_OF_SSH}a_cut_cable_ends_what_runs_on_both_sides_of_it",
}
"""Tests that ask the same in every run: the short form does not ask again."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for subject, event in _EVENTS.items():
        for place in PLACES:
            for node in (0, 1):
                yield Fault(
                    name=f"{subject}: in {place}, of {'the first' if node == 0 else 'another'}",
                    inject=functools.partial(_inject, event, place, node),
                    in_short=subject not in ASKED and (place, node) == ("forward", 1),
                    needs=lacks_for_ssh_nodes,
                )
    for name, inject in (
        ("disk of a node full: while a trial runs", _full),
        ("clock of a node: an hour ahead", functools.partial(_clock, 3600)),
        ("clock of a node: a day behind", functools.partial(_clock, -86400)),
        ("slow node: a network of 4 Mbit/s", _slow),
    ):
        yield Fault(
            name=name,
            inject=inject,
            in_short=name in _SHORT,
            needs=lambda: lacks_for_ssh_nodes() or needs_mounts(),
        )


_SHORT = {
    "disk of a node full: while a trial runs",
    "clock of a node: an hour ahead",
    "slow node: a network of 4 Mbit/s",
}


def _inject(
    event: Callable[[Nodes, int], Callable[[], None]], place: str, node: int, ground: Ground
) -> None:
    nodes = nodes_of(ground)
    trial = nodes.hang(place)
    mend = event(nodes, node)
    try:
        nodes.ends_by_the_platform(trial)
    finally:
        mend()
    nodes.check()


def _full(ground: Ground) -> None:
    """The node's temporary files have no room any more."""
    nodes = nodes_of(ground)
    server = nodes.cluster.servers[1].pid
    home = nodes.cluster.temporary / nodes.cluster.names[1]
    inside = ("nsenter", "-t", str(server), "-m")
    nodes.ends(nodes.submit("nothing_in_first"))
    run(*inside, "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(home))
    try:
        nodes.agent(1).kill()  # the next one begins with the small disk
        nodes.ends(nodes.submit("nothing_in_first"))
        filler = fill(Path(f"/proc/{server}/root") / home.relative_to("/"))
        result = nodes.ends(nodes.submit("nothing_in_first"))
        said = result.evidence
        must(result.outcome.is_platform_fault, f"not the platform's: {said}")
        must(
            "No space left" in said and nodes.cluster.names[1] in said, f"nobody says why: {said}"
        )
        filler.unlink()
    finally:
        run(*inside, "umount", "-l", str(home))
    nodes.agent(1).kill()
    nodes.ends(nodes.submit("nothing_in_first"))  # it may be lost with the agent
    nodes.check()


def _clock(seconds: int, ground: Ground) -> None:
    """A search whose second node has another time."""
    folder = ground.folder()
    packages = folder / "packages"
    packages.mkdir()
    (packages / "sitecustomize.py").write_text(_FAR_TIME.format(seconds=seconds))
    with ssh_nodes(folder, 2, variables={1: {"PYTHONPATH": str(packages)}}) as cluster:
        search = Search(folder)
        flags = [*cluster.flags, "--trials", "1", "--no-diagnose", "--budget", "25s"]
        code, _, stderr = search.run(*flags)
        must(code == 0, f"exit code {code}: {stderr[-500:]}")
        _check_phases(search.study)


def _check_phases(study: Study) -> None:
    now_s = time.time()
    for trial in study.trials():
        must(trial.result is not None, "a trial without a result")
        phases = trial.result.phases_s
        must(trial.result.outcome.is_measured, str(trial.result.evidence))
        must(all(0 <= s <= trial.result.wall_s for s in phases.values()), f"{phases}")
        must(abs(trial.result.started_at_s - now_s) < 600, "it has the node's time")


def _slow(ground: Ground) -> None:
    """Little gets through to one node: its trials take longer, and no one gives it up."""
    nodes = nodes_of(ground)
    device = f"{nodes.cluster.names[1]}p"
    at = ("ip", "netns", "exec", nodes.cluster.head, "tc", "qdisc")
    rate = ("rate", "4mbit", "burst", "32kb", "latency", "400ms")
    run(*at, "add", "dev", device, "root", "tbf", *rate)
    try:
        result = nodes.ends(nodes.submit("nothing_in_first"))
        must(result.outcome is Outcome.OK, f"{result.outcome}: {result.evidence}")
        must(not nodes.fleet.absent(), "a slow node was given up")
    finally:
        run(*at, "del", "dev", device, "root")
    nodes.check()
