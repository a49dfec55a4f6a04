"""Facts of `study.json`, read with care: a damaged fact counts as missing."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autotune import DEFAULT_ENGINE
from autotune.contract import MOST_LOSSES, KnobValue, Origin
from autotune.devices.hardware import Environment
from autotune.job.job import GUARD_STEPS, ObjectiveWish
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
        """Relation of a candidate to the baseline; None: it has none."""
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


NO_BASELINE = BaselineFacts(candidate_hash=None, passed_over=())


@dataclass(frozen=True, kw_only=True)
class _Since:
    since_trial: int


def model_of(facts: Mapping[str, Any]) -> ModelFacts | None:
    """The model."""
    return read_fact(ModelFacts, facts.get("model"))


def baseline_of(facts: Mapping[str, Any]) -> BaselineFacts:
    """Baseline of the search; nothing where the facts do not say."""
    return read_fact(BaselineFacts, facts.get("baseline")) or NO_BASELINE


def environment_of(facts: Mapping[str, Any]) -> Environment | None:
    """Where the study was last searched."""
    return read_fact(Environment, facts.get("environment"))


def environment_at(facts: Mapping[str, Any], number: int) -> Environment | None:
    """Where a trial ran: a study may go on after an upgrade."""
    environments = facts.get("environments")
    if not isinstance(environments, list):
        return None
    found = None
    for data in environments:
        since, here = read_fact(_Since, data), read_fact(Environment, data)
        if since is not None and since.since_trial <= number:
            # A damaged entry hides those before it: this trial did not run in their environment.
            found = here
    return found


def context_of(facts: Mapping[str, Any]) -> Context | None:
    """Context that decided which knobs act."""
    return read_fact(Context, facts.get("context"))


def engine_name_of(facts: Mapping[str, Any]) -> str:
    """Name of the engine that trained; the default one where the facts do not say."""
    context = context_of(facts)
    return DEFAULT_ENGINE if context is None else context.engine


def origin_of(facts: Mapping[str, Any]) -> Origin:
    """Where the figures of the study come from; measured where it does not say."""
    return read_fact(Origin, facts.get("origin")) or Origin.MEASURED


def objective_of(facts: Mapping[str, Any]) -> ObjectiveWish:
    """Meaning of `best`; samples/s where it is not said."""
    wish = read_fact(ObjectiveWish, facts.get("objective"))
    return ObjectiveWish(name="samples_per_s", floor=1.0) if wish is None else wish


def allowed_bytes_of(facts: Mapping[str, Any]) -> float:
    """Memory of a device that a trial may use; no limit where it is not said."""
    allowed_bytes = read_fact(float, facts.get("allowed_bytes"))
    return allowed_bytes if allowed_bytes is not None and allowed_bytes > 0 else float("inf")


def guard_steps_of(facts: Mapping[str, Any]) -> int:
    """Steps that the convergence guard compares; the default where it is not said."""
    n_steps = read_fact(int, facts.get("guard_steps"))
    return GUARD_STEPS if n_steps is None else min(max(0, n_steps), MOST_LOSSES)


def left_out_of(facts: Mapping[str, Any]) -> frozenset[int]:
    """Numbers of the trials that ran another job or configuration than was last searched."""
    numbers = read_fact(tuple[int, ...], facts.get("left_out"))
    return frozenset(() if numbers is None else numbers)


def no_comparison_of(facts: Mapping[str, Any]) -> str:
    """Why there was no final comparison, in words; empty where there was one, or nobody said."""
    return read_fact(str, facts.get("no_comparison")) or ""


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
