"""Runs trials in gangs of slots on the nodes of a transport."""

import dataclasses
import math
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.base.clock import unix_now_s
from autotune.base.errors import AutotuneError, FleetError, StudyError
from autotune.base.text import Say
from autotune.contract import NodeReport, Outcome, Phase, Start, TrialResult, TrialSpec
from autotune.fleet.base import Handle, Place, Progress
from autotune.fleet.collect import collect
from autotune.fleet.gangs import Gang, GangAllocator, Slot
from autotune.fleet.node.files import Incoming, packed
from autotune.fleet.node.places import DevicePlace
from autotune.fleet.node.processes import TRAINS, NodePart
from autotune.fleet.node.ranks import NoTemplateError
from autotune.fleet.reports import read_node_report, read_reports
from autotune.fleet.transports.base import (
    PERIOD_S,
    Node,
    Program,
    Transport,
    started,
    wait_for_end,
)
from autotune.trial.rendezvous import LOOPBACK

AGENT = "autotune.fleet.node.agent"
_END_WAIT_S = 60.0
"""Time after which a node is given up that was asked to end a trial and does not say that it did:
twice what its steps may take together."""
_CLOSE_WAIT_S = 15.0
_OTHERS_WAIT_S = 10.0
"""Time for the ranks of other nodes to end by themselves, once those of one node have."""
LEASE_S = 60.0
"""Time without a word after which a far node ends what it runs, and is given up here: it is dead,
or its network is."""
_ALIVE_S = LEASE_S / 6
"""Time between two words to a far node."""


class GangFleet:
    """A ledger of gangs, and an agent on every node; implements `autotune.fleet.base.Fleet`."""

    def __init__(
        self,
        transport: Transport,
        *,
        world: int,
        is_exclusive: bool = False,
        nodes: Sequence[Node] | None = None,
    ) -> None:
        """Take nodes for a job of `world` ranks; nothing is started yet.

        Args:
            transport: What reaches them.
            world: Ranks of the job.
            is_exclusive: Whether no two trials share a PCIe switch or a network card.
            nodes: Those of the transport, with the devices that are taken; None: all.

        Raises:
            FleetError: There are fewer slots than the job has ranks.
        """
        self._transport = transport
        nodes = transport.nodes() if nodes is None else nodes
        self._nodes = {node.name: node for node in nodes}
        self._allocator = GangAllocator(slots_of(nodes), is_exclusive=is_exclusive)
        if self._allocator.capacity(world) == 0:
            has = ", ".join(f"{len(n.devices)} on {n.name}" for n in self._nodes.values())
            left_out = transport.problems()
            slots, mend = "; ".join((has, *left_out)), "mend what is left out, " * bool(left_out)
            raise FleetError.of("fleet.too_few_slots", world=world, slots=slots, mend=mend)
        self._n_sharing = self._allocator.per_node(world)
        self.agents = {name: _AgentLine(transport, node) for name, node in self._nodes.items()}
        self._not_before_s = 0.0
        self._running: dict[str, GangTrial] = {}
        self._waiting: list[GangTrial] = []
        """Trials for which no gang is free yet, in the order in which they were submitted."""
        self._reaping: set[tuple[str, str]] = set()
        self._cold: set[str] = set()
        """Nodes that could not fork ranks beside those of others: trials with them start cold."""
        self._lost: dict[str, _Lost] = {}
        self._lost_problems: Mapping[str, str] = {}
        """Those of them that were lost while not all nodes were, each with its problem."""
        self.end_of_all = ""
        """Why all nodes are gone for good; empty: they are not, or that is not known."""
        self._ask_again_s = 0.0
        """When the transport may be asked for that again."""

    def capacity(self, world: int) -> int:
        capacity = self._allocator.capacity(world)
        if not capacity and self._lost:
            self.end_of_all = self.end_of_all or self._transport.ended()
            if self.end_of_all:
                raise FleetError.of("fleet.all_gone", why=self.end_of_all)
            why = "; ".join(lost.problem for lost in self._lost.values())
            lost = f"{len(self._lost)} of {len(self._nodes)} nodes"
            raise FleetError.of("fleet.nodes_lost", lost=lost, world=world, why=why)
        if not capacity and (left_out := self.quarantined()):
            raise FleetError.of("fleet.too_few_left", left_out=", ".join(left_out), world=world)
        return capacity

    def check_room(self, world: int) -> None:
        """See that a gang fits once all slots are free.

        Raises:
            FleetError: None does, or none does any more.
        """
        if not self.capacity(world):
            self._allocator.allocate(world)  # says what there is

    def absent(self) -> Mapping[str, str]:
        """Where all nodes are gone for good, none is for the time being."""
        if not self.end_of_all:
            self._lost_problems = {name: lost.problem for name, lost in self._lost.items()}
        return self._lost_problems

    def quarantined(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self._allocator.quarantined)

    def reap(self, folder: Path) -> None:
        for name in self._nodes:
            self._reap(name, str(folder.resolve()))
        deadline_s = time.monotonic() + _END_WAIT_S
        self.hear()
        while self._reaping:
            if time.monotonic() > deadline_s:
                names = ", ".join(sorted({name for name, _ in self._reaping}))
                raise FleetError.of("fleet.may_still_run", names=names, waited_s=_END_WAIT_S)
            time.sleep(PERIOD_S)
            self.hear()

    def prepare(self, command: Sequence[str], note: Say) -> None:
        """A build that fails waits for those of other nodes; an interrupt ends them all."""
        for problem in self._transport.problems():
            note(problem)
        if command:
            build_on_nodes(self._transport, command, note, meanwhile=self.hear)

    def submit(self, spec: TrialSpec, folder: Path, *, module: str = TRAINS) -> "GangTrial":
        """What a node says against its start is raised by `poll`.

        Where no gang is free the trial waits for one, and those after it wait behind it. Each of
        its ranks runs the module.
        """
        self.hear()  # an agent that is gone meanwhile is not told anything
        world, per_node = spec.layout.world, self._allocator.per_node(spec.layout.world)
        if spec.workload.command and per_node < world:
            raise FleetError.of("fleet.command_too_wide", world=world)
        self.check_room(world)
        trial = GangTrial(self, spec, folder.resolve(), module)
        self._waiting.append(trial)
        self._admit()
        return trial

    def close(self) -> None:
        try:
            for trial in (*self._waiting, *self._running.values()):
                trial.cancel()
            for trial in list(self._running.values()):
                with suppress(AutotuneError):
                    trial.wait(_END_WAIT_S)
        finally:
            closing = [agent.close() for agent in self.agents.values()]
            wait_for_end(filter(None, closing), _CLOSE_WAIT_S)

    def hear(self) -> None:
        """Take in what the nodes have sent; does not wait."""
        now_s = time.monotonic()
        if now_s < self._not_before_s:  # every trial of a round asks
            return
        self._not_before_s = now_s + PERIOD_S
        for name, agent in self.agents.items():
            for event in agent.hear():
                self._take(name, event)
        for name, lost in self._lost.items():
            if now_s >= lost.again_s:
                lost.again_s = math.inf
                with suppress(FleetError):
                    self.agents[name].tell("alive")
        self._admit()

    def release(self, trial: "GangTrial") -> None:
        """Take a trial's gang back, or its place among those that wait."""
        if self._running.pop(str(trial.folder), None) is not None:
            self._allocator.release(trial.gang)
        elif trial in self._waiting:
            self._waiting.remove(trial)

    def _admit(self) -> None:
        """Start trials that wait, in their order, as far as gangs are free."""
        while self._waiting:
            trial = self._waiting[0]
            try:
                gang = self._allocator.allocate(trial.spec.layout.world)
            except FleetError:
                return
            self._waiting.remove(trial)
            self._running[str(trial.folder)] = trial
            trial.begin(gang)
            self._start(trial, next(iter(gang.nodes)))

    def judge(self, trial: "GangTrial", outcome: Outcome) -> None:
        if outcome is not Outcome.CANCELLED:
            ran, is_fault = trial.spec.identity.candidate_hash, outcome.is_platform_fault
            self._allocator.judge(trial.gang, ran, is_fault=is_fault)

    def _start(
        self, trial: "GangTrial", name: str, *, port: int | None = None, start: Start | None = None
    ) -> None:
        """Start a trial's ranks on one node.

        The first leases the port that others are told, and they start as it did.
        """
        nodes = trial.gang.nodes
        this_node, first = self._nodes[name], self._nodes[next(iter(nodes))]
        is_alone = len(nodes) == 1
        if not is_alone and not self._cold.isdisjoint(nodes):
            start = Start.COLD
        part = NodePart(
            folder=str(trial.folder),
            devices=[slot.device for slot in nodes[name]],
            node=list(nodes).index(name),
            n_nodes=len(nodes),
            # The ranks of one node listen where no other machine reaches them.
            address=LOOPBACK if is_alone else first.address,
            interface="lo" if is_alone else this_node.interface,
            port=port,
            start=start,
            module=trial.module,
            n_sharing=self._n_sharing,
            capacity_bytes=this_node.rank_memory_bytes,
            coordinator=socket.gethostname(),
        )
        files = {"files": trial.files} if self._transport.is_remote else {}
        try:
            self.agents[name].tell("start", part=dataclasses.asdict(part), **files)
        except FleetError as error:
            self._refuse(trial, name, error)
        else:
            trial.open.add(name)

    def _refuse(self, trial: "GangTrial", name: str, error: AutotuneError) -> None:
        """Take note that a node cannot start its ranks of a trial.

        A full disk on a far one, or a missing device, is no reason to end the whole search.
        """
        if self._transport.is_remote:
            trial.ended(name, error.message)
        else:
            trial.fail(name, error)

    def _reap(self, name: str, folder: str) -> None:
        self._reaping.add((name, folder))
        far = {"coordinator": socket.gethostname()} if self._transport.is_remote else {}
        self.agents[name].tell("reap", folder=folder, **far)

    def _take(self, name: str, event: dict[str, Any]) -> None:
        event_kind, folder = event["event"], event.get("folder", "")
        trial = self._running.get(folder)
        if event_kind == "reaped":
            self._reaping.discard((name, folder))
        if event_kind == "ready" and self._lost.pop(name, None) is not None:
            self._allocator.join(name)
        if event_kind == "gone":
            self._replace(name, event["problem"], was_ready=event["was_ready"])
        elif trial is None:
            return
        elif event_kind == "started":
            trial.port = event["port"]
            first, *others = trial.gang.nodes
            if name == first and trial.asked_to_end_s is None:
                for other in others:
                    self._start(trial, other, port=trial.port, start=Start(event["start"]))
        elif event_kind == "file":
            trial.take_file(name, event)
        elif event_kind == "failed" and event["error"] == NoTemplateError.__name__:
            self._cold.add(name)
            trial.ended(name, f"{name}: {event['message']}")
        elif event_kind == "failed":
            kind = StudyError if event["error"] == "StudyError" else FleetError
            where = f"{name}: " if self._transport.is_remote else ""
            self._refuse(trial, name, kind(f"{where}{event['message']}", event["hint"]))
        elif event_kind in ("ended", "reaped"):
            trial.ended(name, event.get("problem", ""))

    def _replace(self, name: str, problem: str, *, was_ready: bool) -> None:
        """An agent is gone, and all that it ran: see `autotune.base.keeper`.

        The next one removes what is left of it, in memory and of files.
        """
        if not was_ready and self._transport.is_remote:
            self._lose(name, problem)
            return
        error = FleetError(problem, f"see whether {name} can run autotune as this machine does")
        reaping = {folder for node, folder in self._reaping if node == name}
        self._reaping -= {(name, folder) for folder in reaping}
        for folder, trial in [(f, t) for f, t in self._running.items() if name in t.open]:
            if not was_ready:
                trial.fail(name, error)
            elif folder in reaping:
                trial.ended(name, problem)
            else:  # it ends once the next agent has answered, or the node is lost
                trial.problem = trial.problem or problem
                try:
                    self._reap(name, folder)
                except FleetError as refused:
                    if self._transport.is_remote:
                        self._lose(name, problem)
                        return
                    self._reaping.discard((name, folder))
                    trial.fail(name, refused)
        if reaping - self._running.keys():
            raise error

    def _lose(self, name: str, problem: str) -> None:
        """Go on without a node until it answers again.

        What it ran ends by its own lease before it is asked, and what that leaves goes with it.
        """
        self._lost[name] = _Lost(problem=problem, again_s=time.monotonic() + LEASE_S)
        self._allocator.leave(name)
        self._reaping = {(n, f) for n, f in self._reaping if n != name}
        for trial in [t for t in self._running.values() if name in t.open]:
            trial.ended(name, trial.problem or problem)
        self._ask_for_end()

    def _ask_for_end(self) -> None:
        """Ask why all nodes are gone, unless that is known.

        Slurm's controller may be slow. The next question waits as long as its answer took: nodes
        that are there need to hear from here meanwhile.
        """
        begun_s = time.monotonic()
        if not self.end_of_all and begun_s >= self._ask_again_s:
            self.end_of_all = self._transport.ended()
            ended_s = time.monotonic()
            self._ask_again_s = ended_s + (ended_s - begun_s)


@dataclass(kw_only=True)
class _Lost:
    problem: str
    again_s: float
    """When it is asked again, by the monotonic clock; infinity: it is being asked."""


class GangTrial(Handle):
    """A trial on the nodes of its gang. The nodes end it step by step; `poll` only listens."""

    def __init__(self, fleet: GangFleet, spec: TrialSpec, folder: Path, module: str) -> None:
        self.spec = spec
        self.folder = folder
        self.module = module
        self.gang = Gang(slots=())
        """Empty while it waits for one."""
        self.port: int | None = None
        """Port at which its ranks meet; None: not known yet."""
        self.open: set[str] = set()
        """Names of the nodes that have not said that its ranks there have ended."""
        self.problem = ""
        """Problem of a node that was lost."""
        self.asked_to_end_s: float | None = None
        """Seconds after which its nodes were asked to end its ranks."""
        self._fleet = fleet
        self._began_s = time.monotonic()
        """When it was submitted, or got its gang."""
        self._incoming = Incoming(folder)
        self._one_ended_s: float | None = None
        self._ended_after_s = 0.0
        """Seconds until its last rank had ended, once it has."""
        self._asked_for = Outcome.LAUNCH
        """Outcome for which its end was asked: `cancelled` or `timeout`; else `launch`."""
        self._error: AutotuneError | None = None
        self._result: TrialResult | None = None

    def begin(self, gang: Gang) -> None:
        self.gang = gang
        self._began_s = time.monotonic()

    def poll(self) -> TrialResult | None:
        if self._result is None:
            self._fleet.hear()
            if not self.gang.slots and self._asked_for is not Outcome.CANCELLED:
                self._fleet.check_room(self.spec.layout.world)
                return None
            self._end_if_it_is_time()
            if self.open:
                return None
            self._ended_after_s = self._ended_after_s or self._elapsed_s()
            self._fleet.release(self)
            if self._error is not None:
                raise self._error
            self._result = self._collect()
            self._fleet.judge(self, self._result.outcome)
        return self._result

    @cached_property
    def files(self) -> dict[str, str]:
        return packed(self.folder)

    def take_file(self, node: str, event: dict[str, Any]) -> None:
        """Write what a far node has added to the trial's files."""
        try:
            self._incoming.take(event["name"], event["at"], event["data"])
        except OSError as error:
            hint = "free some space or mend the permissions, then run the same command again"
            message = f"{self.folder}: what {node} reports cannot be written: {error}"
            self._error = self._error or StudyError(message, hint)
        except (KeyError, TypeError, ValueError) as error:
            self.problem = self.problem or f"{node} sent a file that is left out: {error}"

    def progress(self) -> Progress:
        order = list(Phase)
        phases = [r.phase for r in read_reports(self.folder, self.spec.layout.world)]
        phase = min(phases, key=order.index, default=Phase.SPAWN)
        return Progress(phase=phase, elapsed_s=self._elapsed_s())

    def cancel(self) -> None:
        if self.asked_to_end_s is None:
            self._asked_for = Outcome.CANCELLED
        if not self.gang.slots:
            self._fleet.release(self)  # or it would still be started
        self._end(hangs=False)

    def ended(self, node: str, problem: str) -> None:
        self.open.discard(node)
        self.problem = self.problem or problem
        self._one_ended_s = self._one_ended_s or self._elapsed_s()

    def fail(self, node: str, error: AutotuneError) -> None:
        self.open.discard(node)
        self._error = self._error or error
        self._end(hangs=False)

    def _elapsed_s(self) -> float:
        """Seconds since the trial began; the wall clock may jump meanwhile."""
        return time.monotonic() - self._began_s

    def _end_if_it_is_time(self) -> None:
        elapsed_s = self._elapsed_s()
        if self.asked_to_end_s is not None:
            if elapsed_s - self.asked_to_end_s > _END_WAIT_S:
                self.asked_to_end_s = elapsed_s
                for name in self.open:
                    self._fleet.agents[name].kill()
        elif elapsed_s > self.spec.measure.timeout_s and self.open:
            self._asked_for = Outcome.TIMEOUT
            self._end(hangs=True)
        elif self._one_ended_s is not None and elapsed_s - self._one_ended_s > _OTHERS_WAIT_S:
            self._end(hangs=False)

    def _end(self, *, hangs: bool) -> None:
        if self.asked_to_end_s is None:
            self.asked_to_end_s = self._elapsed_s()
            for name in self.open:
                self._fleet.agents[name].tell("end", folder=str(self.folder), hangs=hangs)

    def _collect(self) -> TrialResult:
        n_nodes = len(self.gang.nodes)
        nodes = [read_node_report(self.folder, node) for node in range(n_nodes)] or [NodeReport()]
        # What ended by itself before its nodes were told keeps its outcome.
        was_ended = not n_nodes or bool(self.problem) or any(node.was_ended for node in nodes)
        seen = TrialResult.of(
            self.spec.identity,
            self._asked_for if was_ended else Outcome.LAUNCH,
            # What ended all nodes is why this one was lost.
            evidence=self.problem and (self._fleet.end_of_all or self.problem),
            started_at_s=unix_now_s() - self._elapsed_s(),
            wall_s=self._ended_after_s,
            devices=[slot.name for slot in self.gang.slots],
        )
        return collect(self.spec, self.folder, seen, nodes)


def slots_of(nodes: Sequence[Node]) -> tuple[Slot, ...]:
    """The slots of some nodes, node after node."""
    found = []
    for node in nodes:
        for index, device in enumerate(node.devices):
            place = node.places[index] if node.places else DevicePlace()
            slot = Slot(
                index=index,
                device=device,
                node=node.name,
                domain=place.domain,
                shares=frozenset(place.shares),
            )
            found.append(slot)
    return tuple(found)


class GangPlace(Place):
    """Nodes that a transport reaches."""

    is_exclusive = False
    """As of `GangFleet`."""

    @abstractmethod
    def transport_for(self, world: int) -> Transport:
        """The way to them, for a job of `world` ranks."""

    def gangs(self, world: int) -> GangFleet:
        transport = self.transport_for(world)
        return GangFleet(transport, world=world, is_exclusive=self.is_exclusive)

    def at_once(self, world: int) -> int:
        slots = slots_of(self.transport_for(world).nodes())
        return GangAllocator(slots, is_exclusive=self.is_exclusive).capacity(world)

    def rank_places(self, world: int) -> tuple[str, ...]:
        allocator = GangAllocator(slots_of(self.transport_for(world).nodes()))
        if not allocator.capacity(world):
            return ()
        slots = allocator.allocate(world).slots
        return tuple(f"{slot.node}, {slot.domain}" if slot.domain else slot.node for slot in slots)


class _AgentLine:
    """The line to the agent of a node, which is started when it is first told something."""

    def __init__(self, transport: Transport, node: Node) -> None:
        self._transport = transport
        self._node = node
        self._program: Program | None = None
        self._was_ready = False
        self._sent_at_s = 0.0
        self._gave_up = ""
        """Why it was ended from here."""

    def tell(self, command: str, **arguments: Any) -> None:
        """Give it a command.

        Raises:
            FleetError: It cannot be started.
        """
        if self._program is None:
            self._was_ready, self._gave_up = False, ""
            lease = ("--lease", str(LEASE_S)) if self._transport.is_remote else ()
            self._program = started(self._transport, self._node, AGENT, *lease)
        self._sent_at_s = time.monotonic()
        self._program.tell(command=command, **arguments)

    def hear(self) -> Iterator[dict[str, Any]]:
        """The lines that it has sent; the last one says that it is `gone`."""
        if (program := self._program) is None:
            return
        for event in program.events():
            self._was_ready |= event["event"] == "ready"
            yield event
        if program.code is not None:
            self._program = None
            reason = self._gave_up or program.last_words
            problem = f"{self._node.name}: the agent of the node ended with code {program.code}"
            yield {
                "event": "gone",
                "problem": f"{problem}: {reason}" if reason else problem,
                "was_ready": self._was_ready,
            }
        elif self._transport.is_remote:
            self._keep(program)

    def _keep(self, program: Program) -> None:
        """Renew the lease of a far agent, or give it up where it says nothing any more."""
        now_s = time.monotonic()
        if now_s - program.heard_at_s > LEASE_S:
            since = "it was reached" if self._was_ready else "it was asked to start"
            self._gave_up = program.last_words or f"not a word for {LEASE_S:.0f} s since {since}"
            program.heard_at_s = now_s
            program.process.end()
        elif self._was_ready and now_s - self._sent_at_s > _ALIVE_S:
            self.tell("alive")

    def kill(self) -> None:
        if self._program is not None:
            self._program.process.end()

    def close(self) -> Program | None:
        """Tell it to end; it is what is to be waited for, None: it does not run."""
        program, self._program = self._program, None
        if program is not None:
            program.tell(command="close")
        return program


_BUILD_END_WAIT_S = 10.0
"""Time that a build has to end its compilers in and to remove what they leave."""


def build_on_nodes(
    transport: Transport, command: Sequence[str], note: Say, *, meanwhile: Callable[[], None]
) -> None:
    """Run a build on every node; all are waited for, whatever becomes of one.

    What ends the wait (an interrupt, or what `meanwhile` raises) ends the builds as well.

    Raises:
        FleetError: One failed: the first of these.
    """
    nodes = transport.nodes()
    builds: dict[str, Program] = {}
    """By what is written before its lines."""
    errors: list[FleetError] = []
    try:
        for node in nodes:
            where = f"{node.name}: " if len(nodes) > 1 else ""
            builds[where] = started(transport, node, *command)
    except FleetError as error:
        errors.append(error)
    try:
        while running := {where: b for where, b in builds.items() if b.code is None}:
            time.sleep(PERIOD_S)
            meanwhile()
            for where, build in running.items():
                texts = [where + text for text in build.texts()]
                build.last_words = next(reversed(texts), build.last_words)
                # The last line of one that fails is its error; it may have come before its end.
                for text in texts[:-1] if build.code else texts:
                    note(text)
                if build.code:
                    text = build.last_words or f"{where}exit code {build.code}"
                    errors.append(FleetError(*text.rsplit("; ", 1)))
    except BaseException:
        for build in running.values():
            build.tell(command="end")
        wait_for_end(running.values(), _BUILD_END_WAIT_S)
        raise
    if errors:
        raise errors[0]
