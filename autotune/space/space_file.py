"""The border of a search space: its YAML, read strictly.

`python -m tests.record_space_schema [ENGINE]` prints its JSON schema.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.base.data import data_folder, shipped_spaces
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.base.text import shortened
from autotune.base.yaml_file import read_yaml
from autotune.contract import KnobValue
from autotune.space.knob import MAX_VALUE, Catalogue, Knob
from autotune.space.knobs import knob_named

MAX_VALUES_PER_KNOB = 64

_FORMS = ("powers_of_two", "range", "values", "when")

M = TypeVar("M", bound=BaseModel)


class SpaceFile(BaseModel):
    """A search space as a user writes it."""

    model_config = ConfigDict(extra="forbid", title="autotune search space")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, dots and dashes"
    )
    description: str = Field(default="", description="what the space is for")
    engine: str | None = Field(
        default=None, description="the one engine whose knobs these are; a job of another refuses"
    )
    knobs: dict[str, Any] = Field(
        min_length=1, description="knob name -> its values; see the definitions"
    )


class PowersOfTwo(BaseModel):
    """Powers of two, both ends included."""

    model_config = ConfigDict(extra="forbid", strict=True)

    powers_of_two: tuple[int, int] = Field(
        description="[first, last], both of them powers of two and included"
    )


class Range(BaseModel):
    """An arithmetic sequence, the end included where it is hit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    range: tuple[int, int, int] = Field(
        description="[first, last, step]: first, first + step, ... up to last, which is included"
    )


class Guarded(BaseModel):
    """Values that are tried only where other knobs have certain values."""

    model_config = ConfigDict(extra="forbid")

    values: Any = Field(description="a value, a list, powers_of_two or range")
    when: dict[str, Any] = Field(
        default_factory=dict, description="knob name -> the value, or list of values, it must have"
    )


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The values of one knob in a space, checked, in the order written."""

    values: tuple[KnobValue, ...]
    when: tuple[tuple[str, frozenset[KnobValue]], ...] = ()
    """Knob -> values: the domain counts only where each of these knobs has one of its values."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """A set of legal knobs with their values."""

    name: str
    description: str
    domains: Mapping[str, Domain]
    """Knob -> values, in an order in which a knob comes after those in its `when`."""
    path: Path


def read_space_file(path: Path, knobs: Catalogue, engine: str = "") -> Space:
    """Read and check a space of some knobs; `engine` is whose they are, where that is known.

    Raises:
        JobError: The file cannot be read or is not a space; it names the key and the value. Or it
            is one of another engine.
    """
    where = str(path)
    data = read_yaml(path, hint="write name, description and knobs, as of `autotune knobs`")
    file = _validated(SpaceFile, data, where)
    if engine and file.engine not in (None, engine):
        raise JobError.of("space.other_engine", where=where, file=file, engine=engine)
    domains = {
        name: _domain(knob_named(name, knobs, where=f"{where}: knobs"), written, where, knobs)
        for name, written in file.knobs.items()
    }
    waits = {
        name: {*knobs[name].when, *(other for other, _ in domain.when)}
        for name, domain in domains.items()
    }
    _check_when(domains, waits, where)
    return Space(
        name=file.name,
        description=file.description,
        domains={name: domains[name] for name in _in_order(waits, knobs)},
        path=path,
    )


def _validated(model: type[M], data: object, where: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        known = list(model.model_fields)
        found: list[Mapping[str, Any]] = [*error.errors(include_url=False)]
        guesses = [
            did_you_mean(str(problem["loc"][-1]), known, most=1)
            if problem["type"] == "extra_forbidden"
            else ""
            for problem in found
        ]
        # A misspelt key comes first: it is why another one is missing.
        at = next((n for n, guess in enumerate(guesses) if guess), 0)
        item, guess = found[at], guesses[at]
        key = ".".join(str(part) for part in item["loc"])
        at_key = f"{where}: {shortened(key)}" if key else where
        hint = f"{guess}known keys: {', '.join(known)}"
        raise JobError(f"{at_key}: {_complaint(item)}", hint) from error


_COMPLAINTS = {
    "missing": "is missing",
    "extra_forbidden": "there is no such key",
    "dict_type": "{given} is no section",
    "too_short": "{given} is empty or too short",
    "too_long": "{given} is too long",
    "string_pattern_mismatch": "{given} should be letters, digits, dots, dashes or underscores",
}
"""Kind of pydantic's error -> what is said of it; of any other what pydantic says."""


def _complaint(item: Mapping[str, Any]) -> str:
    given = _short(item["input"])
    complaint = item["msg"].replace("Input should", "{given} should").removeprefix("Value error, ")
    return str(_COMPLAINTS.get(item["type"], complaint)).replace("{given}", given)


def _domain(knob: Knob, written: object, where: str, knobs: Catalogue) -> Domain:
    key = f"{where}: knobs.{knob.name}"
    when: dict[str, Any] = {}
    if isinstance(written, dict) and written.keys() & {"values", "when"}:
        guarded = _validated(Guarded, written, key)
        written, when = guarded.values, guarded.when
    values = tuple(_values(knob, written, key))
    conditions = []
    for other, allowed in when.items():
        at = f"{key}.when"
        legal = _values(knob_named(other, knobs, where=at), allowed, at)
        conditions.append((other, frozenset(legal)))
    return Domain(values=values, when=tuple(conditions))


def _values(knob: Knob, written: object, key: str) -> list[KnobValue]:
    raw = list(_expanded(knob, written, key))
    if not raw:
        raise JobError(f"{key}: the list of values is empty", f"list at least one; {knob.menu}")
    if len(raw) > MAX_VALUES_PER_KNOB:
        raise JobError.of("space.many_values", key=key, n=len(raw), most=MAX_VALUES_PER_KNOB)
    values = [knob.check(value, where=key) for value in raw]
    for value in values:
        if values.count(value) > 1:
            raise JobError(f"{key}: {value} stands there twice", "list it once")
    return values


def _expanded(knob: Knob, written: object, key: str) -> Iterator[object]:
    if isinstance(written, dict):
        if knob.kind != "int":
            raise JobError(f"{key}: {knob.name} takes a list of values", knob.menu)
        yield from _sequence(written, key)
    elif isinstance(written, list):
        yield from written
    else:
        yield written


def _sequence(written: dict[str, object], key: str) -> Iterator[int]:
    if "powers_of_two" in written:
        first, last = _validated(PowersOfTwo, _tupled(written), key).powers_of_two
        for end in (first, last):
            if end < 1 or end & (end - 1) or end > MAX_VALUE:
                near = 2 ** round(math.log2(min(max(end, 1), MAX_VALUE)))
                raise JobError.of("space.no_power", key=key, end=end, most=MAX_VALUE, near=near)
        if first > last:
            raise JobError(f"{key}.powers_of_two: {first} is above {last}", "[first, last]")
        yield from (2**power for power in range(first.bit_length() - 1, last.bit_length()))
        return
    if "range" not in written:
        guess = did_you_mean(str(next(iter(written), "")), _FORMS, most=1)
        raise JobError.of("space.no_values", key=key, written=_short(written), guess=guess)
    first, last, step = _validated(Range, _tupled(written), key).range
    if step < 1 or first > last:
        raise JobError.of("space.empty_range", key=key, first=first, last=last, step=step)
    if (last - first) // step >= MAX_VALUES_PER_KNOB:
        raise JobError.of(
            "space.long_range", key=key, n=(last - first) // step + 1, most=MAX_VALUES_PER_KNOB
        )
    yield from range(first, last + 1, step)


def _tupled(written: dict[str, object]) -> dict[str, object]:
    # YAML has lists only, and strict pydantic wants a tuple for a tuple.
    return {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}


def _check_when(domains: Mapping[str, Domain], waits: Mapping[str, set[str]], where: str) -> None:
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]  # each waits for the next
        at = next(name for name in circle if domains[name].when)
        way = " -> ".join(circle)
        raise JobError.of("space.when_in_a_circle", where=where, at=at, circle=way) from None
    for name, domain in domains.items():
        for other, allowed in domain.when:
            if other in domains and not allowed & set(domains[other].values):
                at = f"{where}: knobs.{name}.when"
                never, has = _listed(allowed), _listed(domains[other].values)
                raise JobError.of("space.never_so", at=at, other=other, never=never, has=has)


def _in_order(waits: Mapping[str, set[str]], knobs: Catalogue) -> Iterator[str]:
    """The list's order, but a knob comes after those that it waits for."""
    waiting = [name for name in knobs if name in waits]
    while waiting:
        name = next(name for name in waiting if not waits[name] & set(waiting))
        waiting.remove(name)
        yield name


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, values)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def load_space(name_or_path: str, knobs: Catalogue, engine: str = "") -> Space:
    """Read a shipped space by its name, or the YAML file at a path; `engine` is whose knobs.

    Raises:
        JobError: There is no such space, or the file is not valid.
    """
    path = Path(name_or_path)
    if name_or_path in shipped_spaces():
        path = data_folder("search_spaces") / f"{name_or_path}.yaml"
    elif not os.path.isfile(path):
        guess = did_you_mean(name_or_path, shipped_spaces(), most=1)
        known = ", ".join(shipped_spaces())
        raise JobError.of("space.no_space", name=name_or_path, guess=guess, known=known)
    return read_space_file(path, knobs, engine)
