"""Bytes and seconds: parsed once at the border, formatted once for people.

Sizes are binary (`1 GiB` = 2**30 bytes); `GB` and `G` are accepted as people write them and are
read as decimal and binary respectively, as `dd` and most launchers do.
"""

import math
import re
from collections.abc import Mapping

from autotune.base.errors import JobError

_BYTES_PER_UNIT = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("IB", 1024), ("B", 1000))
}
_BYTES_PER_S_PER_UNIT = {
    "Mbps": 1e6 / 8,
    "Gbps": 1e9 / 8,
    "Gb/s": 1e9 / 8,
    "Tbps": 1e12 / 8,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "TB/s": 1e12,
}
"""A small b is a bit."""
_SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS_PER_SMALL_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
_SIZE = "write it as 24GiB, 800MiB or 16GB; units: B, KB, MB, GB, TB, and KiB, MiB, GiB, TiB"
_DURATION = "write it as 90s, 20m or 1.5h; units: s, m or min, h, d"
_SAYS_NOTHING = 100.0
"""How many times to either side of a gain its interval reaches where it says nothing."""
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z/%]*)\s*")


def parse_bytes(text: str | int, *, where: str) -> int:
    """Read a size in bytes: `24GiB`, `800M` or `1.5 GB`.

    Raises:
        JobError: The text is not a positive size.
    """
    problem = f"{text!r} is not a size"
    size_bytes = _parse(str(text).upper(), _BYTES_PER_UNIT, where, problem, _SIZE)
    _refuse_bare(text, "GiB", where, "a size", _SIZE)
    return int(_in_range(size_bytes if size_bytes >= 1 else 0, text, where))


def parse_seconds(text: str | float, *, where: str) -> float:
    """Read a duration in seconds: `90s`, `20m` or `1.5h`.

    Raises:
        JobError: The text is not a positive duration with its unit.
    """
    problem = f"{text!r} is not a duration"
    found_s = _parse(str(text).lower(), _SECONDS_PER_UNIT, where, problem, _DURATION)
    _refuse_bare(text, "m", where, "a duration", _DURATION)
    return _in_range(found_s, text, where)


def parse_latency(text: str, *, where: str) -> float:
    """Read a latency in seconds; `300ns` or `1.5us`.

    Raises:
        JobError: The text is not a latency below a second, with its unit.
    """
    how, problem = "write it as 300ns or 1.5us", f"{text!r} is not a latency"
    found_s = _parse(text, _SECONDS_PER_SMALL_UNIT, where, problem, how)
    if not found_s < 1.0:
        raise JobError(f"{where}: {text!r} is a second or more", how)
    return found_s


def parse_rate(text: str, *, where: str) -> float:
    """Read a link's rate in bytes per second; `400Gbps` are bits, `50GB/s` bytes.

    Raises:
        JobError: The text is not a positive rate with its unit.
    """
    how = f"write it as 400Gbps or 50GB/s; units: {', '.join(_BYTES_PER_S_PER_UNIT)}"
    problem = f"{text!r} is not a rate"
    return _in_range(_parse(text, _BYTES_PER_S_PER_UNIT, where, problem, how), text, where)


def parse_share(text: str, *, where: str) -> float:
    """Read a share: `5%` or `0.05`.

    Raises:
        JobError: The text is none between 0 and 1.
    """
    problem, how = f"{text!r} is no share above 0 and below 1", "write 5% or 0.05"
    share = _parse(text, {"%": 0.01, "": 1.0}, where, problem, how)
    if not 0 < share < 1:
        raise JobError(f"{where}: {problem}", how)
    return share


def format_bytes(size_bytes: float | None) -> str:
    """Format a size for people: three significant digits and a binary unit."""
    if size_bytes is None or size_bytes != size_bytes:
        return "-"
    unit, unit_bytes = size_unit(size_bytes)
    size = float(size_bytes) / unit_bytes
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"


def size_unit(size_bytes: float) -> tuple[str, int]:
    """The unit that a size is written in, and its bytes: `MiB` for 800 MiB."""
    unit_bytes = 1
    for unit in ("B", "KiB", "MiB", "GiB"):
        # 1,000 would take a fourth digit.
        if abs(size_bytes) < (1024 if unit == "B" else 999.5 * unit_bytes):
            return unit, unit_bytes
        unit_bytes *= 1024
    return "TiB", unit_bytes


def format_seconds(duration_s: float | None, *, digits: int = 1) -> str:
    """Format a duration: `850 ms`, `12.3 s` (`digits` below 10 s), `4 min 05 s`, `2 h 10 min`."""
    if duration_s is None or duration_s != duration_s:
        return "-"
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.{digits if duration_s < 9.995 else 1}f} s"
    whole_s = round(duration_s)
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60:02d} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60:02d} min"


def format_count(number: int, one: str, several: str = "") -> str:
    """`1 trial`, `3 trials`; the word for several where it is not the first with an s."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def format_rate(samples_per_s: float | None) -> str:
    """Samples/s with three significant digits, never in exponents: `0.0123`, `61.2`, `12345`."""
    if samples_per_s is None or samples_per_s != samples_per_s:
        return "-"
    if round(samples_per_s) >= 1000:
        return f"{samples_per_s:.0f}"
    return f"{samples_per_s:#.3g}".rstrip(".")


def format_interval(low: float | None, high: float | None) -> str:
    """The two ends of an interval: `59.9 to 62.7`."""
    if low is None or high is None or low != low or high != high:
        return "-"
    return f"{format_rate(low)} to {format_rate(high)}"


def says_nothing(low: float, high: float) -> bool:
    """Whether a gain's interval is as wide as a few runs that differ much make it."""
    return high >= _SAYS_NOTHING**2 * low


def format_gain_interval(
    low: float,
    high: float,
    *,
    before: str = "",
    too_wide: str = "runs differ too much for an interval",
    digits: int = 2,
) -> str:
    """The ends of a gain's 95% interval: `1.67 to 2.00`."""
    if says_nothing(low, high):
        return too_wide
    return f"{before}{low:.{digits}f} to {high:.{digits}f}"


def format_chance(probability: float) -> str:
    """A probability in whole percents, rounded down: what misses a limit never shows as it."""
    return f"{math.floor(100 * probability + 1e-9)}%"


def format_amount(amount: float) -> str:
    """Hours or money with two significant digits, never in exponents: `0.034`, `1.5`, `1,230`."""
    if 0 < amount < 1e-4:
        return "less than 0.0001"
    return f"{amount:,.0f}" if amount >= 99.5 else f"{amount:.2g}"


def typed_seconds(duration_s: float) -> str:
    """A duration as a flag takes it, rounded up to a whole number: `45s`, `21m`, `8h`."""
    whole_s = max(1, math.ceil(duration_s))
    if whole_s < 600:
        return f"{whole_s}s"
    whole_m = math.ceil(whole_s / 60)
    is_coarse = whole_m >= 600 or (whole_m >= 180 and whole_m % 60 == 0)
    return f"{math.ceil(whole_m / 60)}h" if is_coarse else f"{whole_m}m"


def typed_bytes(size_bytes: float) -> str:
    """A size as a flag takes it, rounded up to hundredths: `24.05GiB`, `9.77TiB`."""
    unit, unit_bytes = ("TiB", 2**40) if size_bytes >= 2**40 else ("GiB", 2**30)
    return f"{math.ceil(100 * size_bytes / unit_bytes) / 100:.2f}{unit}"


def _parse(text: str, units: Mapping[str, float], where: str, problem: str, how: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2] not in units:
        raise JobError(f"{where}: {problem}", how)
    return float(match[1]) * units[match[2]]


def _refuse_bare(text: str | float, unit: str, where: str, what: str, how: str) -> None:
    """Raise a JobError for a number alone: 20 may be seconds or minutes, and was both."""
    if str(text).strip()[-1].isdigit():
        hint = f"such as {str(text).strip() if float(text) else 1}{unit}; {how}"
        raise JobError(f"{where}: {text!r} is not {what} with a unit", hint)


def _in_range(value: float, text: str | float, where: str) -> float:
    if 0 < value < 2**63:
        return value
    what = "too large" if value > 0 else "not above zero"
    raise JobError(f"{where}: {text!r} is {what}", "leave it out for no limit")
