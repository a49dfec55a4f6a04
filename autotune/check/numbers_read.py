"""Numbers of a file as DeepSpeed's own reader reads them.

It reads with hjson, which takes 5e8 and 2.0 for whole numbers (hjson/decoder.py); a script that
reads the file with json hands over what is written. Both are judged: what either refuses alone is
told, and counts as refused where DeepSpeed reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.base.nested import leaves
from autotune.space.rule import Violation

_AS_THEY_ARE = frozenset((int, str, bool, type(None)))
_MOST = 1e10
"""Size from which the reader leaves a number as it is."""


def as_read(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration as DeepSpeed's reader makes it; the same object where nothing changes."""
    return _read(config)  # type: ignore[no-any-return]


def _read(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:  # nearly every value: asking for a Mapping takes far longer
        return value
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < _MOST else value
    if kind is dict or isinstance(value, Mapping):
        made = {name: _read(inner) for name, inner in value.items()}
        return made if any(made[name] is not value[name] for name in made) else value
    if isinstance(value, list):
        items = [_read(inner) for inner in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


def joined(read: Sequence[Violation], written: Sequence[Violation]) -> list[Violation]:
    """Violations of a file, in the order of the rules.

    Args:
        read: Of the configuration as DeepSpeed's reader makes it.
        written: As it is written.
    """
    by_fact = {_fact(one): one for one in written}  # in the words of the file
    found = [by_fact.get(_fact(one)) or _of_reader(one) for one in read]
    for fact in map(_fact, read):
        by_fact.pop(fact, None)
    for one in written:
        if _fact(one) not in by_fact:
            continue
        if one.level == "error":
            message = "DeepSpeed's reader takes 2.0 for 2, a script that reads the file with json"
            message = f"{one.message}; {message} does not"
            found.append(replace(one, message=message, consequence="converted"))
        elif one.consequence == "converted":
            found.append(one)
    return found


def _of_reader(violation: Violation) -> Violation:
    """What DeepSpeed's reader alone makes of a file."""
    if violation.level != "error":
        return violation
    return replace(
        violation,
        message=f"{violation.message} (DeepSpeed's reader takes 0.0 for 0)",
        fix="write numbers that are not whole, or hand over what json reads",
        changes={},
        choices=(),
    )


def _fact(violation: Violation) -> tuple[object, ...]:
    """Identity of a violation, without its message: that differs by the numbers in it."""
    changed = tuple(path for path, _ in leaves(violation.changes) if path)
    return violation.rule, violation.at or changed
