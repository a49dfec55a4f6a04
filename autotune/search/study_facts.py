"""Facts of a search that its trials do not hold; `autotune.record.facts` reads them."""

import dataclasses
from collections.abc import Sequence

from autotune.search.context import SearchContext
from autotune.search.environments import environments_of


def save_facts(context: SearchContext, *, left_out: Sequence[int]) -> None:
    """Keep the devices, the model's shape, and who is left out.

    Args:
        context: The search; its observer is told what changed since the last trials.
        left_out: Numbers of the record's trials that ran another job or configuration.

    Raises:
        StudyError: The record cannot be read or written.
    """
    job, environment, study = context.job, context.environment, context.study
    state = study.read_state()
    facts = {
        "environment": dataclasses.asdict(environment),
        "environments": environments_of(
            study, state, job=job, environment=environment, note=context.note
        ),
        "model": {
            "name": job.model.name,
            "shape": dataclasses.asdict(job.model.shape),
            "source": job.model.source,
        },
        "left_out": list(left_out),
        "stop_reason": None,
    }
    study.write_state({**state, **facts})
