"""What `study.json` says, read with care: a fact that is damaged is one that is not there."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autotune.contract import Origin
from autotune.devices.hardware import Environment
from autotune.job.job import DEFAULT_ENGINE, Objective
from autotune.job.model import ModelShape
from autotune.space.knob import Context

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The model that the study was last searched with."""

    name: str
    source: dict[str, Any]
    shape: ModelShape


@dataclass(frozen=True, kw_only=True)
class _Since:
    since_trial: int


@dataclass(frozen=True, kw_only=True)
class _Standing:
    trial: int
    candidate: dict[str, Any]
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    n_runs: int
    n_disturbed: int = 0
    peak_memory_bytes: int | None
    ds_config: str


@dataclass(frozen=True, kw_only=True)
class _Problem:
    message: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class _Paths:
    table: str
    export: str | None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """As `report.summary` writes it."""

    study: str
    counts: dict[str, int]
    baseline: _Standing | None
    best: _Standing | None
    ties: list[_Standing]
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    stop_reason: str
    origin: str = "measured"
    problem: _Problem | None = None
    interrupted: bool
    paths: _Paths
    front: list[_Standing] = field(default_factory=list)
    rule: str = ""


def model_of(facts: Mapping[str, Any]) -> ModelFacts | None:
    """The model."""
    return _read(ModelFacts, facts.get("model"))


def environment_of(facts: Mapping[str, Any]) -> Environment | None:
    """Where the study was last searched."""
    return _read(Environment, facts.get("environment"))


def environment_at(facts: Mapping[str, Any], number: int) -> Environment | None:
    """Where a trial ran: a study may go on after an upgrade."""
    environments = facts.get("environments")
    if not isinstance(environments, list):
        return None
    found = None
    for data in environments:
        since, here = _read(_Since, data), _read(Environment, data)
        if since is not None and since.since_trial <= number:
            # A damaged one hides those before it: they are not where this trial ran.
            found = here
    return found


def context_of(facts: Mapping[str, Any]) -> Context | None:
    """What decided which knobs act."""
    return _read(Context, facts.get("context"))


def engine_name_of(facts: Mapping[str, Any]) -> str:
    """Name of the engine that trained; the default one where the facts do not say."""
    context = context_of(facts)
    return DEFAULT_ENGINE if context is None else context.engine


def origin_of(facts: Mapping[str, Any]) -> Origin:
    """Where the figures of the study come from; measured where it does not say."""
    origin = _read(Origin, facts.get("origin"))
    return Origin.MEASURED if origin is None else origin


def objective_of(facts: Mapping[str, Any]) -> Objective:
    """What `best` means; samples/s where it is not said."""
    wish = _read(Objective, facts.get("objective"))
    return Objective(name="samples_per_s", floor=1.0) if wish is None else wish


def allowed_bytes_of(facts: Mapping[str, Any]) -> float:
    """What a trial may use of a device; no limit where it is not said."""
    allowed_bytes = _read(float, facts.get("allowed_bytes"))
    return float("inf") if allowed_bytes is None else allowed_bytes


def left_out_of(facts: Mapping[str, Any]) -> frozenset[int]:
    """Numbers of the trials that ran another job or configuration than was last searched."""
    numbers = _read(tuple[int, ...], facts.get("left_out"))
    return frozenset(() if numbers is None else numbers)


def answer_of(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of the last search; None while there is none."""
    answer = facts.get("answer")
    if _read(_Answer, answer) is None:
        return None
    assert isinstance(answer, dict), "it was read as one"
    speedups = [answer[key] for key in ("speedup", "speedup_low", "speedup_high")]
    is_gain = None not in speedups and answer["best"] and answer["baseline"]
    return answer if is_gain or speedups == [None] * 3 else None


def _read(kind: Callable[..., T], data: object) -> T | None:
    """As JSON, so that a list is a tuple and nothing else is taken for what it is not."""
    try:
        read: T = _adapter(kind).validate_json(json.dumps(data), strict=True)
    except (ValidationError, ValueError, RecursionError):
        return None
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one costs milliseconds, and a table asks for one per trial."""
    return TypeAdapter(kind)
