import dataclasses

import pytest

from autotune.base.units import format_gain_interval, format_interval, format_rate
from autotune.contract import Outcome, Role, TrialResult
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.report.words import (
    describe_counts,
    describe_ending,
    describe_others,
    describe_race,
    describe_standing,
)
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, describe_candidate, describe_difference
from tests.report.samples import CONTEXT, candidate, comparison, standing


def test_rates_have_three_digits_and_no_exponent() -> None:
    rates = (0.012345, 0.5, 7.0, 61.23, 412.0, 1234.5, 1e6)
    assert [format_rate(rate) for rate in rates] == [
        "0.0123", "0.500", "7.00", "61.2", "412", "1234", "1000000",
    ]  # fmt: skip


def test_a_missing_figure_is_a_dash() -> None:
    assert format_rate(None) == "-"
    assert format_rate(float("nan")) == "-"
    assert format_interval(None, 1.0) == "-"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.674, 2.0, "95% interval 1.67 to 2.00"),
        (110.0, 130.0, "95% interval 110.00 to 130.00"),
        (0.001, 9364823.12, "runs differ too much for an interval"),
        (1 / 9364823.12, 0.9, "runs differ too much for an interval"),
    ],
)
def test_a_gain_s_interval_that_says_nothing_is_not_spelled(
    low: float, high: float, said: str
) -> None:
    assert format_gain_interval(low, high, before="95% interval ") == said


def test_a_standing_names_its_interval_memory_and_trial() -> None:
    text = describe_standing(standing(5, 50.0, zero__stage=1, micro_batch=4))
    assert text == "50.0 samples/s (49.0 to 51.0), peak 800 MiB, trial 5"


def test_a_standing_names_the_runs_behind_it_where_they_are_several() -> None:
    text = describe_standing(dataclasses.replace(standing(5, 50.0), n_runs=4))
    assert text.startswith("50.0 samples/s (49.0 to 51.0, 4 runs)")


def test_a_race_names_its_leader_and_the_gain_so_far() -> None:
    state = comparison()
    assert describe_race(state) == "2 rounds, trial 5 leads: 1.10x the baseline (1.02 to 1.19)"
    assert describe_others(state) == "trial 7: 54.0 samples/s (2 runs)"
    first = comparison(1, gain=None, leader=state.start)
    assert describe_race(first) == "1 round, trial 1 leads, the baseline"
    none = comparison(0, leader=None, others=())
    assert (describe_race(none), describe_others(none)) == ("no round is over", "")


def test_counts_name_only_what_happened() -> None:
    assert describe_counts({Outcome.OOM: 1, Outcome.OK: 6, Outcome.LOST: 0}) == "ok 6, oom 1"
    assert describe_counts({}) == "none yet"


def test_an_ending_names_its_rate_or_its_reason() -> None:
    ran = TrialResult(
        number=1, role=Role.SEARCH, candidate_hash="", outcome=Outcome.OK, samples_per_s=61.23
    )
    lost = dataclasses.replace(
        ran, outcome=Outcome.COMM, samples_per_s=None, evidence="connection reset"
    )
    assert describe_ending(ran) == "ok, 61.2 samples/s"
    assert describe_ending(lost) == "comm: connection reset"


def test_a_candidate_is_named_by_what_a_user_has_to_set() -> None:
    at_defaults = canonical({"zero.stage": 1, "micro_batch": 4}, CONTEXT)
    chosen = Candidate.of(at_defaults, world=2, global_batch=16)
    # The default bucket is larger than the model, so the candidate holds another number.
    assert at_defaults["reduce_bucket_size"] != KNOBS["reduce_bucket_size"].default
    assert describe_candidate(chosen, CONTEXT) == "zero.stage=1 micro_batch=4"
    smaller = Candidate.of({**at_defaults, "reduce_bucket_size": 1000}, world=2, global_batch=16)
    expected = "zero.stage=1 micro_batch=4 reduce_bucket_size=1000"
    assert describe_candidate(smaller, CONTEXT) == expected


def test_a_change_names_what_a_user_would_change() -> None:
    baseline = candidate(zero__stage=0, micro_batch=8, recompute="full")
    ours = candidate(zero__stage=1, micro_batch=8, recompute="none", overlap_comm=False)
    assert describe_difference(ours, baseline, CONTEXT) == "zero.stage=1 recompute=none"
    assert describe_difference(baseline, baseline, CONTEXT) == "the baseline itself"
