"""The process that speaks to Ray for a coordinator; `python -m` this, started by the transport.

Ray ends a process whose cluster has lost its head for a minute, and takes its signals: that is to
be this one, never the coordinator. Messages are JSON, a line each, over its input and output.

| message | answer |
|---|---|
| first: `address`, `shape` of what is wanted, `wait_s` | `waiting`, then `held`, or `failed` |
| `open` a `line` to a `node` with a `command` | `heard` as `data` comes, `over` with a `code` |
| `send` a line `data`, in base64 | |
| `end` a line | `over`, as without it |

Whatever way it ends, Ray takes back what it held, and ends its actors with their programs.
"""

import asyncio
import base64
import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_CONNECT_S = 10.0
_SAY_PERIOD_S = 30.0
_LOOK_PERIOD_S = 0.2
_MOST_LINES = 16
"""Programs of a node that are listened to at once: an agent, and what prepares it."""


class Denied(Exception):
    """The cluster is not there, or has not what is wanted: the message and a hint."""


class Programs:
    """An actor: programs of its node, each with its input and output.

    It is sent there by value and needs the standard library alone. Its programs' input ends with
    it, which ends them.
    """

    def __init__(self) -> None:
        self._programs: dict[int, Any] = {}
        self._inputs: dict[int, Any] = {}
        self._early: dict[int, dict[int, bytes]] = {}
        self._next: dict[int, int] = {}

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def open(self, line: int, command: list[str]) -> None:
        """Start a program.

        Raises:
            OSError: It cannot be started.
        """
        environment = dict(os.environ)
        with open("/proc/self/environ", "rb") as file:
            was_set = b"OMP_NUM_THREADS=" in file.read()
        if not was_set:
            environment.pop("OMP_NUM_THREADS", None)  # Ray's own guess for this actor
        python_folder = os.path.dirname(sys.executable)
        environment["PATH"] = os.pathsep.join([python_folder, environment.get("PATH", os.defpath)])
        program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=environment,
            cwd=os.path.expanduser("~"),
            start_new_session=True,
        )
        self._programs[line], self._inputs[line] = program, queue.SimpleQueue()
        self._early[line], self._next[line] = {}, 0
        threading.Thread(target=self._write, args=(line,), daemon=True).start()

    def send(self, line: int, number: int, data: bytes) -> None:
        """Write to a program's input in the order of the numbers: calls may overtake one another.

        Another thread does: a program that reads nothing holds nobody up.
        """
        early = self._early[line]
        early[number] = data
        while self._next[line] in early:
            self._inputs[line].put(early.pop(self._next[line]))
            self._next[line] += 1

    def listen(self, line: int) -> tuple[bytes, int | None]:
        """What a program writes next; its exit code once it has ended, else None."""
        program = self._programs[line]
        data = os.read(program.stdout.fileno(), 1 << 20)
        return data, None if data else program.wait()

    def end(self, line: int) -> None:
        """End a program: a keeper takes along all that it started."""
        self._programs[line].terminate()

    def _write(self, line: int) -> None:
        descriptor = self._programs[line].stdin.fileno()
        try:
            while True:
                rest = memoryview(self._inputs[line].get())
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        except OSError:  # it has ended, which `listen` tells
            return


class Bridge:
    """Carries bytes between the coordinator and programs on the nodes."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._group: Any = None
        self._shape: list[tuple[str, int]] = []
        """Resource and number of each bundle."""
        self._places: dict[str, int] = {}
        """Bundles by the name of the node that holds them."""
        self._actors: dict[str, Any] = {}
        self._programs_at: dict[int, Any] = {}
        self._n_sent: Counter[int] = Counter()
        self._unsent: dict[int, list[bytes]] = {}
        """By line, before its program has started."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._making: dict[str, asyncio.Lock] = {}

    def say(self, event: str, **what: Any) -> None:
        rest = (json.dumps({"event": event, **what}) + "\n").encode()
        while rest:
            rest = rest[os.write(self._output, rest) :]

    def hold(self, address: str, shape: list[int] | None, wait_s: float) -> None:
        """Join the cluster and take slots, all or none of them.

        Raises:
            Denied: That cannot be.
        """
        _join(address)
        deadline_s, reported_at_s = time.monotonic() + wait_s, -_SAY_PERIOD_S
        while True:
            if self._group is None and (wanted := _wanted(shape)):
                self._shape = wanted
                bundles = [{resource: n} for resource, n in wanted]
                self._group = placement_group(bundles, strategy="STRICT_SPREAD")
            if self._group is not None:
                table = placement_group_table(self._group)
                if table["state"] == "CREATED":
                    break
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise Denied(
                    f"Ray did not give {_words(self._shape)} within {wait_s:.0f} s: {_there()}",
                    "end what holds them, wait for longer with --fleet-option wait=1h, or ask "
                    "for others with --fleet-option slots=NODESxEACH",
                )
            if now_s - reported_at_s > _SAY_PERIOD_S:
                if reported_at_s > 0:
                    self.say("waiting", text=f"waiting for {_words(self._shape)}: {_there()}")
                    reported_at_s = now_s
                else:  # what is free is there at once
                    reported_at_s = now_s - _SAY_PERIOD_S + 2.0
            time.sleep(_LOOK_PERIOD_S)
        names = _names()
        held = {names[node_id]: i for i, node_id in table["bundles_to_node_id"].items()}
        self._places = {name: held[name] for name in sorted(held, key=_natural)}
        self.say("held", nodes=[[name, self._shape[i][1]] for name, i in self._places.items()])

    async def serve(self) -> None:
        """Do what comes in until the input ends."""
        reader = asyncio.StreamReader(limit=1 << 30)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while text := await reader.readline():
            request = json.loads(text)
            line = request["line"]
            if request["do"] == "open":
                self._unsent[line] = []
                task = asyncio.create_task(self._run(line, request["node"], request["command"]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif request["do"] == "send":
                data = base64.b64decode(request["data"])
                if line in self._unsent:
                    self._unsent[line].append(data)
                else:
                    self._send(line, data)
            elif request["do"] == "end" and line in self._programs_at:
                self._programs_at[line].end.remote(line)

    async def _run(self, line: int, node: str, command: list[str]) -> None:
        """Start a program and pass on what it says until it has ended."""
        code, why, programs = 1, "", None
        try:
            programs = await self._actor(node)
            await programs.open.remote(line, command)
            self._programs_at[line] = programs
            for data in self._unsent.pop(line):
                self._send(line, data)
            listen = programs.listen.options(concurrency_group="listen")
            while True:
                data, ended = await listen.remote(line)
                if data:
                    self.say("heard", line=line, data=base64.b64encode(data).decode())
                if ended is not None:
                    code = ended
                    break
        except Exception as error:  # whatever it is, this line ends by it and the others go on
            # What a program's start raises is no fault of the actor.
            if isinstance(error, RayError) and not isinstance(error, RayTaskError):
                self._drop(node, programs)
            why = " ".join(str(error).split())[:300]
            if not isinstance(error, Denied):
                why = f"{node}: Ray says: {why}"
        self._programs_at.pop(line, None)
        self._unsent.pop(line, None)
        self.say("over", line=line, code=code, why=why)

    def _send(self, line: int, data: bytes) -> None:
        if line in self._programs_at:
            self._programs_at[line].send.remote(line, self._n_sent[line], data)
            self._n_sent[line] += 1

    async def _actor(self, node: str) -> Any:
        """The actor of a node: the one that is there, or another in the same place."""
        async with self._making.setdefault(node, asyncio.Lock()):
            if (programs := self._actors.get(node)) is not None:
                try:
                    await programs.node.remote()
                except RayError:
                    self._drop(node, programs)
            if node not in self._actors:
                self._actors[node] = await self._new_actor(node)
            return self._actors[node]

    async def _new_actor(self, node: str) -> Any:
        if node not in (await asyncio.to_thread(_names)).values():
            raise Denied(f"{node} has left the cluster")
        bundle = self._places[node]
        resource, n = self._shape[bundle]
        programs = (
            ray.remote(concurrency_groups={"listen": _MOST_LINES})(Programs)
            .options(
                num_cpus=n if resource == "CPU" else 0,
                num_gpus=n if resource == "GPU" else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=bundle
                ),
            )
            .remote()
        )
        place = (await asyncio.to_thread(_names)).get(await programs.node.remote(), "")
        if place != node:
            ray.kill(programs)
            raise Denied(f"{node} has left the cluster, and {place or 'another'} has its place")
        return programs

    def _drop(self, node: str, programs: Any) -> None:
        """Let an actor go that does not answer any more."""
        if programs is not None and self._actors.get(node) is programs:
            del self._actors[node]
            ray.kill(programs)


def _join(address: str) -> None:
    """Join a cluster.

    Raises:
        Denied: There is none, or its Ray or Python is another.
    """
    address = address or os.environ.get("RAY_ADDRESS", "auto")
    hint = "start one with `ray start --head`, or name one: --fleet ray:HOST:6379"
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except OSError as error:  # Ray itself would try for minutes
            raise Denied(f"no cluster of Ray at {address}: {error}", hint) from error
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, namespace="autotune")
    except Exception as error:
        text = " ".join(str(error).split())[:600]
        if "mismatch" in text:
            hint = "run autotune with the Ray and the Python of the cluster"
        raise Denied(f"Ray at {address}: {text}", hint) from error


def _wanted(shape: list[int] | None) -> list[tuple[str, int]]:
    """Resource and number of each bundle: as asked for, or all that the nodes have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    resource = "GPU" if any(has.get("GPU", 0) >= 1 for has in nodes) else "CPU"
    if shape is not None:
        return [(resource, shape[1])] * shape[0]
    return [(resource, int(has[resource])) for has in nodes if has.get(resource, 0) >= 1]


def _there() -> str:
    """What the cluster has, in words."""
    n_nodes = sum(node["Alive"] for node in ray.nodes())
    total, free = ray.cluster_resources(), ray.available_resources()
    parts = [
        f"{free.get(resource, 0):.0f} of {total[resource]:.0f} {resource}s"
        for resource in ("GPU", "CPU")
        if total.get(resource)
    ]
    has = f"{' and '.join(parts)} of its {n_nodes} nodes are free" if parts else "no slots"
    return f"{has} in the cluster" if not parts else f"in the cluster, {has}"


def _words(shape: list[tuple[str, int]]) -> str:
    return (
        ", ".join(f"{count} x {n} {resource}s" for (resource, n), count in Counter(shape).items())
        or "any slots"
    )


def _names() -> dict[str, str]:
    """Names of the nodes that are alive, by Ray's own: short, and no two the same."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    labels = {node["NodeID"]: node.get("NodeName") or node["NodeManagerAddress"] for node in alive}
    counts = Counter(labels.values())
    return {
        node_id: name if counts[name] == 1 else f"{name}-{node_id[:6]}"
        for node_id, name in labels.items()
    }


def _natural(name: str) -> list[tuple[str, int]]:
    """A key by which `n10` comes after `n2`."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


def main() -> None:
    """Serve the coordinator at the other end of this process's input and output."""
    bridge = Bridge(os.dup(1))
    os.dup2(2, 1)  # what Ray prints must not stand between the messages
    request = json.loads(_first_line())
    try:
        bridge.hold(request["address"], request["shape"], request["wait_s"])
    except Denied as error:
        message, hint = error.args
        bridge.say("failed", message=message, hint=hint)
        return
    asyncio.run(bridge.serve())


def _first_line() -> bytes:
    """Read byte by byte: what follows is for another reader."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return line


if __name__ == "__main__":
    main()
    ray.shutdown()
