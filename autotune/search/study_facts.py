"""Facts of a search that its trials do not hold; `autotune.record.facts` reads them."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from autotune.search.session import Session


def save_facts(session: Session, note: Callable[[str], None], *, left_out: Sequence[int]) -> None:
    """Keep the devices, the model's shape, and which trials ran another job or configuration.

    What changed since the last trials is noted.

    Raises:
        StudyError: The record cannot be read or written.
    """
    session.study.update_state(
        environment=dataclasses.asdict(session.environment),
        environments=environments_of(session, note),
        model=model_of(session),
        left_out=list(left_out),
        stop_reason=None,
        no_comparison="",
        baseline=None,
    )


def model_of(session: Session) -> dict[str, Any]:
    """The job's model, as the facts hold it."""
    model = session.job.model
    shape = dataclasses.asdict(model.shape)
    return {"name": model.name, "shape": shape, "source": model.source}


def environments_of(session: Session, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Where a study's trials ran: each environment with the number of the first trial there.

    They are those that the facts list, and the one at hand if it is new. Where the facts say
    nothing, since `study.json` is lost, the trials are taken for those of the one at hand.

    Raises:
        StudyError: The record cannot be read.
    """
    here = json.loads(json.dumps(dataclasses.asdict(session.environment)))
    known = [one for one in session.study.facts().environments if isinstance(one, dict)]
    if not known and session.study.trials():
        note("study.json does not say where the trials ran: taken for here")
        known = [{"since_trial": 0, **here}]
    changed = [key for key in here if known and known[-1].get(key) != here[key]]
    if changed:
        note(f"{', '.join(changed)} changed since the last trials: --fresh starts anew")
    if changed or not known:
        known = [*known, {"since_trial": session.study.next_number(), **here}]
    return known
