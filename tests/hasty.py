"""The command line with trials that measure for a second: `python -m tests.hasty`, as `autotune`.

For tests that ask what becomes of trials, not how well they are timed. On a busy machine a cold
trial measures for up to ten seconds, as its interval does not get narrow before.
"""

import dataclasses
import functools
import os
from pathlib import Path

from autotune.contract import Start
from autotune.search import trial_spec

HASTY = str(Path(__file__))
"""What Python runs where nothing of this tree is to be on the path of what is started."""

BUDGET_ENV = "AUTOTUNE_HASTY_BUDGET_S"
"""Seconds that a trial measures for; 1 if it is not set."""


def hurry() -> None:
    """Make the trials of this process short; before what makes them is imported."""
    budget_s = float(os.environ.get(BUDGET_ENV, "1"))
    for name in ("MEASURE", "WARM_MEASURE", "CONFIRM_MEASURE", "BRIEF_MEASURE"):
        measure = dataclasses.replace(getattr(trial_spec, name), budget_s=budget_s)
        setattr(trial_spec, name, measure)


def hurry_checks() -> None:
    """Make checks of a study's best short: a gate's runs start warm, a soak takes seconds."""
    from autotune.search import rounds, soak

    rounds.Run = functools.partial(rounds.Run, start=Start.WARM)
    soak.GROWTH_BYTES = 256 * 2**20  # in so few seconds heaps still warm up


def main() -> None:
    """Make trials short, then do what the rest of the command line says."""
    hurry()
    from autotune.cli import main as command  # it takes the measures as they are then

    command()


if __name__ == "__main__":
    main()
