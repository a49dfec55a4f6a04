"""The process that speaks to Ray for a coordinator; `python -m` this, started by the transport.

Ray ends a process whose cluster has lost its head for a minute, and takes its signals: that is to
be this one, never the coordinator. Messages are JSON, a line each, over its input and output.

| message | answer |
|---|---|
| first: `address`, `shape` of what is wanted, `wait_s` | `waiting`, then `held`, or `failed` |
| `open` a `line` to a `node` with a `command` | `output` as `data` comes, `over` with a `code` |
| `send` a line `data`, in base64 | |
| `end` a line | `over`, as without it |

Whatever way it ends, Ray takes back what it held, and ends its actors with their programs.
"""

import base64
import json
import os
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_CONNECT_S = 10.0
_SAY_PERIOD_S = 30.0
_LOOK_PERIOD_S = 0.2
_EXCHANGE_S = 0.1
"""Time in which a program may write before its actor turns to the next call."""


class Denied(Exception):
    """The cluster is not there, or has not what is wanted: the message and a hint."""


class Programs:
    """An actor: programs of its node, each with its input and output.

    It is sent there by value and needs the standard library alone. Its programs' input ends with
    it, which ends them. It does one call after the other, so that none overtakes another.
    """

    def __init__(self) -> None:
        self._programs: dict[int, Any] = {}
        self._unsent: dict[int, bytearray] = {}

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
        program: Any = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=environment,
            cwd=os.path.expanduser("~"),
            start_new_session=True,
        )
        os.set_blocking(program.stdin.fileno(), False)
        self._programs[line], self._unsent[line] = program, bytearray()

    def exchange(self, line: int, data: bytes) -> tuple[bytes, int | None]:
        """Hand a program its input, and wait shortly for what it writes.

        Returns:
            What it has written, and its exit code once it has ended.
        """
        program, unsent = self._programs[line], self._unsent[line]
        unsent += data
        output, sink = program.stdout.fileno(), program.stdin.fileno()
        sinks = [sink] if unsent else []
        readable, writable, _ = select.select([output], sinks, [], _EXCHANGE_S)
        if writable:
            try:
                del unsent[: os.write(sink, unsent)]
            except OSError:  # it has ended, which its output tells
                unsent.clear()
        if not readable:
            return b"", None
        received = os.read(output, 1 << 20)
        if not received:
            time.sleep(_EXCHANGE_S)  # it closes its output before it has ended
        return received, None if received else program.poll()

    def end(self, line: int) -> None:
        """End a program: a keeper takes along all that it started."""
        self._programs[line].terminate()


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
        self._making: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._inputs: dict[int, queue.SimpleQueue[bytes | None]] = {}
        """By line, what is to be sent; None: the line is to be ended."""
        self._saying = threading.Lock()

    def say(self, event: str, **what: Any) -> None:
        rest = (json.dumps({"event": event, **what}) + "\n").encode()
        with self._saying:
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
                    "end what holds them, wait for longer (fleet option wait=1h), or ask "
                    "for others (fleet option slots=NODESxEACH)",
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

    def serve(self) -> None:
        for text in sys.stdin.buffer:
            request = json.loads(text)
            line = request["line"]
            if request["do"] == "open":
                self._inputs[line] = queue.SimpleQueue()
                what = (line, request["node"], request["command"])
                threading.Thread(target=self._run, args=what, daemon=True).start()
            elif (inputs := self._inputs.get(line)) is not None:
                inputs.put(base64.b64decode(request["data"]) if request["do"] == "send" else None)

    def _run(self, line: int, node: str, command: list[str]) -> None:
        """Start a program and pass on what it says until it has ended."""
        code: int | None = None
        why, programs, inputs = "", None, self._inputs[line]
        try:
            programs = self._actor(node)
            ray.get(programs.open.remote(line, command))
            while code is None:
                data = b""
                while not inputs.empty():
                    if (given := inputs.get()) is None:
                        programs.end.remote(line)
                    data += given or b""
                received, code = ray.get(programs.exchange.remote(line, data))
                if received:
                    self.say("output", line=line, data=base64.b64encode(received).decode())
        except Exception as error:  # whatever it is, this line ends by it and the others go on
            # What a program's start raises is no fault of the actor.
            if isinstance(error, RayError) and not isinstance(error, RayTaskError):
                self._drop(node, programs)
            why = " ".join(str(error).split())[:300]
            if not isinstance(error, Denied):
                why = f"{node}: Ray says: {why}"
        del self._inputs[line]
        self.say("over", line=line, code=1 if code is None else code, why=why)

    def _actor(self, node: str) -> Any:
        """The actor of a node: the one that is there, or another in the same place."""
        with self._making[node]:
            if (programs := self._actors.get(node)) is not None:
                try:
                    ray.get(programs.node.remote())
                except RayError:
                    self._drop(node, programs)
            if node not in self._actors:
                self._actors[node] = self._new_actor(node)
            return self._actors[node]

    def _new_actor(self, node: str) -> Any:
        if node not in _names().values():
            raise Denied(f"{node} has left the cluster")
        bundle = self._places[node]
        resource, n = self._shape[bundle]
        programs = (
            ray.remote(Programs)
            .options(
                num_cpus=n if resource == "CPU" else 0,
                num_gpus=n if resource == "GPU" else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=bundle
                ),
            )
            .remote()
        )
        place = _names().get(ray.get(programs.node.remote()), "")
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
    hint = "start one with `ray start --head`, or name the fleet ray:HOST:6379"
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
    if not (text := sys.stdin.buffer.readline()):
        return
    request = json.loads(text)
    try:
        bridge.hold(request["address"], request["shape"], request["wait_s"])
    except Denied as error:
        message, hint = error.args
        bridge.say("failed", message=message, hint=hint)
        return
    bridge.serve()


if __name__ == "__main__":
    main()
    ray.shutdown()
