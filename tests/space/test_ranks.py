"""Where ranks lie, and how far their parallel groups reach."""

from autotune.space.candidate import Candidate
from autotune.space.ranks import (
    describe_groups,
    describe_places,
    describe_ranks,
    describe_reach,
    machine_places,
)

TWO_NODES = [f"worker-{1 + rank // 8}" for rank in range(16)]
FOUR_DOMAINS = [f"worker-{1 + rank // 8}, NVLink of GPU {rank // 4 % 2 * 4}" for rank in range(16)]


def test_ranks_are_told_by_place() -> None:
    assert describe_places(TWO_NODES) == "ranks 0 to 7 on worker-1; 8 to 15 on worker-2"
    assert describe_places(FOUR_DOMAINS).startswith("ranks 0 to 3 on worker-1, NVLink of GPU 0; ")
    many = describe_places([f"n{rank}" for rank in range(100)])
    assert many.count(";") == 8
    assert many.endswith("6 on n6; ...; 99 on n99")


def test_the_groups_of_a_layout_reach_over_places() -> None:
    layout = Candidate.of({"tp": 4, "pp": 2, "micro_batch": 1}, world=16, global_batch=16)
    assert describe_groups(layout, TWO_NODES) == [
        "tensor parallel groups of 4 ranks, such as 0 to 3: each in one place",
        "data parallel groups of 2 ranks, such as 0, 4: each in one place",
        "pipeline groups of 2 ranks, such as 0, 8: over 2 places",
    ]
    plain = Candidate.of({"micro_batch": 1}, world=16, global_batch=16)
    assert describe_groups(plain, TWO_NODES) == [
        "data parallel groups of 16 ranks, such as 0 to 15: over 2 places"
    ]
    undivided = Candidate.of({"tp": 3, "micro_batch": 1}, world=16, global_batch=16)
    assert describe_groups(undivided, TWO_NODES) == []


def test_a_group_is_as_wide_as_its_widest() -> None:
    assert describe_reach(4, 1, FOUR_DOMAINS) == "each in one place"
    assert describe_reach(8, 1, FOUR_DOMAINS) == "over 2 places"
    assert describe_reach(2, 8, FOUR_DOMAINS) == "over 2 places"
    assert describe_reach(4, 1, ["a"] * 6 + ["b"] * 2) == "over 2 places"


def test_a_pipelines_stages_may_be_nearer_than_replicas() -> None:
    values = {"tp": 4, "pp": 2, "micro_batch": 1, "order": "tp-cp-ep-pp-dp"}
    layout = Candidate.of(values, world=16, global_batch=16)
    assert describe_ranks(layout, machine_places(16, 8))[2:] == [
        "data parallel groups of 2 ranks, such as 0, 8: over 2 places",
        "pipeline groups of 2 ranks, such as 0, 4: each in one place",
    ]
    assert describe_ranks(layout, machine_places(16, 16)) == []
