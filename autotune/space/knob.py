"""A knob: its values, and the context that decides whether it acts."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Literal, Self

from autotune import DEFAULT_ENGINE
from autotune.base.errors import JobError
from autotune.base.plugins import load_plugin
from autotune.base.yaml_file import number_of
from autotune.contract import KnobValue
from autotune.devices.hardware import Environment
from autotune.job.job import DEFAULT_WORKLOAD, Job
from autotune.job.model_shape import ModelShape
from autotune.space.candidate import format_value

Knobs = Mapping[str, KnobValue]
Kind = Literal["int", "float", "bool", "choice"]

MAX_VALUE = 10**12
"""Largest value of an `int` knob: more elements than any device holds."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts that decide, besides the other knobs, whether a knob acts and where it saturates."""

    model: ModelShape
    world: int
    global_batch: int
    """Samples per optimizer step, over all ranks."""
    precision: str
    """`bf16`, `fp16` or `fp32`."""
    accelerator: str
    """`cpu` or `cuda`."""
    seq_len: int = 0
    """Tokens per sample; 0 where unknown (a study of an older release)."""
    n_devices: int = 0
    """Accelerators of one node; 0 where unknown."""
    optimizer: str = "adamw"
    """Type of the job's optimizer, in lower case."""
    is_hugging_face: bool = True
    """Whether the model is built from a Hugging Face config."""
    base: Knobs = field(default_factory=dict)
    """Knobs that the user's base configuration sets: they come before the engine's defaults."""
    settled: tuple[str, ...] = ()
    """Knobs of the base that no space decides: the job's own, and all of a user's command."""
    engine: str = DEFAULT_ENGINE
    """Name of the engine whose knobs these are."""
    workload: str = DEFAULT_WORKLOAD
    """Name of what the trials train."""
    reached: tuple[str, ...] | None = None
    """Knobs that reach what is trained besides the engine's own; None: as the workload says of
    every job."""

    @cached_property
    def settings(self) -> dict[str, Knobs]:
        """Settings that users have to make, by a candidate's hash: they are asked for often."""
        return {}

    @cached_property
    def knobs(self) -> "Catalogue":
        """The closed list of the engine's knobs."""
        return knobs_of(self.engine)

    @cached_property
    def applied(self) -> Collection[str]:
        """Knobs that the workload's script brings into force."""
        if self.reached is not None:
            return self.reached
        found: Collection[str] = load_plugin("workload", self.workload).applies
        return found

    @classmethod
    def of(
        cls,
        job: Job,
        environment: Environment,
        base: Knobs | None = None,
        optimizer: str | None = None,
        settled: Collection[str] = (),
    ) -> Self:
        """The context of a job on the devices of an environment.

        A base configuration may set knobs, and have a say in the type of the optimizer.
        """
        return cls(
            model=job.model.shape,
            world=job.world,
            global_batch=job.global_batch,
            precision=job.precision,
            accelerator=environment.accelerator,
            seq_len=job.seq_len,
            n_devices=environment.n_devices,
            optimizer=optimizer or str(job.optimizer.get("type", "")).lower(),
            is_hugging_face="config" in job.model.source,
            base=base or {},
            settled=tuple(settled),
            engine=job.engine,
            workload=job.workload,
            reached=None if job.script is None else _reached(job),
        )


def _reached(job: Job) -> tuple[str, ...]:
    return tuple(load_plugin("workload", job.workload).reach(job).ways)


def _always(_: Knobs, __: Context) -> bool:
    return True


def never(_: Knobs, __: Context) -> bool:
    """For knobs that are known, so that a file which sets them is understood, and do nothing."""
    return False


def _unchanged(value: KnobValue, _: Knobs, __: Context) -> KnobValue:
    return value


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One choice to make."""

    name: str
    default: KnobValue
    """Value when nobody chooses: the engine's own default, or the neutral value. Its type is
    that of all values."""
    help: str
    names: tuple[str, ...] = ()
    """Other names that people give it: arguments of the engine, or another engine's knob."""
    group: str = ""
    """The section of the documentation that it stands in."""
    is_always_shown: bool = False
    """Whether a candidate in words names it also where nobody has to set it."""
    scope: str = "always"
    """Where it acts, for people."""
    needs_cuda: tuple[KnobValue, ...] = ()
    """Values that only a CUDA device can run."""
    changes_training: str = ""
    """Effect on the numbers that are trained; empty: it decides speed and memory alone."""
    asks: str = ""
    """What it asks of the user off its default, or with a `pattern` off its choices, beside the
    setting; empty: nothing."""
    asks_where: Callable[[Knobs, Context], bool] = _always
    """Whether it asks for that, given the other knobs."""
    source: str = ""
    """Where in the engine that is decided."""
    default_when: Mapping[tuple[str, KnobValue], KnobValue] = field(default_factory=dict)
    """Another knob and its value -> the default there, where it is another one."""
    by_script: bool = False
    """Whether the training script brings it into force; it acts where the workload says so."""
    choices: tuple[KnobValue, ...] = ()
    """The only legal values; empty where any value of the kind is legal."""
    minimum: float = 0
    """Smallest legal value of an `int` or `float` knob."""
    maximum: float = MAX_VALUE
    """Largest legal value of an `int` or `float` knob."""
    pattern: str = ""
    """A regular expression that values of a `choice` may match besides `choices`."""
    pattern_words: str = ""
    """Such values for people."""
    when: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    """Other knobs -> the values at which this one can act at all."""
    along: Mapping[str, KnobValue] = field(default_factory=dict)
    """Settings without which it does nothing, which one change of it takes along."""
    acts: Callable[[Knobs, Context], bool] = _always
    """Whether it changes the run, given the other knobs, where `when` lets it."""
    acts_off_default: bool = False
    """Whether it acts off its default alone, which is the run without it."""
    fold: Callable[[KnobValue, Knobs, Context], KnobValue] = _unchanged
    """The one value that stands for all that mean the same run as the value given."""

    @property
    def kind(self) -> Kind:
        """The type of its values, text being a choice; `int` and `float` knobs are ordered."""
        return _KIND_OF[type(self.default)]

    def is_active(self, values: Knobs, context: Context) -> bool:
        """Whether the knob changes the run, given the other knobs."""
        if self.by_script and self.name not in context.applied:
            return False
        for other, allowed in self.when.items():  # a loop, as it runs a hundred thousand times
            if values.get(other) not in allowed:
                return False
        if self.acts_off_default and values.get(self.name) == self.default:
            return False
        return self.acts(values, context)

    def default_for(self, values: Knobs) -> KnobValue:
        """Value when nobody chooses, given the other knobs."""
        for (other, value), default in self.default_when.items():
            if values.get(other) == value:
                return default
        return self.default

    def check(self, value: object, *, where: str) -> KnobValue:
        """A value from YAML or the command line, in the knob's type; `5e8` is a whole number.

        `where` is the file and key, or the flag, for the error.

        Raises:
            JobError: The value is not one of this knob's; the hint names the nearest that is.
        """
        typed = _read(value, self.kind)
        if typed is None:
            complaint = f"{value!r} is not {_KINDS[self.kind]}"
            raise JobError(f"{where}: {self.name}: {complaint}", self.menu)
        if self.pattern and re.fullmatch(self.pattern, str(typed)):
            return typed
        if self.choices and typed not in self.choices:
            nearest = _nearest(typed, self.choices)
            hint = f"did you mean {nearest}? {self.menu}" if nearest is not None else self.menu
            raise JobError(f"{where}: {self.name}: {value!r} is not a legal value", hint)
        if self.kind in ("int", "float") and not self.choices:
            assert not isinstance(typed, str), "numbers were read as such"
            nearest_number = min(max(typed, self.minimum), self.maximum)
            if nearest_number != typed:
                problem = f"{where}: {self.name}: {value!r} is out of range"
                raise JobError(problem, f"the nearest legal value is {nearest_number:.13g}")
        return typed

    def is_of_type(self, value: KnobValue) -> bool:
        """Whether a recorded value can have been one of this knob's."""
        typed = _read(value, self.kind)
        return typed is not None and type(typed) is type(value)

    @property
    def values_in_words(self) -> str:
        """The legal values, without a title."""
        if self.kind == "bool":
            return "false, true"
        if self.choices:
            named = ", ".join(map(format_value, self.choices))
            return f"{named}, {self.pattern_words}" if self.pattern else named
        numbers = "whole numbers" if self.kind == "int" else "numbers"
        if self.maximum == MAX_VALUE:
            return f"{numbers} from {self.minimum:.13g}"
        return f"{numbers} from {self.minimum:.13g} to {self.maximum:.13g}"

    @property
    def menu(self) -> str:
        return f"legal values: {self.values_in_words}"


Catalogue = Mapping[str, Knob]
"""A closed list of knobs by name; a knob comes after those that it looks at."""


@cache
def knobs_of(engine: str) -> Catalogue:
    """The closed list of an engine's knobs.

    Raises:
        JobError: No such engine is installed.
    """
    found: Catalogue = load_plugin("engine", engine).knobs
    return found


_KIND_OF: Mapping[type, Kind] = {int: "int", float: "float", bool: "bool", str: "choice"}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "choice": "text"}


def _read(value: object, kind: str) -> KnobValue | None:
    """The value in the knob's type; None where it is of another."""
    if kind == "choice":
        return value if isinstance(value, str) else None
    if kind == "bool":
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.lower())
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and kind == "int":
        return value
    if isinstance(value, str):  # the shell hands over text
        value = number_of(value.strip())
    try:
        number = float(value) if isinstance(value, float | int) else None
    except OverflowError:
        return None
    if kind == "float":
        return number if number is not None and math.isfinite(number) else None
    if number is None or not number.is_integer():
        return None
    return int(number)


def _nearest(value: KnobValue, choices: tuple[KnobValue, ...]) -> KnobValue | None:
    if isinstance(value, str):
        by_text = {str(choice): choice for choice in choices}
        near = get_close_matches(value, by_text, n=1, cutoff=0.4)
        return by_text[near[0]] if near else None
    return min(choices, key=lambda choice: abs(int(choice) - int(value)))
