"""Lessons from the trials of all studies on this machine, kept for the next one.

One JSON file of lessons: what a trial's candidate was to the cost model (a row of `Plans`), what
it measured, and what decides how wrong the model is there. Ratios are not kept: they are taken
anew from whatever the model says today. A lesson of another device, release or model family counts
for less: its errors are taken for correlated with those here, not for the same.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from autotune.base.errors import StudyError
from autotune.base.files import write_whole
from autotune.base.flags import flag
from autotune.base.private import KNOWLEDGE_ENV, open_lock, refuse_prepared, user_cache
from autotune.contract import read_bounded
from autotune.cost.constants import Constants
from autotune.cost.forecast import SeenErrors, Shot, forecast
from autotune.cost.plans import Plans

SCHEMA_VERSION = 1
MOST_KEPT = 3000
"""Lessons of the file; the oldest go first."""
MOST_USED = 150
"""Lessons that one search learns from: the most akin, then the latest."""
KINSHIP = {"device": 0.5, "engine": 0.9, "torch": 0.95, "family": 0.8}
"""Correlation of the model's errors across a change of this alone; several multiply. A device has
peaks and links of its own, a release of the engine mostly the same code."""
STUDY_KINSHIP = 0.95
"""Correlation between two studies that differ in none of them."""

Known = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Facts that decide how wrong the model is."""

    device: str
    """Name of the accelerators, as they report it."""
    engine: str
    """Name and version, such as `deepspeed 0.19.8`."""
    torch: str
    """Its version."""
    family: str
    """Architecture of the model."""

    def kinship(self, other: "Situation") -> float:
        """Correlation of the errors in both, 0 to 1."""
        changed = (KINSHIP[n] for n in KINSHIP if getattr(self, n) != getattr(other, n))
        return STUDY_KINSHIP * math.prod(changed)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One trial."""

    situation: Situation
    study: str
    """Name as `study_name` has it: a study that goes on replaces its lessons."""
    plan: dict[str, Known]
    """Column of `Plans` -> value."""
    seconds: Positive | None
    """Measured step time; None: it measured none."""
    peak_bytes: Positive | None
    is_out_of_memory: bool
    limit_bytes: Positive


@dataclass(frozen=True, kw_only=True)
class _LessonsFile:
    schema_version: int
    lessons: list[Lesson]


_FILE = TypeAdapter(_LessonsFile)


def default_file() -> Path:
    """The file that the environment names, else the user's: `knowledge.json` in their cache."""
    named = os.environ.get(KNOWLEDGE_ENV)
    return Path(named) if named else user_cache() / "knowledge.json"


def file_for(knowledge: str | Path | None, *, is_used: bool) -> Path | None:
    """The file that a call learns from: the one that is named, else the user's own; or none."""
    return Path(knowledge or default_file()) if is_used else None


def study_name(folder: Path) -> str:
    """Name of a study in a file of lessons: a digest, since a path tells who works on what."""
    path = str(folder.resolve())
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def read_lessons(path: Path) -> tuple[Lesson, ...]:
    """The lessons of a file, oldest first; none where there is no file.

    Raises:
        StudyError: It cannot be read, or it is of another schema.
    """
    hint = f"move it away or name another with {flag('knowledge')}: searches start without it then"
    try:
        read = _FILE.validate_json(read_bounded(path), strict=True)
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise StudyError(f"{path}: not a file of lessons: {first}", hint) from error
    if read.schema_version != SCHEMA_VERSION:
        raise StudyError(f"{path}: schema {read.schema_version}, this is {SCHEMA_VERSION}", hint)
    return tuple(read.lessons)


def write_lessons(path: Path, lessons: Sequence[Lesson]) -> None:
    """Write a file of lessons, in place of what was there.

    Raises:
        StudyError: It cannot be written.
    """
    data = _FILE.dump_json(_LessonsFile(schema_version=SCHEMA_VERSION, lessons=list(lessons)))
    try:
        write_whole(path, lambda aside: aside.write_bytes(data))
    except OSError as error:
        raise _cannot_write(path, error) from error


def keep_lessons(path: Path, study: str, lessons: Sequence[Lesson]) -> None:
    """Put a study's lessons into a file, in place of those that it had there.

    Raises:
        StudyError: The file cannot be read or written.
    """
    try:
        refuse_prepared(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            others = [lesson for lesson in read_lessons(path) if lesson.study != study]
            write_lessons(path, [*others, *lessons][-MOST_KEPT:])
    except OSError as error:
        raise _cannot_write(path, error) from error


def columns_of(plans: Plans, row: int) -> dict[str, float]:
    """A row of plans as a lesson keeps it."""
    return {
        name: float(value[row] if isinstance(value, np.ndarray) else value)
        for name, value in plans.columns().items()
    }


def choose_lessons(
    lessons: Sequence[Lesson], *, situation: Situation, study: str
) -> tuple[Lesson, ...]:
    """The lessons that a study goes by, in their order: the most akin, then the latest.

    `lessons` come oldest first; those of this study, which knows its own trials, are left out.
    """
    others = [o for o in enumerate(lessons) if o[1].study != study and _is_whole(o[1].plan)]
    others.sort(key=lambda other: (-situation.kinship(other[1].situation), -other[0]))
    return tuple(lesson for _, lesson in sorted(others[:MOST_USED], key=lambda other: other[0]))


_OF_JOB = (
    *("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab", "seq_len"),
    *("n_experts", "trained_share", "activation_bytes"),
)
"""Columns of `Plans` that all candidates of a job share."""
_WORLD = ("dp", "tp", "pp", "cp", "ulysses")
_GLOBAL_BATCH = ("dp", "micro_batch", "grad_accum")


def is_of_job(lesson: Lesson, job: Plans, situation: Situation) -> bool:
    """Whether a lesson is of a job's own candidates, on the same devices by the same releases."""
    job_plan = columns_of(job, 0)

    def facts(plan: Mapping[str, float]) -> list[float]:
        products = [math.prod(plan.get(n, 1.0) for n in ns) for ns in (_WORLD, _GLOBAL_BATCH)]
        return products + [plan.get(name, job_plan[name]) for name in _OF_JOB]

    return lesson.situation == situation and facts(lesson.plan) == facts(job_plan)


def recall_lessons(
    lessons: Sequence[Lesson],
    *,
    situation: Situation,
    study: str,
    constants: Constants,
    job: Plans | None = None,
) -> SeenErrors | None:
    """The errors of other studies, by what the model says of their candidates today.

    Lessons of the same `job`, of which that is any candidate, count as trials of this study. None:
    there is nothing to learn from.
    """
    used: Sequence[Lesson] = choose_lessons(lessons, situation=situation, study=study)
    if not used:
        return None
    with np.errstate(all="ignore"):
        forecasts = forecast(Plans.of_rows([lesson.plan for lesson in used]), constants)
        sizes = np.log(forecasts.seconds), np.log(np.asarray(forecasts.peak_bytes, np.float64))
    # A damaged plan may mean anything, and one figure that is not a number would spoil all others.
    sound = np.flatnonzero(np.isfinite(sizes[0]) & np.isfinite(sizes[1]))
    if not len(sound):
        return None
    used = [used[row] for row in sound.tolist()]
    numbers = {name: n for n, name in enumerate(dict.fromkeys(o.study for o in used), start=1)}
    is_here = np.array([job is not None and is_of_job(o, job, situation) for o in used])
    # One kinship per study, as `Seen.kinship` asks: that of its least akin lesson.
    kinship = dict.fromkeys(numbers, 1.0)
    for lesson in used:
        kinship[lesson.study] = min(kinship[lesson.study], situation.kinship(lesson.situation))
    return forecasts.take(sound).errors(
        [
            Shot(
                seconds=lesson.seconds,
                peak_bytes=lesson.peak_bytes,
                is_out_of_memory=lesson.is_out_of_memory,
                limit_bytes=lesson.limit_bytes,
            )
            for lesson in used
        ],
        study=np.where(is_here, 0, [numbers[lesson.study] for lesson in used]),
        kinship=np.where(is_here, 1.0, [kinship[lesson.study] for lesson in used]),
    )


def _is_whole(plan: Mapping[str, float]) -> bool:
    """Whether a lesson says all that the model cannot do without."""
    fields = Plans.__dataclass_fields__.values()
    return all(field.name in plan for field in fields if field.default is dataclasses.MISSING)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock beside the file: two searches that end at once keep the lessons of both."""
    lock = open_lock(path.with_name(f"{path.name}.lock"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _cannot_write(path: Path, error: OSError) -> StudyError:
    return StudyError.of("cost.not_written", path=path, problem=error.strerror or error)
