"""Facts of a search that its trials do not hold; `autotune.record.facts` reads them."""

import dataclasses
from collections.abc import Callable, Sequence

from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.record.study import Study
from autotune.search.environments import environments_of


def save_facts(
    study: Study,
    job: Job,
    environment: Environment,
    *,
    left_out: Sequence[int],
    note: Callable[[str], None],
) -> None:
    """Keep the devices, the model's shape, and who is left out.

    Args:
        study: The record.
        job: What is searched.
        environment: Where.
        left_out: Numbers of the record's trials that ran another job or configuration.
        note: Is told what changed since the last trials.

    Raises:
        StudyError: The record cannot be read or written.
    """
    state = study.read_state()
    facts = {
        "environment": dataclasses.asdict(environment),
        "environments": environments_of(study, state, job=job, environment=environment, note=note),
        "model": {
            "name": job.model.name,
            "shape": dataclasses.asdict(job.model.shape),
            "source": job.model.source,
        },
        "left_out": list(left_out),
        "stop_reason": None,
    }
    study.write_state({**state, **facts})
