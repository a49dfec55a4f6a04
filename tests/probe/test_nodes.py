"""What the command line says of nodes, and what of it is refused before anything starts."""

import socket

import psutil
import pytest

from autotune.base.errors import JobError
from autotune.probe.nodes import Nodes, nodes_of
from autotune.probe.token import TOKEN_ENV
from autotune.trial.rendezvous import listen_on

TOKEN = "e3b7a91c5d20f846b1a7c2"


def own_address() -> tuple[str, str]:
    """An address of this machine that is not loopback's, and its interface."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address, name
    pytest.skip("this machine has no interface but loopback")


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, TOKEN)


def test_one_machine_needs_none_of_it() -> None:
    assert nodes_of(1, None, None) is None


@pytest.mark.parametrize(
    ("count", "rank", "master", "said"),
    [
        (0, None, None, "--nodes 0"),
        (1, 0, None, "--node-rank 0: with one node"),
        (1, None, "10.0.0.1:80", "--master 10.0.0.1:80: with one node"),
        (2, None, "10.0.0.1:80", "--node-rank: missing"),
        (2, 2, "10.0.0.1:80", "--node-rank: 2, of 2 nodes"),
        (2, -1, "10.0.0.1:80", "--node-rank: -1"),
        (2, 1, None, "--master: missing"),
        (2, 1, "10.0.0.1", "is no HOST:PORT"),
        (2, 1, ":29400", "is no HOST:PORT"),
        (2, 1, "10.0.0.1:x", "is no HOST:PORT"),
        (2, 1, "10.0.0.1:99999", "is no HOST:PORT"),
        (2, 1, "a@10.0.0.1:80", "is no HOST:PORT"),
        (2, 1, "[::1:80", "is no HOST:PORT"),
        (2, 1, "127.0.0.1:29400", "no other node reaches"),
        (2, 1, "localhost:29400", "no other node reaches"),
        (2, 0, "0.0.0.0:29400", "no other node reaches"),
        (2, 0, "[::]:29400", "no other node reaches"),
        (2, 0, "224.0.0.1:29400", "no other node reaches"),
        (2, 1, "10.0.0.1:29400?x", "is no HOST:PORT"),
        (2, 1, "10.0.0.1:29400#x", "is no HOST:PORT"),
        (2, 1, "10.0.0.1:29400/x", "is no HOST:PORT"),
        (2, 1, "no-such-host.invalid:29400", "is not found"),
        (2, 1, "x" * 300 + ":29400", "is not found"),
    ],
)
def test_what_makes_no_sense_is_named(
    count: int, rank: int | None, master: str | None, said: str
) -> None:
    with pytest.raises(JobError) as refused:
        nodes_of(count, rank, master)
    assert said in refused.value.message
    assert refused.value.hint


def test_the_secret_is_not_among_what_goes_to_a_command_line() -> None:
    place = Nodes(count=2, rank=1, address="10.0.0.1", port=1, interface="lo", token=TOKEN)
    assert TOKEN not in f"{place}{place.without_token()}"
    assert Nodes(**place.without_token(), token=TOKEN) == place


@pytest.mark.parametrize("token", [None, "", "tiny12"])
def test_nodes_without_a_token_are_refused(
    token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is None:
        monkeypatch.delenv(TOKEN_ENV)
    else:
        monkeypatch.setenv(TOKEN_ENV, token)
    with pytest.raises(JobError, match=TOKEN_ENV) as refused:
        nodes_of(2, 0, "10.0.0.1:29400")
    assert "tiny12" not in str(refused.value)


def test_a_node_finds_the_interface_to_node_0() -> None:
    address, interface = own_address()
    with listen_on(0, address) as free:
        port = free.getsockname()[1]
    for rank in (0, 1):
        found = nodes_of(2, rank, f"{address}:{port}")
        assert found is not None
        assert (found.address, found.port, found.interface) == (address, port, interface)


def test_node_0_has_to_be_able_to_listen_there() -> None:
    address, _ = own_address()
    with listen_on(0, address) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"node 0 cannot listen on port {port}"):
            nodes_of(2, 0, f"{address}:{port}")
    # An address for documentation (RFC 5737): no machine has it.
    with pytest.raises(JobError, match=r"cannot listen on port 29400 of 192\.0\.2\.1"):
        nodes_of(2, 0, "192.0.2.1:29400")
