"""Where a study's trials ran: each environment with the number of the first trial there."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.record.study import Study, Trial


def environments_of(
    study: Study,
    facts: Mapping[str, Any],
    *,
    job: Job,
    environment: Environment,
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """What goes into the study's facts: those that they list, and the one at hand if it is new.

    Args:
        study: Its trials are asked where the facts say nothing: `study.json` may be lost.
        facts: The study's so far.
        job: What is asked now.
        environment: The devices and versions at hand.
        note: Is told what has changed.

    Raises:
        StudyError: The record cannot be read.
    """
    here = _as_json(environment)
    listed = facts.get("environments")
    known = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    if not known and (trials := study.trials()):
        note("study.json does not say where the trials ran: taken from what they say themselves")
        known = _told_by(trials, job=job, environment=environment)
    changed = [key for key in here if known and known[-1].get(key) != here[key]]
    if changed:
        note(f"{', '.join(changed)} changed since the last trials: --fresh starts anew")
    if changed or not known:
        known = [*known, {"since_trial": study.next_number(), **here}]
    return known


def _told_by(
    trials: Iterable[Trial], *, job: Job, environment: Environment
) -> list[dict[str, Any]]:
    """Where trials ran as far as they say so themselves.

    The versions are those that its ranks reported, or those of the trial before. The devices are
    taken for those at hand unless the trial names another accelerator or, where that is theirs,
    another memory limit: then an entry without devices says that nobody knows.
    """
    here = _as_json(environment)
    limit_bytes = job.enforced_limit_bytes(environment.device_memory_bytes)
    found: list[dict[str, Any]] = []
    told: dict[str, str] = {}
    last: dict[str, Any] | None = None
    for trial in trials:
        spec, versions = trial.spec, {} if trial.result is None else trial.result.versions
        told |= {f"{p}_version": versions[p] for p in ("deepspeed", "torch") if p in versions}
        is_here = spec.layout.accelerator == environment.accelerator and (
            job.memory_limit_bytes is not None or spec.measure.memory_limit_bytes == limit_bytes
        )
        entry = {**here, **told} if is_here else {}
        if entry != last:
            found.append({"since_trial": spec.identity.number, **entry})
            last = entry
    return found


def _as_json(environment: Environment) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(environment)))
    return read
