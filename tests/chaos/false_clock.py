"""A search whose wall clock is set while it runs: `python -m tests.chaos.false_clock JUMP ...`.

The machine's own clock is left alone: only what this process is told changes, to and fro at every
look. The rest of the command line is what `python -m autotune` gets.
"""

import itertools
import sys
import time

from tests.hasty import hurry

JUMPS_S = {
    "back": -2 * 86400.0,
    "on": 2 * 86400.0,
    "before": -3e9,
    "after": 253_380_000_000.0 - 1.8e9,
}
"""By how much the clock is wrong: two days, before 1970, after the year 9998."""


_TRUE = time.time


def set_clock(jump: str) -> None:
    """From here on, every second look at this process's wall clock is wrong."""
    turn = itertools.cycle((JUMPS_S[jump], 0.0))
    time.time = lambda: _TRUE() + next(turn)  # type: ignore[method-assign]


def main() -> None:
    """Set the clock, then search, with short trials."""
    hurry()
    set_clock(sys.argv.pop(1))
    from autotune.cli import main as search  # it is to import with the clock as it is then

    search()


if __name__ == "__main__":
    main()
