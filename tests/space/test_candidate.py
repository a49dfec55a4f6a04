import json

import pytest

from autotune.space.candidate import Candidate, format_value

KNOBS = {"zero.stage": 2, "micro_batch": 4, "tp": 2, "overlap_comm": True}


def make(**changes):
    knobs = {**KNOBS, **changes.pop("knobs", {})}
    return Candidate.of(knobs, **{"world": 8, "global_batch": 64, **changes})


def test_the_global_batch_is_kept_by_accumulation():
    candidate = make()
    assert (candidate.tp, candidate.pp, candidate.dp) == (2, 1, 4)
    assert candidate.micro_batch * candidate.grad_accum * candidate.dp == 64


def test_a_layout_larger_than_the_world_still_has_numbers_for_the_rules_to_refuse():
    candidate = make(knobs={"tp": 16, "micro_batch": 1000})
    assert (candidate.dp, candidate.grad_accum) == (1, 1)


def test_identity_does_not_depend_on_the_order_of_knobs():
    backwards = Candidate.of(dict(reversed(KNOBS.items())), world=8, global_batch=64)
    assert backwards == make()
    assert backwards.hash == make().hash


@pytest.mark.parametrize(
    "changes", [{"world": 4}, {"global_batch": 128}, {"knobs": {"micro_batch": 2}}]
)
def test_identity_depends_on_all_that_decides_the_run(changes):
    assert make(**changes).hash != make().hash


def test_the_hash_is_the_one_that_records_hold():
    # A changed hash orphans every record that was written before.
    assert make().hash == "06037cea0ba0"
    assert len(make().hash) == 12


def test_knobs_that_came_later_leave_the_hash_alone_where_they_do_nothing():
    assert make(knobs={"pp": 1, "sp": 1, "ep": 1}).hash == "06037cea0ba0"
    assert len({make(knobs={name: 2}).hash for name in ("pp", "sp", "ep")} | {make().hash}) == 4


def test_true_and_one_are_two_values():
    assert make(knobs={"overlap_comm": 1}).hash != make().hash


def test_knobs_travel_through_json():
    assert Candidate.of(json.loads(json.dumps(make().values)), world=8, global_batch=64) == make()


@pytest.mark.cases("value", "text")
def test_values_are_spelled_as_settings_read_them(value, text):
    assert format_value(value) == text
