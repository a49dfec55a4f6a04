"""One candidate: what is predicted of it, why it stands where it does, and its neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.app.outlook import AnyOutlook
from autotune.app.planning import MIN_FIT, ranked
from autotune.report.explain.neighbours import Estimated, Explained, Neighbour
from autotune.report.settings import Choices


def estimate_candidate(outlook: AnyOutlook, settings: Sequence[str]) -> Estimated:
    """Predict one candidate, legal or not.

    Args:
        outlook: The job and the fleet.
        settings: As of `explain_candidate`.

    Raises:
        JobError: A setting is not one.
    """
    asked, notes = outlook.read(settings)
    return Estimated(**_judged(outlook, asked, 0), notes=notes, prediction=outlook.predict(asked))


def explain_candidate(
    outlook: AnyOutlook, settings: Sequence[str], *, min_fit: float = MIN_FIT
) -> Explained:
    """Explain one candidate.

    Args:
        outlook: The job and the fleet.
        settings: `knob=value` each; other knobs are at their defaults (see `Outlook.read`).
        min_fit: What counts as fitting.

    Raises:
        JobError: A setting is not one.
    """
    asked, notes = outlook.read(settings)
    everyone, index, was_there = outlook.placed(asked)
    found = outlook.predict(everyone)
    place = int(np.flatnonzero(ranked(found, min_fit) == index)[0]) + 1
    return Explained(
        **_judged(outlook, everyone, index),
        notes=notes,
        prediction=found,
        place=place,
        is_in_lattice=was_there,
        home=outlook.home,
        min_fit=min_fit,
        neighbours=_neighbours(outlook, asked),
    )


def _judged(outlook: AnyOutlook, choices: Choices, index: int) -> dict[str, Any]:
    """The fields of an `Estimated` that need no prediction."""
    return {
        "job": outlook.job,
        "environment": outlook.environment,
        "choices": choices,
        "index": index,
        "violations": outlook.violations(choices, index),
    }


def _neighbours(outlook: AnyOutlook, asked: Choices) -> tuple[Neighbour, ...]:
    others, steps = outlook.neighbours(asked)
    if not steps:
        return ()
    found = outlook.predict(others)
    return tuple(
        Neighbour(
            knob=knob,
            value=value,
            knobs=others.knobs(index),
            violations=outlook.violations(others, index),
            step_time_s=float(found.step_time_s[index]),
            peak_memory_bytes=float(found.peak_memory_bytes[index]),
            fit_probability=float(found.fit_probability[index]),
        )
        for index, (knob, value) in enumerate(steps)
    )
