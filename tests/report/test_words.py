import pytest

from autotune.base.units import format_gain_interval, format_interval, format_rate
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, describe_candidate, describe_difference
from tests.report.samples import CONTEXT, candidate


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
def test_a_gain_s_interval_that_says_nothing_is_not_spelled(low, high, said) -> None:
    assert format_gain_interval(low, high, before="95% interval ") == said


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
