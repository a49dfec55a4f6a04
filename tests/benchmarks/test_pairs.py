"""The forecast of one knob has the sign that was measured, and half of the size at least."""

from benchmarks.pairs import LEAST_SHARE, pairs


def test_clean_pairs_are_forecast() -> None:
    found = [pair for pair in pairs() if pair.is_clean]
    assert len(found) > 8
    assert {pair.name: pair.share for pair in found if pair.share < LEAST_SHARE} == {}
