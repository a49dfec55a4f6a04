"""How ranks of several nodes find each other, and what they tell each other besides measuring.

All messages go through torch's key-value store, which node 0 serves at one address. They are JSON
and signed, with the token that all nodes were given and a number of this meeting: what another
process puts there is refused, also where it has seen other meetings.
"""

import datetime
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import distributed

from autotune.probe.nodes import TOKEN_ENV, Nodes
from autotune.trial.launcher import listen_on


class MeetingError(Exception):
    """The nodes did not come together, or do not fit together."""


class Meeting:
    """The ranks of all nodes, once they have found each other."""

    def __init__(self, nodes: Nodes, *, local_rank: int, per_node: int) -> None:
        """Join; node 0's first rank serves the store.

        Raises:
            MeetingError: Node 0 is not there, or cannot listen.
        """
        self.nodes = nodes
        self.rank = nodes.rank * per_node + local_rank
        self.world = nodes.count * per_node
        self._token = os.fsencode(os.environ[TOKEN_ENV])
        self._store = self._open()
        self._once = self._number()

    def agree(self, about: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for all nodes, and see that they fit together.

        `about` has to be the same on all nodes; what node 0 wants measured is returned.

        Raises:
            MeetingError: A node did not come, came twice, has another token, or differs.
        """
        mine = self.nodes.rank
        with _served():
            n_claims = self._store.add(f"taken/{self.rank}", 1)
        if n_claims > 1:
            raise MeetingError(f"two nodes say that they are --node-rank {mine}")
        is_first_of_node = self.rank % (self.world // self.nodes.count) == 0
        if is_first_of_node:
            self._put(f"node/{mine}", {"nodes": self.nodes.count, **about})
        self._wait_for_all()
        for node in range(self.nodes.count):
            theirs = self._get(f"node/{node}")
            for name, value in {"nodes": self.nodes.count, **about}.items():
                if theirs.get(name) != value:
                    raise MeetingError(
                        f"{name}: {theirs.get(name)} on node {node}, {value} on node {mine}; "
                        "start the same command with the same versions everywhere"
                    )
        if self.rank == 0:
            self._put("wanted", wanted)
        return self._get("wanted")

    def store(self) -> Any:
        """The store by which torch sets up its communication."""
        return distributed.PrefixStore("torch", self._store)

    def gather(self, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        """On the first rank of all, the reports of all ranks in their order; elsewhere nothing."""
        self._put(f"report/{self.rank}", report)
        # Node 0 serves the store: nobody may need it any more once its first rank leaves.
        distributed.barrier()
        if self.rank:
            return []
        return [self._get(f"report/{rank}") for rank in range(self.world)]

    def _open(self) -> Any:
        place = self.nodes
        serves = self.rank == 0
        try:
            listening = {}
            if serves:
                listening = {"master_listen_fd": listen_on(place.port, place.address).detach()}
            return distributed.TCPStore(
                place.address,
                place.port,
                is_master=serves,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=place.wait_s),
                **listening,
            )
        except (OSError, distributed.DistError) as error:
            if serves:
                raise MeetingError(f"cannot listen at {self._where}: {error}") from error
            raise MeetingError(
                f"node 0 did not answer at {self._where} within {place.wait_s:.0f} s; start the "
                "same command there with --node-rank 0"
            ) from error

    def _wait_for_all(self) -> None:
        place = self.nodes
        keys = [f"node/{node}" for node in range(place.count)]
        try:
            self._store.wait(keys, datetime.timedelta(seconds=place.wait_s))
        except distributed.DistError as error:
            with _served():
                missing = [str(n) for n, key in enumerate(keys) if not self._store.check([key])]
            raise MeetingError(
                f"no sign of node {', '.join(missing)} of {place.count} at "
                f"{self._where} within {place.wait_s:.0f} s; start the same command there with "
                "that --node-rank"
            ) from error

    def _number(self) -> str:
        """Number of this meeting alone; node 0 draws it."""
        if self.rank == 0:
            self._store.set("number", secrets.token_hex(16))
        return self._read("number")

    @property
    def _where(self) -> str:
        return f"port {self.nodes.port} of {self.nodes.address}"

    def _put(self, key: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(value)
        with _served():
            self._store.set(key, self._signature(key, text) + text)

    def _get(self, key: str) -> dict[str, Any]:
        raw = self._read(key)
        size = hashlib.sha256().digest_size * 2
        signature, text = raw[:size], raw[size:]
        if not hmac.compare_digest(signature.encode(), self._signature(key, text).encode()):
            raise MeetingError(f"{key}: signed with another {TOKEN_ENV}")
        found: dict[str, Any] = json.loads(text)
        return found

    def _read(self, key: str) -> str:
        with _served():
            return str(self._store.get(key).decode(errors="replace"))

    def _signature(self, key: str, text: str) -> str:
        return hmac.new(
            self._token, f"{self._once}\n{key}\n{text}".encode(), hashlib.sha256
        ).hexdigest()


@contextmanager
def _served() -> Iterator[None]:
    try:
        yield
    except distributed.DistError as error:
        raise MeetingError("node 0 has ended; what it said there is the cause") from error
