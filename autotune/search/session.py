"""A job with all that its search goes by, and whether a recorded trial answers for it.

A trial answers if it ran what its candidate would run now, to the letter. The optimizer, the
user's base configuration and the templates are in no knob: a comparison of candidates alone would
give an edited file the figures of the old one.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.nested import MISSING, differences
from autotune.base.text import Say
from autotune.contract import Layout, TrialSpec, Workload
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.fleet.base import Fleet, Place
from autotune.job.job import Job
from autotune.planning.lattice import Lattice, lattice_of
from autotune.planning.ranking import planned_lattice
from autotune.record.facts import Facts
from autotune.record.study import Recorded, Study, Trial
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.trial_spec import Run, make_spec, may_start_warm
from autotune.space.candidate import Candidate, candidate_of, layout_of
from autotune.space.workload import workload_of


def history_of(recorded: Recorded, facts: Facts) -> History:
    """The trials that answer for the job that was last searched, as the study's facts say."""
    return History(t for t in recorded.trials if t.number not in facts.left_out)


class RecordedPlace(Place):
    """The place where a record's trials ran: nothing runs there any more."""

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], Fleet]:
        raise JobError.of("fleet.only_answers")


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A job, what is legal for it at a place, and where its record is; nothing runs here."""

    job: Job
    """Job to tune."""
    engine: Engine
    """Engine that a candidate is for."""
    place: Place
    """Place that runs its trials or answers for them."""
    study: Study
    """The record; the only state there is."""
    known_lattice: Lattice | None = None
    """The legal candidates where somebody has them; None: they are found when asked for."""
    job_data: Mapping[str, Any] = field(default_factory=dict)
    """The job as YAML says it, readable from any folder."""
    table: Sequence[Accelerator] = field(default_factory=shipped_accelerators)
    """Accelerator table of the cost model."""

    @property
    def environment(self) -> Environment:
        return self.place.environment

    @cached_property
    def lattice(self) -> Lattice:
        """The legal candidates; raises as `lattice_of`."""
        if self.known_lattice is not None:
            return self.known_lattice
        return planned_lattice(self.job, self.environment, lattice_of(self.engine))

    @cached_property
    def make_fleet(self) -> Callable[[], Fleet]:
        """Makes the fleet that runs its trials; raises as `Place.fleet_for`."""
        return self.place.fleet_for(self.job, self.engine, self.lattice)

    @cached_property
    def objective(self) -> Objective:
        return Objective.of(self.job, self.environment)

    def may_start_warm(self, candidate: Candidate | None) -> bool:
        """Whether a trial of a candidate may start warm; None is none."""
        if candidate is None:
            return False
        return may_start_warm(self.job, self.engine_of(candidate), candidate, self.environment)

    def spec_of(self, run: Run, number: int) -> TrialSpec:
        """The spec of a run.

        Raises:
            RenderError: The candidate's configuration does not render.
        """
        return make_spec(
            run,
            study=self.study.name,
            number=number,
            job=self.job,
            engine=self.engine_of(run.candidate),
            environment=self.environment,
        )

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
        return History(trial for trial in self.study.trials() if not self.why_left_out(trial))

    def why_left_out(self, trial: Trial) -> str:
        """The first difference of what a trial ran from what it would run now; empty: none."""
        try:
            return next(iter(self.changes_since(trial)), "")
        except (RenderError, JobError) as error:
            return error.message

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
        if (fidelity := trial.spec.identity.fidelity) is not None:
            current = current.reduced(fidelity)
        ran, runs = trial.spec.workload, workload_of(job, current)
        limit_bytes = job.enforced_limit_bytes(environment.device_memory_bytes)
        then = _facts(ran, trial.spec.layout, trial.spec.measure.memory_limit_bytes)
        now = _facts(runs, layout_of(current, environment.accelerator), limit_bytes)
        # As the record has been; of thousands of trials nearly all are the same word for word.
        if then != now and then != (now := json.loads(json.dumps(now))):
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
    return {
        **{name: getattr(workload, name) for name in _TRAINED},
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


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for path, before, after in differences(then, now):
        yield f"{': '.join(path)} was {_worded(before)}, is {_worded(after)}"


def _worded(value: Any) -> str:
    """As JSON, cut short: a file that is no JSON may be long."""
    if value is MISSING:
        return "not there"
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def save_facts(session: Session, note: Say, *, left_out: Sequence[int]) -> None:
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


def environments_of(session: Session, note: Say) -> list[dict[str, Any]]:
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
