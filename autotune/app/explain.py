"""One candidate: what is predicted of it, why it stands where it does, and its neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.app.outlook import Outlook
from autotune.app.planning import MIN_FIT, place_of, ranked
from autotune.report.explain.neighbours import Estimated, Explained, Neighbour
from autotune.space.candidate import Candidate


def estimate_candidate(outlook: Outlook, settings: Sequence[str]) -> Estimated:
    """Predict one candidate, legal or not.

    Args:
        outlook: The job and the fleet.
        settings: As of `explain_candidate`.

    Raises:
        JobError: A setting is not one.
    """
    candidate, notes = outlook.read(settings)
    return Estimated(**judged(outlook, candidate, notes), prediction=outlook.predict([candidate]))


def explain_candidate(
    outlook: Outlook, settings: Sequence[str], *, min_fit: float = MIN_FIT
) -> Explained:
    """Explain one candidate.

    Args:
        outlook: The job and the fleet.
        settings: `knob=value` each; other knobs are at their defaults (see `Outlook.read`).
        min_fit: What counts as fitting.

    Raises:
        JobError: A setting is not one.
    """
    candidate, notes = outlook.read(settings)
    lattice = outlook.lattice
    found, own = outlook.predict(lattice.candidates), outlook.predict([candidate])
    index = lattice.candidates.index(candidate) if candidate in lattice.candidates else None
    if index is None:
        place = place_of(own, found, min_fit)
    else:
        place = int(np.flatnonzero(ranked(found, min_fit) == index)[0]) + 1
    return Explained(
        **judged(outlook, candidate, notes),
        prediction=own,
        place=place,
        n_ranked=len(lattice.candidates) + (index is None),
        index=index,
        home="the lattice of layouts" if lattice.is_laid_out else f"the space {outlook.job.space}",
        min_fit=min_fit,
        neighbours=_neighbours(outlook, candidate),
    )


def judged(outlook: Outlook, candidate: Candidate, notes: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a `Judged`."""
    return {
        "job": outlook.job,
        "environment": outlook.environment,
        "candidate": candidate,
        "described": outlook.engine.describe(candidate),
        "notes": notes,
        "violations": tuple(outlook.engine.judge(candidate)),
    }


def _neighbours(outlook: Outlook, candidate: Candidate) -> tuple[Neighbour, ...]:
    others = outlook.neighbours(candidate)
    if not others:
        return ()
    found = outlook.predict(list(others))
    return tuple(
        Neighbour(
            knob=knob,
            value=value,
            knobs=other.values,
            violations=tuple(outlook.engine.judge(other)),
            step_time_s=float(found.step_time_s[index]),
            peak_memory_bytes=float(found.peak_memory_bytes[index]),
            fit_probability=float(found.fit_probability[index]),
        )
        for index, (other, (knob, value)) in enumerate(others.items())
    )
