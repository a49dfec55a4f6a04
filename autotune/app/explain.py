"""One candidate: what is predicted of it, why it stands where it does, and its neighbours."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autotune.app.planning import MIN_FIT, Outlook, ranked
from autotune.candidate import Candidate
from autotune.contract import KnobValue
from autotune.errors import JobError
from autotune.knob import Knob
from autotune.knobs import KNOBS, canonical, explain, parse_settings
from autotune.report.neighbours import Estimated, Explained, Neighbour
from autotune.rules import judge
from autotune.space import load_space

_STEP = 2
"""What is one step of a number: twice as much, and half of it."""


def estimate_candidate(outlook: Outlook, settings: Sequence[str]) -> Estimated:
    """Predict one candidate, legal or not.

    Args:
        outlook: The job and the fleet.
        settings: As of `explain_candidate`.

    Raises:
        JobError: A setting is not one.
    """
    judged = _judged(outlook, settings)
    return Estimated(**judged, prediction=outlook.predict([judged["candidate"]]), index=0)


def explain_candidate(
    outlook: Outlook, settings: Sequence[str], *, min_fit: float = MIN_FIT
) -> Explained:
    """Explain one candidate.

    Args:
        outlook: The job and the fleet.
        settings: `knob=value` each; other knobs are at the base configuration's value or the
            engine's default.
        min_fit: What counts as fitting.

    Raises:
        JobError: A setting is not one.
    """
    judged = _judged(outlook, settings)
    candidate = judged["candidate"]
    others = outlook.lattice.candidates
    same = candidate in others
    everyone = others if same else (*others, candidate)
    found = outlook.predict(everyone)
    index = everyone.index(candidate)
    place = int(np.flatnonzero(ranked(found, min_fit) == index)[0]) + 1
    return Explained(
        **judged,
        prediction=found,
        index=index,
        place=place,
        n_ranked=len(everyone),
        is_in_space=same,
        min_fit=min_fit,
        neighbours=_neighbours(outlook, candidate),
    )


def _judged(outlook: Outlook, settings: Sequence[str]) -> dict[str, Any]:
    """The fields of an `Estimated` that need no prediction."""
    context = outlook.lattice.context
    values = parse_settings(settings)
    candidate = _candidate(outlook, values)
    return {
        "job": outlook.job,
        "environment": outlook.environment,
        "context": context,
        "candidate": candidate,
        "notes": tuple(explain(values, context).values()),
        "violations": tuple(judge(outlook.engine.setup(candidate))),
    }


def _candidate(outlook: Outlook, values: dict[str, KnobValue]) -> Candidate:
    job = outlook.job
    return Candidate.of(
        canonical(values, outlook.lattice.context), world=job.world, global_batch=job.global_batch
    )


def _neighbours(outlook: Outlook, candidate: Candidate) -> tuple[Neighbour, ...]:
    """Candidates that differ in one knob: a step up and down, the other choices, the space's."""
    found: dict[Candidate, tuple[str, KnobValue]] = {}
    space = load_space(outlook.job.space)
    for name in KNOBS:
        knob = KNOBS[name]
        own = candidate.get(name)
        domain = space.domains.get(name)
        tried = [*_steps(knob, own), *(domain.values if domain is not None else ())]
        for value in tried:
            other = _candidate(outlook, {**candidate.values, name: value})
            if other != candidate and other.get(name) == value:
                found.setdefault(other, (name, value))
    if not found:
        return ()
    others = list(found)
    prediction = outlook.predict(others)
    return tuple(
        Neighbour(
            knob=found[other][0],
            value=found[other][1],
            candidate=other,
            violations=tuple(judge(outlook.engine.setup(other))),
            step_time_s=float(prediction.step_time_s[index]),
            peak_memory_bytes=float(prediction.peak_memory_bytes[index]),
            fit_probability=float(prediction.fit_probability[index]),
        )
        for index, other in enumerate(others)
    )


def _steps(knob: Knob, own: KnobValue | None) -> Iterable[KnobValue]:
    """Values beside a knob's own; none where it does not act."""
    if own is None:
        return
    if knob.choices and knob.kind != "int":
        wanted: tuple[KnobValue, ...] = tuple(v for v in knob.choices if v != own)
    elif knob.kind == "bool":
        wanted = (not own,)
    elif knob.kind == "int" and knob.choices:
        wanted = tuple(v for v in knob.choices if abs(int(v) - int(own)) == 1)
    elif knob.kind == "int":
        wanted = (int(own) * _STEP, int(own) // _STEP)
    else:
        return  # shares have no step that means the same everywhere; the space's values are tried
    for value in wanted:
        try:
            yield knob.check(value, where="explain")
        except JobError:
            continue  # beyond the knob's range
