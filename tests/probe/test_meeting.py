"""Nodes that meet: by the token, with the same command, and with a reason where they do not."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from autotune.fleet.node.ports import lease_port
from autotune.probe.meeting import Meeting, MeetingError
from autotune.probe.nodes import TOKEN_ENV, Nodes

TOKEN = "a token of all nodes"
ABOUT = {"accelerator": "cpu", "ranks": 1}


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    lease = lease_port()
    yield lease.port
    lease.release()


def nodes(port: int, rank: int, **changes: Any) -> Nodes:
    about = {"count": 2, "rank": rank, "address": "127.0.0.1", "port": port, "interface": "lo"}
    return Nodes(**{**about, "wait_s": 20.0, **changes})


def both(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised, all at the same time."""
    found: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            found[index] = calls[index]()
        except MeetingError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def joined(
    place: Nodes,
    *,
    about: Any = ABOUT,
    token: str = TOKEN,
    local_rank: int = 0,
    per_node: int = 1,
) -> Callable[[], Any]:
    """One rank of a node comes; it says what it would measure, and hears what it shall."""

    def come() -> Any:
        meeting = Meeting(place, local_rank=local_rank, per_node=per_node)
        meeting._token = token.encode()
        kept.append(meeting)  # node 0 serves until the other has heard
        return meeting.agree(about, {"quick": place.rank == 0})

    kept: list[Meeting] = []
    return come


def test_all_measure_what_node_0_wants(port: int) -> None:
    found = both(joined(nodes(port, 0)), joined(nodes(port, 1)))
    assert found == [{"quick": True}, {"quick": True}]


def test_another_token_is_refused(port: int) -> None:
    found = both(joined(nodes(port, 0)), joined(nodes(port, 1), token="another token"))
    assert [type(each) for each in found] == [MeetingError, MeetingError]
    assert "another AUTOTUNE_TOKEN" in str(found[0])


@pytest.mark.parametrize(
    ("place", "about", "said"),
    [
        ({}, {"ranks": 4}, "ranks: 4 on node 1, 1 on node 0"),
        ({}, {"accelerator": "cuda"}, "accelerator: cuda on node 1, cpu on node 0"),
        ({"count": 3}, {}, "nodes: 3 on node 1, 2 on node 0"),
    ],
)
def test_what_differs_is_named(place: Any, about: Any, said: str, port: int) -> None:
    other = nodes(port, 1, **{"wait_s": 3.0, **place})
    found = both(joined(nodes(port, 0)), joined(other, about={**ABOUT, **about}))
    assert said in str(found[0])


def test_a_node_that_does_not_come_is_named(port: int) -> None:
    with pytest.raises(MeetingError, match=f"no sign of node 1, 2 of 3 at port {port}"):
        joined(nodes(port, 0, count=3, wait_s=1.0))()
    with pytest.raises(MeetingError, match="node 0 did not answer"):
        joined(nodes(port, 1, wait_s=1.0))()


def test_a_number_is_one_node_s_alone(port: int) -> None:
    found = both(
        joined(nodes(port, 0, wait_s=3.0)),
        joined(nodes(port, 1, wait_s=3.0)),
        joined(nodes(port, 1, wait_s=3.0)),
    )
    assert sorted(type(each).__name__ for each in found) == ["MeetingError", "dict", "dict"]
    (error,) = (each for each in found if isinstance(each, MeetingError))
    assert "two nodes say that they are --node-rank 1" in str(error)


def test_no_rank_of_a_second_node_takes_the_place_of_another(port: int) -> None:
    """Were only first ranks told apart, the others of both nodes would measure with each other."""
    ranks = [(node, local) for node in (0, 1, 1) for local in (0, 1)]
    found = both(
        *(
            joined(nodes(port, node, wait_s=3.0), local_rank=local, per_node=2)
            for node, local in ranks
        )
    )
    errors = [str(each) for each in found if isinstance(each, MeetingError)]
    assert len(errors) == 2
    assert all("two nodes say that they are --node-rank 1" in error for error in errors)


def test_a_message_of_another_meeting_is_refused(port: int) -> None:
    first = Meeting(nodes(port, 0), local_rank=0, per_node=1)
    first._put("wanted", {"quick": True})
    assert first._get("wanted") == {"quick": True}
    seen = first._store.get("wanted")
    other_port = lease_port()
    try:
        second = Meeting(nodes(other_port.port, 0), local_rank=0, per_node=1)
        second._store.set("wanted", seen)
        with pytest.raises(MeetingError, match="another AUTOTUNE_TOKEN"):
            second._get("wanted")
    finally:
        other_port.release()


def test_a_node_whose_first_has_gone_says_so(port: int) -> None:
    first = Meeting(nodes(port, 0), local_rank=0, per_node=1)
    other = Meeting(nodes(port, 1, wait_s=2.0), local_rank=0, per_node=1)
    del first
    with pytest.raises(MeetingError, match=r"node 0 has ended|no sign of node 0"):
        other.agree(ABOUT, {})


def test_a_port_that_is_taken_is_named(port: int) -> None:
    kept = Meeting(nodes(port, 0), local_rank=0, per_node=1)
    with pytest.raises(MeetingError, match=f"cannot listen at port {port}"):
        Meeting(nodes(port, 0), local_rank=0, per_node=1)
    assert kept.world == 2
