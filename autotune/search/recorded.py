"""Whether a recorded trial ran what its candidate would run now, to the letter.

The optimizer, the user's base configuration and the templates are in no knob: a comparison of
candidates alone would give an edited file the figures of the old one.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.contract import Layout, Workload
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.record.facts import left_out_of
from autotune.record.study import Recorded, Study, Trial
from autotune.search.history import History
from autotune.space.candidate import Candidate, candidate_of, layout_of
from autotune.space.workload import workload_of

_MISSING = object()


def history_of(recorded: Recorded, facts: Mapping[str, Any]) -> History:
    """The trials that answer for the job that was last searched, as the study's facts say."""
    left_out = left_out_of(facts)
    return History(
        trial for trial in recorded.trials if trial.spec.identity.number not in left_out
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A job with the engine that renders it on the devices at hand, and where its record is."""

    job: Job
    """Job to tune."""
    environment: Environment
    """The devices and versions at hand."""
    engine: Engine
    """Engine that a candidate is for."""
    study: Study
    """The record; the only state there is."""

    @cached_property
    def users(self) -> tuple[Engine, Candidate] | None:
        """The user's own baseline, and the engine that keeps the keys of its file no knob knows.

        Raises:
            JobError: The file trains something else than the job.
            RenderError: It cannot be read.
        """
        return None if self.job.baseline is None else self.engine.baseline(self.job.baseline)

    def engine_of(self, candidate: Candidate) -> Engine:
        """Engine that renders a candidate; raises as `users`."""
        if self.users is not None and self.is_users(candidate):
            return self.users[0]
        return self.engine

    def is_users(self, candidate: Candidate) -> bool:
        """Whether a candidate is the user's own baseline; raises as `users`."""
        return self.users is not None and self.users[1] == candidate

    def history_to_resume(self) -> History:
        """The trials of the record that a search goes on from.

        Raises:
            StudyError: The record cannot be read.
        """
        return History(trial for trial in self.study.trials() if self.is_answered_by(trial))

    def is_answered_by(self, trial: Trial) -> bool:
        """Whether a trial ran what its candidate would run now."""
        try:
            return not self.changes_since(trial)
        except (RenderError, JobError):
            return False

    def changes_since(self, trial: Trial) -> list[str]:
        """Differences between what a trial ran and what its candidate would run now; empty: none.

        Returns:
            `seq_len was 64, is 128`, each: of the job, or else of the files that a command of
            the user's reads, or else of the configuration files.

        Raises:
            RenderError: The candidate's configuration does not render any more.
            JobError: The job's model is not one to leave layers out of, as the trial did.
        """
        job, environment = self.job, self.environment
        candidate = candidate_of(trial.spec)
        current = Candidate.of(candidate.values, world=job.world, global_batch=job.global_batch)
        if trial.spec.identity.fidelity is not None:
            current = current.reduced(trial.spec.identity.fidelity)
        ran, runs = trial.spec.workload, workload_of(job, current)
        layouts = trial.spec.layout, layout_of(current, environment.accelerator)
        limits = (
            trial.spec.measure.memory_limit_bytes,
            job.enforced_limit_bytes(environment.device_memory_bytes),
        )
        # Of thousands of trials nearly all are the same word for word.
        is_same = layouts[0] == layouts[1] and limits[0] == limits[1]
        if not is_same or any(getattr(ran, name) != getattr(runs, name) for name in _TRAINED):
            then = _facts(ran, layouts[0], limits[0])
            now = _facts(runs, layouts[1], limits[1])
            now = json.loads(json.dumps(now))  # as the record has been
            if then != now:
                return list(_differences(then, now))
        if ran.digest != runs.digest:
            changed = [] if job.script is None else job.script.changed()
            return [f"{place} is not what it was" for place in changed] or [
                f"its training script was {ran.digest}, is {runs.digest}"
            ]
        engine = self.engine_of(candidate)
        if engine.rendering_digest == trial.spec.engine.rendering_digest != "":
            return []
        recorded, rendered = self.study.read_files(trial), engine.files(candidate)
        if recorded == rendered:
            return []
        return list(_differences(_leaves(recorded), _leaves(rendered))) or [
            "its files are written otherwise"
        ]


_GOES_ON = ("seed", "settings", "script", "folder", "digest")
"""Parts of a workload that are not the job's: a resumed search may draw other data, what the
script applies of the knobs is the candidate's, and the script is known by its digest."""

_TRAINED = tuple(
    field.name for field in dataclasses.fields(Workload) if field.name not in _GOES_ON
)


def _facts(workload: Workload, layout: Layout, memory_limit_bytes: int | None) -> dict[str, Any]:
    """Facts that a figure depends on besides the candidate."""
    trained = {k: v for k, v in dataclasses.asdict(workload).items() if k not in _GOES_ON}
    return {
        **trained,
        "world": layout.world,
        "global_batch": layout.global_batch,
        "accelerator": layout.accelerator,
        "memory_limit_bytes": memory_limit_bytes,
    }


def _leaves(files: Mapping[str, str]) -> dict[str, Any]:
    """The files' contents; a text that is no JSON object is one leaf."""
    found = {}
    for name, text in files.items():
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found


def _differences(
    then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    for key in sorted({*then, *now}):
        before, after = then.get(key, _MISSING), now.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{prefix}{key}: ")
        else:
            yield f"{prefix}{key} was {_worded(before)}, is {_worded(after)}"


def _worded(value: Any) -> str:
    """As JSON, cut short: a file that is no JSON may be long."""
    if value is _MISSING:
        return "not there"
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
