"""Findings about the arguments that a configuration gives to a constructor, one by one."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from autotune.base.data import table_beside
from autotune.base.names import misspelt, near_names
from autotune.base.text import MOST_NAMED, named
from autotune.engines.deepspeed.rules.base import Setup, moved, patch
from autotune.engines.deepspeed.rules.constructors import Constructor
from autotune.engines.deepspeed.rules.sections import is_auto, known_values, shown
from autotune.space.rule import Choice, Finding

_OTHER_NAMES: Mapping[str, str] = table_beside(__file__, "parameter_names.json")
"""Other software's name of a parameter -> DeepSpeed's and torch's."""

_MOST_COMPARED = 50
"""Unknown arguments that are compared with known ones and get a finding each."""
_ALIKE = 0.6
"""Least likeness, from 0 to 1, of a name that may have been meant."""


def unknown_arguments(
    section: str, made: Constructor, given: Mapping[str, Any], also: Collection[str] = ()
) -> list[Finding]:
    """A finding for every argument that the constructor does not take.

    Args:
        section: `optimizer` or `scheduler`.
        made: What is built.
        given: Its arguments.
        also: Keys that DeepSpeed takes out, or that another rule judges.
    """
    known = {*made.takes, *also}
    unknown = [name for name, _ in known_values(given) if name not in known]
    compared, rest = unknown[:_MOST_COMPARED], unknown[_MOST_COMPARED:]
    found = [_unknown(section, made, given, str(name), given[name]) for name in compared]
    return [*found, _unknown_rest(section, made, rest)] if rest else found


def wrong_arguments(
    section: str,
    made: Constructor,
    given: Mapping[str, Any],
    setup: Setup,
    but: Collection[str] = (),
) -> list[Finding]:
    """A finding for every argument whose value the constructor, or the first step, refuses."""
    return [
        _wrong(section, made, name, value, raised, setup)
        for name, value in known_values(given)
        if name not in but and not is_auto(value)
        for raised in [made.refusal(name, value, accelerator=setup.accelerator)]
        if raised
    ]


def missing(section: str, made: Constructor, given: Collection[str]) -> list[str]:
    """Dotted names of arguments that the constructor needs and does not get."""
    return [f"{section}.params.{name}" for name in made.needs if name not in given]


def _unknown(
    section: str, made: Constructor, given: Mapping[str, Any], name: str, value: Any
) -> Finding:
    dotted = f"{section}.params.{name}"
    message = f"{dotted}: {made.name} has no such parameter ({named(made.takes)})"
    meant = _meant(name, made.takes)
    if (
        meant is not None
        and meant not in given
        and not made.refusal(meant, value, accelerator="cpu")
    ):
        place = f"{section}.params"
        renamed = moved((place, name), (place, meant), value)
        return Finding(message=message, at=(dotted,), **renamed)
    near = near_names(name, made.takes, most=1, alike=_ALIKE)
    guess = f"did you mean {near[0]}? Else " if near else ""
    removed = Choice(changes=patch(f"{section}.params", {name: None}))
    return Finding(
        message=message, at=(dotted,), choices=(removed,), advice=f"{guess}remove {dotted}"
    )


def _unknown_rest(section: str, made: Constructor, names: Sequence[Any]) -> Finding:
    unknown = list(map(str, names))
    removed = Choice(changes=patch(f"{section}.params", dict.fromkeys(unknown)))
    return Finding(
        message=f"{section}.params: {made.name} has no such {len(unknown)} parameters more: "
        f"{named(unknown)}",
        at=tuple(f"{section}.params.{name}" for name in unknown[:MOST_NAMED]),
        choices=(removed,),
        advice="remove them",
    )


def _meant(name: str, takes: Sequence[str]) -> str | None:
    """The parameter that a name must mean."""
    other = _OTHER_NAMES.get(name.lower(), "")
    return other if other in takes else misspelt(name, takes)


def _wrong(
    section: str, made: Constructor, name: str, value: Any, raised: str, setup: Setup
) -> Finding:
    dotted = f"{section}.params.{name}"
    wants = made.wants.get(name, "")
    refusal = f"takes {wants}" if wants else f"refuses it ({raised})"
    message = f"{dotted}={shown(name, value)}: {made.name} {refusal}"
    meant = _as_number(value)
    if meant is not None and not made.refusal(name, meant, accelerator=setup.accelerator):
        changes = patch(f"{section}.params", {name: meant})
        return Finding(message=message, at=(dotted,), changes=changes)
    removed = Choice(changes=patch(f"{section}.params", {name: None}))
    is_needed = name in made.needs
    return Finding(
        message=message,
        at=(dotted,),
        choices=() if is_needed else (removed,),
        advice=f"set {dotted} to {wants or 'another value'}"
        + ("" if is_needed else ", or leave it out"),
    )


def _as_number(value: Any) -> Any:
    """The number that a text spells, the floats of a list, the whole number that a float is.

    None where nothing else can be meant than what is written.
    """
    if isinstance(value, list) and value:
        numbers = [_as_number(one) if isinstance(one, str) else one for one in value]
        if all(type(one) in (int, float) for one in numbers):
            with suppress(OverflowError):  # a whole number of 400 digits fits into no float
                return [float(one) for one in numbers]
        return None
    if type(value) is float:
        return int(value) if math.isfinite(value) and value.is_integer() else None
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(value) if value.strip().lstrip("+-").isdigit() else number
