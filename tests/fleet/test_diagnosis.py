"""From what each rank saw to what is said of the trial."""

import dataclasses
import json
import math

import pytest

from autotune.contract import (
    CollectiveCalls,
    ContractError,
    Phase,
    RankDiagnosis,
    RankReport,
    Split,
    Surroundings,
    TrialResult,
    to_dict,
)
from autotune.fleet.collect import diagnosis_of, use_of

SPLIT = Split(
    step_s=1.0,
    forward_s=0.3,
    backward_s=0.4,
    optimizer_s=0.1,
    communication_s=0.2,
    data_s=0.0,
    overlapped_s=0.0,
    matmul_s=0.5,
    memory_s=0.1,
    host_s=0.1,
)


def waits(communication_s):
    spare_s = SPLIT.communication_s - communication_s
    return dataclasses.replace(
        SPLIT, communication_s=communication_s, forward_s=SPLIT.forward_s + spare_s
    )


def calls(*seconds, name="all_reduce", message_bytes=1000, group_size=2):
    return CollectiveCalls(
        name=name, message_bytes=message_bytes, group_size=group_size, seconds=list(seconds)
    )


def report(rank, diagnosis):
    return RankReport(rank=rank, phase=Phase.TEARDOWN, diagnosis=diagnosis)


def diagnosed(*ranks):
    return diagnosis_of([report(rank, seen) for rank, seen in enumerate(ranks)])


def test_the_rank_that_waits_least_is_shown_and_what_the_others_wait_more():
    found = diagnosed(
        RankDiagnosis(steps=2, split=waits(0.30)),
        RankDiagnosis(steps=2, split=waits(0.05)),
        RankDiagnosis(steps=2, split=waits(0.20)),
    )
    assert (found.rank, found.steps, found.split) == (1, 2, waits(0.05))
    assert found.waiting_s == pytest.approx(0.20)


@pytest.mark.cases("ranks", "fields", "expected")
def test_calls_of_ranks_are_one_collective(ranks, fields, expected):
    seen = [RankDiagnosis(calls=[calls(*seconds, **fields)]) for seconds in ranks]
    (found,) = diagnosed(*seen).collectives
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


@pytest.mark.cases("name", "group_size", "algbw", "busbw")
def test_bandwidths_are_those_of_nccl_tests(name, group_size, algbw, busbw):
    """One second for 1000 bytes that a rank hands in (nccl-tests, doc/PERFORMANCE.md)."""
    one = RankDiagnosis(calls=[calls(1.0, name=name, group_size=group_size)])
    (found,) = diagnosed(one).collectives
    assert (found.algbw_bytes_per_s, found.busbw_bytes_per_s) == (algbw, busbw)


def test_groups_of_another_size_are_apart():
    found = diagnosed(RankDiagnosis(calls=[calls(0.1, group_size=2), calls(0.2, group_size=4)]))
    assert [c.group_size for c in found.collectives] == [4, 2], "the longest first"


def test_a_problem_of_one_rank_is_the_trials_and_the_rest_stands():
    found = diagnosed(
        RankDiagnosis(steps=1, split=SPLIT), RankDiagnosis(problem="ended after 20 s")
    )
    assert found.problem == "ended after 20 s"
    assert found.split == SPLIT


def test_a_rank_that_was_cut_off_is_named():
    found = diagnosis_of(
        [report(0, RankDiagnosis(steps=1)), RankReport(rank=1, phase=Phase.DIAGNOSE)]
    )
    assert found.problem == "rank 1 did not finish it"


def test_without_a_pass_there_is_nothing():
    assert diagnosis_of([RankReport(rank=0)]) is None


def test_processor_time_is_that_of_all_ranks_over_the_measured_steps():
    ranks = [
        RankReport(
            rank=rank, cpu_s=cpu_s, measured_s=4.0, phases_s={"warm_up": 3.0, "measured": 9.0}
        )
        for rank, cpu_s in enumerate((2.0, 3.0))
    ]
    found = use_of(ranks, [])
    assert (found.cpu_s, found.cpu_utilization, found.gpu) == (5.0, pytest.approx(0.625), None)
    assert use_of([*ranks, RankReport(rank=2)], []) is None


def test_a_diagnosis_survives_its_file():
    whole = report(0, RankDiagnosis(steps=1, split=SPLIT, calls=[calls(0.1)]))
    assert RankReport.from_dict(to_dict(whole)) == whole
    result = TrialResult(
        number=0,
        role="search",
        candidate_hash="0",
        outcome="ok",
        diagnosis=diagnosis_of([whole]),
        use=use_of([RankReport(rank=0, cpu_s=1.0, measured_s=2.0)], []),
    )
    assert TrialResult.from_dict(to_dict(result)) == result


WHOLE = {"diagnosis": RankDiagnosis(steps=1, split=SPLIT, calls=[calls(0.1)])}
SEEN = Surroundings(cores=[0], elapsed_s=2.0, busy_s=1.8, stolen_s=0.0, throttled_s=0.0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("step_times_s", [0.1, 1e308]),
        ("cpu_s", -1.0),
        ("measured_s", math.nan),
        ("phases_s.measured", math.nan),
    ],
)
def test_a_report_with_figures_that_cannot_be_is_unreadable(path, value):
    """Not a traceback of the coordinator's."""
    whole = RankReport(rank=0, cpu_s=1.0, phases_s={"measured": 2.0}, surroundings=SEEN, **WHOLE)
    data = json.loads(json.dumps(to_dict(whole)))
    RankReport.from_dict(data)
    *above, last = path.split(".")
    holder = data
    for key in above:
        holder = holder[int(key) if key.isdecimal() else key]
    holder[last] = value
    with pytest.raises(ContractError):
        RankReport.from_dict(data)
