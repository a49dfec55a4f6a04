"""Rates: bits and bytes are told apart, and what is no rate says what is."""

import re

import pytest

from autotune.base.errors import JobError
from autotune.base.units import (
    format_amount,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
    size_unit,
    typed_bytes,
    typed_seconds,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("400Gbps", 50e9), ("50GB/s", 50e9), ("1.5 TB/s", 1.5e12), ("100 Mbps", 12.5e6)],
)
def test_a_small_b_is_a_bit(text, bytes_per_s):
    assert parse_rate(text, where="--network") == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["400", "fast", "-1Gbps", "0Gbps", "400 gb", "1e400Gbps"])
def test_what_is_no_rate_is_named(text):
    with pytest.raises(JobError) as error:
        parse_rate(text, where="--network")
    assert text in error.value.message
    assert "--network" in error.value.message


@pytest.mark.cases("size_bytes", "text")
def test_sizes_have_three_digits_and_no_exponent(size_bytes, text):
    assert format_bytes(size_bytes) == text


@pytest.mark.cases("duration_s", "digits", "text")
def test_a_duration_in_a_column_has_digits_that_tell_it_from_its_neighbour(
    duration_s, digits, text
):
    assert format_seconds(duration_s, digits=digits) == text


@pytest.mark.parametrize("text", ["20", "20x", "x"])
def test_a_wrong_quantity_is_answered_with_the_units_and_an_example(text):
    """Each unit that is named is read."""
    for parse in (parse_bytes, parse_seconds):
        with pytest.raises(JobError) as error:
            parse(text, where="--flag")
        example, _, units = error.value.hint.partition("; units: ")
        assert "write it as " in example
        for unit in re.split(", and |, | or ", units):
            assert parse(f"3{unit}", where="--flag") > 0


@pytest.mark.parametrize("size_bytes", [5, 900 * 2**10, 243 * 2**20, 2**30, 3e12])
def test_a_size_is_written_in_its_unit(size_bytes):
    """An axis takes the unit of its largest value."""
    unit, unit_bytes = size_unit(size_bytes)
    assert format_bytes(size_bytes) == f"{size_bytes / unit_bytes:.3g} {unit}"


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1e-5, "less than 0.0001"), (0.034, "0.034"), (99.7, "100"), (1234.5, "1,234")],
)
def test_amounts_have_no_exponent(amount, text):
    assert format_amount(amount) == text


@pytest.mark.parametrize("duration_s", [0.2, 59.7, 90, 599.5, 3700, 10_860, 90_000])
def test_a_duration_for_a_flag_is_one_that_it_reads(duration_s):
    read_s = parse_seconds(typed_seconds(duration_s), where="--budget")
    assert duration_s <= read_s < duration_s + 60


@pytest.mark.parametrize("size_bytes", [1, 24.04 * 2**30, 1.7e13])
def test_a_size_for_a_flag_is_one_that_it_reads(size_bytes):
    read_bytes = parse_bytes(typed_bytes(size_bytes), where="--memory-limit")
    unit = "TiB" if size_bytes >= 2**40 else "GiB"
    assert typed_bytes(size_bytes).endswith(unit)
    assert size_bytes - 1 <= read_bytes < size_bytes + parse_bytes(f"0.011{unit}", where="")


@pytest.mark.parametrize(
    ("rate", "text"), [(0.01234, "0.0123"), (61.21, "61.2"), (999.6, "1000"), (12345.0, "12345")]
)
def test_a_rate_has_three_digits_and_no_exponent(rate, text):
    assert format_rate(rate) == text
