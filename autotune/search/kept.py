"""Facts of a search that its trials do not hold; `autotune.facts` reads them."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from autotune.hardware import Environment
from autotune.job import Job
from autotune.record import Study


def save_facts(
    study: Study,
    job: Job,
    environment: Environment,
    *,
    left_out: Sequence[int],
    note: Callable[[str], None],
) -> None:
    """Keep the devices, the model's shape, and who is left out.

    `environments` is where trials were run, each with the number of the first that ran there.

    Args:
        study: The record.
        job: What is searched.
        environment: Where.
        left_out: Numbers of the record's trials that ran another job or configuration.
        note: Is told what changed since the last trials.

    Raises:
        StudyError: The record cannot be written.
    """
    state = study.read_state()
    here: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(environment)))
    listed = state.get("environments")
    known = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    changed = [key for key in here if known and known[-1].get(key) != here[key]]
    if changed:
        note(f"{', '.join(changed)} changed since the last trials: --fresh starts anew")
    if changed or not known:
        known = [*known, {"since_trial": study.next_number(), **here}]
    facts = {
        "environment": here,
        "environments": known,
        "model": {
            "name": job.model.name,
            "shape": dataclasses.asdict(job.model.shape),
            "source": job.model.source,
        },
        "left_out": list(left_out),
        "stop_reason": None,
    }
    study.write_state({**state, **facts})
