"""What NCCL's log says, in the formats of its sources, and what gloo really has."""

import os

import pytest

from autotune.trial.communication import LOG_FILE, compared, listen, parse, read_back
from autotune.trial.engines.base import differences
from tests.trials import spec

HEAD = "node-1:4711:4711 [0] NCCL INFO "
PROXY = "node-1:4711:4750 [0] NCCL INFO "


def matrix(**off):
    """The table of src/graph/tuning.cc; `AllReduce=("Tree",)` leaves these alone there."""
    algorithms = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
    functions = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
    text = HEAD + "Enabled NCCL Func/Proto/Algo Matrix:\n     Function | "
    text += "".join(f"{name:>8}  " for name in ("LL", "LL128", "Simple")) + " | "
    text += "".join(f"{name:>13}  " for name in algorithms) + "\n"
    for function in functions:
        text += f"{function:>13} | " + "".join(f"{n:>8}  " for n in (1, 2, 1)) + " | "
        enabled = off.get(function, algorithms)
        text += "".join(f"{int(name in enabled):>13}  " for name in algorithms) + "\n"
    return text


LOG = f"""NCCL version 2.27.3+cuda12.9
{HEAD}NCCL_SOCKET_IFNAME set by environment to =eth0
{HEAD}Using network Socket
{HEAD}ncclCommInitRank comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 - Init START
{HEAD}NCCL_CROSS_NIC set by environment to 1.
{HEAD}NCCL_NET_GDR_LEVEL set by environment to PHB
{HEAD}comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
{HEAD}NCCL_MAX_CTAS set by environment to 8.
{HEAD}NCCL_ALGO set by environment to allreduce:Tree
{matrix(AllReduce=("Tree",))}{HEAD}threadThresholds 8/8/64 | 128/8/64 | 512 | 512
{HEAD}8 coll channels, 8 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer
[2026-11-25 05:19:00] {PROXY}NCCL_SOCKET_NTHREADS set by environment to 4.
{HEAD}comm 0x66e0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
{HEAD}24 coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels, 32 per peer
node-1:4711:4711 [0] enqueue.cc:1656 NCCL WARN Error : no algorithm/protocol available
"""
EXPECTED = {
    "NCCL_ALGO": "allreduce:Tree",
    "NCCL_MAX_CTAS": "8",
    "NCCL_CROSS_NIC": "1",
    "NCCL_NET_GDR_LEVEL": "PHB",
    "NCCL_SOCKET_NTHREADS": "4",
    "nccl.all_reduce": "Tree",
    "nccl.max_channels": 8,
}


def test_a_log_says_what_was_read_and_what_came_of_it():
    log = parse([LOG])
    assert (log.version, log.network, log.channels) == ("2.27.3", "Socket", 8)
    assert log.settings["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert log.settings["NCCL_CROSS_NIC"] == "1"
    assert log.algorithms["AllReduce"] == "Tree"
    assert log.algorithms["AllGather"].split(",")[:2] == ["Tree", "Ring"]
    found = compared(log, EXPECTED, has_table=True)
    assert differences(EXPECTED, found) == []
    assert (found["nccl_version"], found["nccl_network"]) == ("2.27.3", "Socket")


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("NCCL_ALGO set by environment to allreduce:Tree\n", "\n", "NCCL_ALGO: asked"),
        # Sockets are never opened where InfiniBand carries the messages.
        ("NCCL_SOCKET_NTHREADS set by environment to 4.", "", "NCCL_SOCKET_NTHREADS: asked 4"),
        ("NCCL_NET_GDR_LEVEL set by environment to PHB", "", "NCCL_NET_GDR_LEVEL: asked PHB"),
        ("NCCL_MAX_CTAS set by environment to 8.", "NCCL_MAX_CTAS set by environment to 4.", "8"),
        ("8 coll channels", "16 coll channels", "nccl.max_channels: asked 8, the engine runs 16"),
        (matrix(AllReduce=("Tree",)), "", "nccl.all_reduce: asked Tree"),
        (matrix(AllReduce=("Tree",)), matrix(), "nccl.all_reduce: asked Tree"),
    ],
)
def test_what_did_not_take_effect_differs(line, instead, words):
    assert line in LOG
    found = compared(parse([LOG.replace(line, instead)]), EXPECTED, has_table=True)
    (difference,) = differences(EXPECTED, found)
    assert words in difference


def test_fewest_channels_are_a_bound():
    log = parse([LOG])
    assert compared(log, {"nccl.min_channels": 4}, has_table=True)["nccl.min_channels"] == 4
    assert compared(log, {"nccl.min_channels": 12}, has_table=True)["nccl.min_channels"] == 8


def test_a_row_that_is_cut_off_says_nothing():
    """A line has 1024 bytes, a long host's name among them."""
    cut = LOG.replace(matrix(AllReduce=("Tree",)), matrix(AllReduce=("Tree",))[:-40] + "\n")
    log = parse([cut])
    assert "AllReduce" not in log.algorithms
    assert "ReduceScatter" in log.algorithms
    assert differences(EXPECTED, compared(log, EXPECTED, has_table=True)) == []


def test_the_table_is_missed_on_the_node_of_rank_0_alone():
    log = parse([LOG.replace(matrix(AllReduce=("Tree",)), "")])
    assert differences(EXPECTED, compared(log, EXPECTED, has_table=False)) == []
    assert differences(EXPECTED, compared(log, EXPECTED, has_table=True))


@pytest.fixture
def no_debug(monkeypatch):
    """Variables of NCCL's log, which `listen` sets, are taken back."""
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_debug")
def test_nccl_is_listened_to_where_a_candidate_sets_something_of_it(tmp_path):
    listen(spec(environment={"GLOO_SOCKET_IFNAME": "lo,lo"}), tmp_path, 3)
    assert "NCCL_DEBUG" not in os.environ
    listen(spec(environment={"NCCL_MAX_CTAS": "8"}), tmp_path, 3)
    path = tmp_path / "ranks" / LOG_FILE.format(rank=3)
    assert os.environ["NCCL_DEBUG_FILE"] == str(path)
    assert os.environ["NCCL_DEBUG_SUBSYS"] == "INIT,ENV"
    path.parent.mkdir()
    path.write_text(LOG.replace("NCCL_SOCKET_NTHREADS", "NCCL_NTHREADS"), encoding="utf-8")
    # Another rank of the node made the connection to the other one.
    (path.parent / LOG_FILE.format(rank=4)).write_text(
        f"{HEAD}NCCL_SOCKET_NTHREADS set by environment to 4.\n", encoding="utf-8"
    )
    assert differences(EXPECTED, read_back(EXPECTED)) == []


def test_what_expects_nothing_of_it_reads_nothing():
    assert read_back({"stage": 1}) == {}
