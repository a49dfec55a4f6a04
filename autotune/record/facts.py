"""Facts of `study.json`, read with care: a damaged fact counts as missing."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from autotune import DEFAULT_ENGINE
from autotune.contract import MOST_LOSSES, KnobValue, Origin
from autotune.devices.hardware import Environment
from autotune.job.job import GUARD_STEPS, ObjectiveWish
from autotune.job.model_shape import ModelShape
from autotune.space.knob import Context

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The model that the study was last searched with."""

    name: str
    source: dict[str, Any]
    shape: ModelShape


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """A candidate that the baseline was to be, and why it is not."""

    candidate: dict[str, KnobValue]
    candidate_hash: str
    trial: int | None
    """Number of its last trial; None: a rule refused it, or the forecast left it out."""
    why: str
    by_platform: bool
    """Whether it did nothing wrong: the platform ended its trials."""
    is_predicted: bool = False
    """Whether it was not tried, since it is predicted to need more memory than there is."""


@dataclass(frozen=True, kw_only=True)
class BaselineFacts:
    """The baseline of the search, and the candidates that it was to be."""

    candidate_hash: str | None
    """None: nothing that could be the baseline ran."""
    passed_over: tuple[PassedOver, ...]
    """In the order in which they were wanted; the first is what was asked for."""

    @property
    def is_substitute(self) -> bool:
        """Whether another candidate was to be the baseline, and the platform kept it from that."""
        return self.candidate_hash is not None and any(p.by_platform for p in self.passed_over)

    def words_for(self, candidate_hash: str) -> str | None:
        for passed in self.passed_over:
            if passed.candidate_hash == candidate_hash:
                return f"passed over: {passed.why}"
        if candidate_hash != self.candidate_hash:
            return None
        return f"substitute for {self.asked_for}" if self.is_substitute else "baseline"

    @property
    def asked_for(self) -> str:
        """The first choice that did not become it: `trial 0`, or why it was not tried."""
        first = self.passed_over[0]
        if first.is_predicted:
            return "a configuration that was predicted not to fit"
        trial = first.trial
        return "a configuration that a rule refused" if trial is None else f"trial {trial}"


SPEED = ObjectiveWish(name="samples_per_s", floor=1.0)
NO_BASELINE = BaselineFacts(candidate_hash=None, passed_over=())


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a study, as its `study.json` says them."""

    model: ModelFacts | None = None
    environment: Environment | None = None
    """Where it was last searched."""
    environments: tuple[Any, ...] = ()
    """Where its trials ran, as of `environment_at`: each with the first trial there."""
    context: Context | None = None
    """Context that decided which knobs act."""
    origin: Origin = Origin.MEASURED
    """Where the figures come from."""
    objective: ObjectiveWish = SPEED
    """Meaning of `best`."""
    allowed_bytes: Annotated[float, Field(gt=0)] = math.inf
    """Memory of a device that a trial may use."""
    guard_steps: Annotated[int, Field(ge=0, le=MOST_LOSSES)] = GUARD_STEPS
    """Steps that the convergence guard compares."""
    left_out: frozenset[int] = frozenset()
    """Numbers of the trials that ran another job or configuration than was last searched."""
    baseline: BaselineFacts = NO_BASELINE
    no_comparison: str = ""
    """Why there was no final comparison, in words; empty where there was one, or nobody said."""
    answer: dict[str, Any] | None = None
    """The answer of the last search, as `answer_of` reads it."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Facts":
        """Those that `study.json` says soundly; others are as if it did not say them."""
        kinds = get_type_hints(cls, include_extras=True)
        found = {name: read_fact(kind, state.get(name)) for name, kind in kinds.items()}
        return cls(**{name: fact for name, fact in found.items() if fact is not None})

    @property
    def is_searched(self) -> bool:
        """Whether a search began; a command that was only diagnosed has none."""
        return self.environment is not None

    @property
    def engine(self) -> str:
        return DEFAULT_ENGINE if self.context is None else self.context.engine

    def environment_at(self, number: int) -> Environment | None:
        """Where a trial ran: a study may go on after an upgrade."""
        found = None
        for place in self.environments:
            since = place.get("since_trial") if isinstance(place, dict) else None
            if isinstance(since, int) and since <= number:
                # A damaged entry hides those before it: this trial did not run in their
                # environment.
                found = read_fact(Environment, place)
        return found


def read_fact(kind: Callable[..., T], data: object) -> T | None:
    """A fact as a value of some kind; None where it is not one.

    As JSON, so that a list is a tuple and nothing else is taken for what it is not.
    """
    try:
        read: T = _adapter(kind).validate_json(json.dumps(data), strict=True)
    except (ValidationError, ValueError, RecursionError):
        return None
    return read


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one costs milliseconds, and a table asks for one per trial."""
    return TypeAdapter(kind)
