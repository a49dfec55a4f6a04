"""Which accelerator's figures predict a study's trials, and from where they come."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.app.session import Session
from autotune.base.errors import FleetError
from autotune.cost.problem import accelerator_of
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment

FACT = "figures"


def figures_of(
    session: Session, state: Mapping[str, Any], note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """What goes into the study's facts: every set of figures, with its first trial.

    A forecast is worked out anew for all trials at every start, so one set alone predicts a study
    that goes on with other figures; the predictions that its older trials record stay as they are.

    Args:
        session: Session of the search.
        state: The study's facts so far.
        note: Is told which figures predict, and that the set has changed.
    """
    listed = state.get(FACT)
    known = [of for of in listed if isinstance(of, dict)] if isinstance(listed, list) else []
    try:
        found = accelerator_of(session.environment, session.table)
    except FleetError:
        return known  # nothing is predicted, and the search says why
    if (file := session.job.accelerators) is not None:
        note(what_predicts(session.environment, session.table, file))
    used = {
        "file": None if _is_shipped(found) else str(file),
        "accelerator": found.name,
        "achieved_source": found.achieved_source,
        "digest": _digest(found),
    }
    if known and known[-1].get("digest") == used["digest"]:
        return known
    if known:
        note("predictions go by other figures than those of the trials so far")
    return [*known, {"since_trial": session.study.next_number(), **used}]


def what_predicts(environment: Environment, table: Sequence[Accelerator], file: Path) -> str:
    """Whether a user's table is what predictions go by: a device that it has not is no error.

    Args:
        environment: The devices.
        table: Entries of the file, then the shipped ones.
        file: The user's.

    Raises:
        FleetError: The devices are in neither.
    """
    found = accelerator_of(environment, table)
    if _is_shipped(found):
        return f"{file} has no entry for these devices: predicted by the shipped {found.name}"
    return f"predicted by {found.name} of {file}: {found.achieved_source}"


def _is_shipped(found: Accelerator) -> bool:
    return any(found is shipped for shipped in shipped_accelerators())


def _digest(found: Accelerator) -> str:
    """Identity of the figures alone: the names of the devices change nothing."""
    figures = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(found)
        if field.name not in {"names", "source", "achieved_source"}
    }
    return hashlib.sha256(repr(figures).encode()).hexdigest()[:12]
