"""Time as programs count it: nothing that is subtracted comes from a clock that somebody may set.

Durations are differences of `time.monotonic`, which all processes of a machine share on Linux.
Dates are for people: the wall clock is read once, when a program begins, and counted on
from there.
"""

import time
from datetime import UTC, datetime

_BEGAN_S = time.time() - time.monotonic()


def unix_now_s() -> float:
    """Unix time by the wall clock as this program found it; never runs back, never jumps."""
    return _BEGAN_S + time.monotonic()


def date_of(unix_s: float, form: str) -> str:
    """A date in UTC for people; empty where no calendar has it: the clock was set to nonsense."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime(form)
    except (OverflowError, OSError, ValueError):
        return ""
