"""Changes of a JSON text that leave everything else as it was written."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from autotune.engines.deepspeed.ds_config_file import BYTE_ORDER_MARK
from autotune.engines.deepspeed.rules.base import as_section, changed
from autotune.space.rule import Patch

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A value in the text."""

    start: int
    end: int
    """One past its last character."""
    members: tuple["_Member", ...] | None
    """Members of an object; None for anything else."""


@dataclass(frozen=True, kw_only=True)
class _Member:
    name: str
    start: int
    """Where its key begins."""
    value: _Value


@dataclass(frozen=True, kw_only=True)
class _Edit:
    start: int
    end: int
    text: str


def edited(text: str, changes: Patch) -> str:
    """A JSON text after changes.

    Args:
        text: A valid JSON object, with a byte order mark or without.
        changes: Nested as the text; None takes a key away.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + edited(text.removeprefix(BYTE_ORDER_MARK), changes)
    root = _value(text, _skip(text, 0))
    after, at = "", 0
    for edit in sorted(_edits(text, root, changes, depth=1), key=lambda e: (e.start, e.end)):
        after += text[at : edit.start] + edit.text
        at = edit.end
    after += text[at:]
    wanted = changed(json.loads(text), changes)
    assert json.loads(after) == wanted, "the text says what the changes say"
    return after


def duplicates(text: str) -> list[str]:
    """Dotted names of keys that an object of the text holds more than once."""
    plain = text.removeprefix(BYTE_ORDER_MARK)
    return list(_duplicates(_value(plain, _skip(plain, 0)), ""))


def _duplicates(value: _Value, path: str) -> Iterator[str]:
    members = value.members or ()
    times = Counter(member.name for member in members)
    yield from (f"{path}{name}" for name, count in times.items() if count > 1)
    for member in members:
        yield from _duplicates(member.value, f"{path}{member.name}.")


def key_starts(text: str) -> dict[tuple[str, ...], int]:
    """Path of every key of a JSON text -> where it begins; of a key twice, the last one."""
    skipped = len(text) - len(text.removeprefix(BYTE_ORDER_MARK))
    return dict(_key_starts(_value(text, _skip(text, skipped)), ()))


def _key_starts(value: _Value, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    for member in value.members or ():
        here = (*path, member.name)
        yield here, member.start
        yield from _key_starts(member.value, here)


def _value(text: str, start: int) -> _Value:
    if text[start] != "{":
        return _Value(start=start, end=_DECODER.raw_decode(text, start)[1], members=None)
    members = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        name, after_name = _DECODER.raw_decode(text, at)
        value = _value(text, _skip(text, _skip(text, after_name) + 1))
        members.append(_Member(name=name, start=at, value=value))
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return _Value(start=start, end=at + 1, members=tuple(members))


def _skip(text: str, at: int) -> int:
    blank = _SPACE.match(text, at)
    assert blank is not None, "nothing at all is blank, too"
    return blank.end()


def _edits(text: str, node: _Value, changes: Patch, depth: int) -> Iterator[_Edit]:
    members = node.members or ()
    last = {member.name: member for member in members}  # JSON's last one counts
    renames = _renames(changes, last, text)
    gone = [m for m in members if m.name in changes and changes[m.name] is None]
    gone = [m for m in gone if m.name not in renames]
    added: dict[str, Any] = {}
    for name, value in changes.items():
        member = last.get(name)
        section = as_section(value) is value
        plain = changed({}, value) if section else value
        if name in renames:
            assert member is not None
            text_of_key = f"{json.dumps(renames[name])}: "
            yield _Edit(start=member.start, end=member.value.start, text=text_of_key)
        elif value is None or name in renames.values():
            continue
        elif member is None:
            added[name] = plain
        elif section and member.value.members is not None:
            yield from _edits(text, member.value, value, depth + 1)
        else:
            yield _Edit(start=member.value.start, end=member.value.end, text=json.dumps(plain))
    yield from _membership(text, node, gone, added, depth)


def _membership(
    text: str, node: _Value, gone: list[_Member], added: dict[str, Any], depth: int
) -> Iterator[_Edit]:
    """Take members out of an object and put others at its end."""
    members = node.members or ()
    # By place, each once: a file may hold tens of thousands of keys.
    going = {member.start for member in gone}
    kept = [member for member in members if member.start not in going]
    written = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in added.items()]
    if not kept:
        if not gone and not written:
            return
        inner, outer = _margins(text, node, depth)
        body = inner + f",{inner}".join(written) + outer if written else ""
        yield _Edit(start=node.start, end=node.end, text=f"{{{body}}}")
        return
    for index, member in enumerate(members):
        if member.start not in going:
            continue
        if kept[0].start < member.start:
            start, end = members[index - 1].value.end, member.value.end
        else:
            start, end = member.start, members[index + 1].start
        yield _Edit(start=start, end=end, text="")
    if written:
        before = text[: members[0].start]
        gap = before[len(before.rstrip(" \t\r\n")) :] or " "
        at = kept[-1].value.end
        yield _Edit(start=at, end=at, text="".join(f",{gap}{one}" for one in written))


def _margins(text: str, node: _Value, depth: int) -> tuple[str, str]:
    """White space before the members of an object without any, and before its end."""
    if "\n" not in text:
        return "", ""
    unit = re.search(r"\n([ \t]+)", text)
    step = unit[1] if unit else "  "
    return "\n" + step * depth, "\n" + step * (depth - 1)


def _renames(changes: Patch, last: dict[str, _Member], text: str) -> dict[str, str]:
    """Old name -> new name, where a key goes and the next one comes with the same value."""
    found = {}
    for (old, gone), (new, value) in pairwise(changes.items()):
        if gone is None and value is not None and old in last and new not in last:
            there = last[old].value
            # As text: to Python, 1 is True.
            if json.dumps(json.loads(text[there.start : there.end])) == json.dumps(value):
                found[old] = new
    return found
