"""Where ranks find one another; their store is tested in `test_launcher.py`."""

import inspect
import re
import socket

import pytest

from autotune.trial.rendezvous import Rendezvous, listen_on
from autotune.trial.variables import STORE_ENV


def two_nodes(node: int) -> Rendezvous:
    return Rendezvous(address="10.0.0.1", port=29500, world=4, node=node, n_nodes=2)


def test_each_node_has_its_share_of_the_ranks() -> None:
    assert [*two_nodes(0).ranks, *two_nodes(1).ranks] == [0, 1, 2, 3]
    variables = two_nodes(1).variables(3, None)
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["GROUP_RANK"]) == ("3", "1", "1")
    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("4", "2")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert two_nodes(1).listen() is None, "the first node has the store"


def test_the_first_rank_alone_gets_what_listens() -> None:
    with listen_on(0) as listener:
        ours = Rendezvous(address="127.0.0.1", port=1, world=2, node=0, n_nodes=1)
        first, second = (ours.variables(rank, listener) for rank in (0, 1))
        assert first[STORE_ENV] == str(listener.fileno())
    assert STORE_ENV not in second


def test_a_rank_has_every_variable_that_torchrun_sets() -> None:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    source = inspect.getsource(LocalElasticAgent._start_workers)
    by_torchrun = set(re.findall(r'"([A-Z_]+)":', source)) - {"TORCHELASTIC_ERROR_FILE"}
    assert {"RANK", "TORCHELASTIC_USE_AGENT_STORE"} <= by_torchrun, (
        "they are set somewhere else now"
    )
    # Threads are the node's to give: see `rank_environment`.
    assert by_torchrun - {"OMP_NUM_THREADS"} <= two_nodes(0).variables(0, None).keys()


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no address ::1")
def test_an_address_may_be_one_of_ipv6() -> None:
    with listen_on(0, "::1") as listener:
        assert listener.getsockname()[0] == "::1"
