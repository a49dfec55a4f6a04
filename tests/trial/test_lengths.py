"""Every candidate of a job trains on samples of the same lengths."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autotune.trial.scripts.lengths import batch_lengths, rounded_up, step_lengths

HISTOGRAM = {"kind": "histogram", "histogram": [[128, 0.5], [512, 0.3], [2048, 0.2]]}

histograms = st.dictionaries(
    st.integers(2, 5000), st.floats(0.001, 1000), min_size=1, max_size=8
).map(lambda found: {"kind": "histogram", "histogram": [list(pair) for pair in found.items()]})


def test_a_batch_has_the_shares_of_the_histogram():
    assert Counter(batch_lengths(HISTOGRAM, 10)) == {128: 5, 512: 3, 2048: 2}
    # 4, 2.4 and 1.6 of eight: the one that is left goes to the largest remainder.
    assert Counter(batch_lengths(HISTOGRAM, 8)) == {128: 4, 512: 2, 2048: 2}
    assert batch_lengths(HISTOGRAM, 1) == [128]


def test_of_equal_remainders_the_longest_comes_first():
    assert batch_lengths({"histogram": [[64, 1], [256, 1]]}, 3) == [64, 256, 256]


@given(histograms, st.integers(1, 200))
def test_a_batch_is_complete_and_no_length_is_more_than_one_off(lengths, global_batch):
    found = Counter(batch_lengths(lengths, global_batch))
    total = sum(weight for _, weight in lengths["histogram"])
    assert sum(found.values()) == global_batch
    for length, weight in lengths["histogram"]:
        assert abs(found[length] - global_batch * weight / total) < 1 + 1e-6


def test_steps_have_the_same_samples_in_another_order():
    steps = [step_lengths(HISTOGRAM, 20, seed=3, step=step) for step in range(4)]
    assert all(sorted(step) == batch_lengths(HISTOGRAM, 20) for step in steps)
    assert len({tuple(step) for step in steps}) == 4
    assert step_lengths(HISTOGRAM, 20, seed=3, step=1) == steps[1]
    assert step_lengths(HISTOGRAM, 20, seed=4, step=1) != steps[1]


def test_padding_is_rounded_up():
    assert [rounded_up(n, 8) for n in (1, 8, 9)] == [8, 8, 16]
