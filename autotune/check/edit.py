"""Changes of a file's text that leave everything else as it was written."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, NamedTuple

from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK

_SPACE = re.compile(r"[ \t\r\n]*")
_MEMBER = re.compile(
    r'"(?P<key>[^"\\]*)"[ \t\r\n]*:[ \t\r\n]*'
    r'(?P<value>"[^"\\]*"|[-+.\deE]+|true|false|null)[ \t\r\n]*,?[ \t\r\n]*'
)
"""A key and its value, where neither has an escape or something inside, up to the next key."""
_DECODER = json.JSONDecoder()
_ONE_OF_A_KIND = frozenset({str, int, bool, type(None)})
"""Types whose values are the same where Python says so."""
_MOST_COMPARED = 100
"""Keys of one section that are looked through for the new names of others."""
_LIKENESS = 0.6
_LINE = 80
"""Characters of a new key and its value that stand in one line."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A stretch of a text, and what stands there instead."""

    start: int
    end: int
    """One past its last character."""
    text: str


class _Value(NamedTuple):
    """A value in the text."""

    start: int
    end: int
    """One past its last character."""
    members: tuple["_Member", ...] | None
    """Members of an object; None for anything else."""


class _Member(NamedTuple):
    name: str
    start: int
    """Offset of its key."""
    value: _Value


def edited(text: str, wanted: Mapping[str, Any]) -> str:
    """A JSON text that says what is wanted, and differs from the first where it has to.

    Args:
        text: A valid JSON object, with a byte order mark or without.
        wanted: All that the text is to say; the order of its keys does not matter.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + edited(text.removeprefix(BYTE_ORDER_MARK), wanted)
    after = spliced(text, _Json(text, _root(text), wanted).edits())
    assert same_data(json.loads(after), wanted), "the text says what is wanted"
    return after


def spliced(text: str, edits: Iterable[Edit]) -> str:
    """A text after edits that do not overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        parts += (text[at : edit.start], edit.text)
        at = edit.end
    return "".join((*parts, text[at:]))


def same_data(one: Any, other: Any) -> bool:
    """Whether two values are the same, type by type, whatever the order of keys."""
    if type(one) is type(other) and type(one) in _ONE_OF_A_KIND:
        return bool(one == other)
    # Most are in the same order, too, and need not be sorted.
    return repr(one) == repr(other) or plain(one) == plain(other)


def plain(value: Any) -> str:
    """A value as text: to Python, 16.0 is 16 and 1 is True."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except TypeError:  # keys of YAML may be of several types, which Python does not sort
        return json.dumps(_with_text_keys(value), sort_keys=True, default=repr)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {repr(name): _with_text_keys(inner) for name, inner in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list) else value


def renames(gone: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, str]:
    """Old name -> new name, where a key comes with the value of one that goes, or much like it."""
    found: dict[str, str] = {}
    free = dict(added) if max(len(gone), len(added)) <= _MOST_COMPARED else {}
    for old, value in gone.items():
        likeness = {
            name: SequenceMatcher(None, str(old), str(name)).ratio()
            + (plain(there) == plain(value))
            for name, there in free.items()
            if isinstance(value, Mapping) is isinstance(there, Mapping)
        }
        best = max(likeness, key=lambda name: likeness[name], default=None)
        if best is not None and likeness[best] >= _LIKENESS:
            found[old] = best
            del free[best]
    return found


def duplicates(text: str) -> list[str]:
    """Dotted names of keys that an object of the text holds more than once."""
    return list(_duplicates(_root(text.removeprefix(BYTE_ORDER_MARK)), ""))


def _duplicates(value: _Value, path: str) -> Iterator[str]:
    members = value.members or ()
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        yield from (f"{path}{name}" for name, count in Counter(names).items() if count > 1)
    for member in members:
        if member.value.members:
            yield from _duplicates(member.value, f"{path}{member.name}.")


def key_starts(text: str) -> dict[tuple[str, ...], int]:
    """Path of every key of a JSON text -> where it begins; of a key twice, the last one."""
    bare = text.removeprefix(BYTE_ORDER_MARK)
    starts: dict[tuple[str, ...], int] = {}
    _collect_starts(_root(bare), (), len(text) - len(bare), starts)
    return starts


def _collect_starts(
    value: _Value, path: tuple[str, ...], skipped: int, starts: dict[tuple[str, ...], int]
) -> None:
    for member in value.members or ():
        here = (*path, member.name)
        starts[here] = member.start + skipped
        if member.value.members:
            _collect_starts(member.value, here, skipped, starts)


@lru_cache(maxsize=1)
def _root(text: str) -> _Value:
    """The object that a text is; its places, its keys that are there twice and its edits ask."""
    return _value(text, _skip(text, 0))


def _value(text: str, start: int) -> _Value:
    if text[start] != "{":
        return _Value(start, _DECODER.raw_decode(text, start)[1], None)
    members = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        if (plain_one := _MEMBER.match(text, at)) is not None:
            value = _Value(*plain_one.span("value"), None)
            members.append(_Member(plain_one["key"], at, value))
            at = plain_one.end()
            continue
        name, after_name = _DECODER.raw_decode(text, at)
        value = _value(text, _skip(text, _skip(text, after_name) + 1))
        members.append(_Member(name, at, value))
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return _Value(start, at + 1, tuple(members))


def _skip(text: str, at: int) -> int:
    blank = _SPACE.match(text, at)
    assert blank is not None, "nothing at all is blank, too"
    return blank.end()


class _Json:
    """The edits that make a JSON text say what is wanted."""

    def __init__(self, text: str, root: _Value, wanted: Mapping[str, Any]) -> None:
        self._text, self._root, self._wanted = text, root, wanted
        self._written: dict[str, str] = {}
        """Numbers that go, as they are written; they may come again elsewhere."""

    def edits(self) -> Iterator[Edit]:
        data = json.loads(self._text)  # no key of it stands there twice
        self._collect(self._root, data, self._wanted)
        yield from self._of(self._root, data, self._wanted, depth=1)

    def _collect(self, node: _Value, data: Any, wanted: Any) -> None:
        """Keep the spelling of numbers below sections and keys that go: 5e8 stays 5e8."""
        if node.members is None and isinstance(data, float):
            raw = self._text[node.start : node.end]
            self._written.setdefault(json.dumps(data), raw)
        for member in node.members or ():
            there = wanted.get(member.name) if isinstance(wanted, Mapping) else None
            if there is None or member.value.members is not None:
                self._collect(member.value, data[member.name], there)

    def _member_text(self, name: str, value: Any, depth: int) -> str:
        """A new member: in one line where it fits, else a line for each of its own."""
        flat = f"{json.dumps(name)}: {self._dumped(value)}"
        inner, outer = _margins(self._text, depth + 1)
        if not inner or len(flat) <= _LINE or not isinstance(value, Mapping):
            return flat
        members = (self._member_text(n, v, depth + 1) for n, v in value.items())
        return f"{json.dumps(name)}: {{{inner}{f',{inner}'.join(members)}{outer}}}"

    def _dumped(self, value: Any) -> str:
        if isinstance(value, Mapping):
            inner = ", ".join(f"{json.dumps(n)}: {self._dumped(v)}" for n, v in value.items())
            return f"{{{inner}}}"
        text = json.dumps(value)
        return self._written.get(text, text)

    def _of(
        self, node: _Value, data: Mapping[str, Any], wanted: Mapping[str, Any], depth: int
    ) -> Iterator[Edit]:
        members = node.members or ()
        last = {member.name: member for member in members}  # JSON's last one counts
        gone = {name: data[name] for name in last if name not in wanted}
        added = {name: value for name, value in wanted.items() if name not in last}
        renamed = renames(gone, added)
        for name, member in last.items():
            if name in renamed:
                yield Edit(
                    start=member.start,
                    end=member.value.start,
                    text=f"{json.dumps(renamed[name])}: ",
                )
            if name in wanted or name in renamed:
                there = wanted[renamed.get(name, name)]
                yield from self._replaced(member.value, data[name], there, depth)
        for name in renamed.values():
            del added[name]
        going = [m for m in members if m.name in gone and last[m.name] is not m]
        going += [last[name] for name in gone if name not in renamed]
        yield from self._membership(node, going, added, depth)

    def _replaced(self, node: _Value, data: Any, wanted: Any, depth: int) -> Iterator[Edit]:
        if node.members is not None and isinstance(wanted, Mapping):
            yield from self._of(node, data, wanted, depth + 1)
        elif not same_data(data, wanted):
            yield Edit(start=node.start, end=node.end, text=self._dumped(wanted))

    def _membership(
        self, node: _Value, gone: list[_Member], added: Mapping[str, Any], depth: int
    ) -> Iterator[Edit]:
        """Take members out of an object and put others at its end."""
        text, members = self._text, node.members or ()
        # By place, each once: a file may hold tens of thousands of keys.
        going = {member.start for member in gone}
        kept = [member for member in members if member.start not in going]
        written = [self._member_text(name, value, depth) for name, value in added.items()]
        if not kept:
            if not gone and not written:
                return
            inner, outer = _margins(text, depth)
            body = inner + f",{inner}".join(written) + outer if written else ""
            yield Edit(start=node.start, end=node.end, text=f"{{{body}}}")
            return
        for index, member in enumerate(members):
            if member.start not in going:
                continue
            if kept[0].start < member.start:
                start, end = members[index - 1].value.end, member.value.end
            else:
                start, end = member.start, members[index + 1].start
            yield Edit(start=start, end=end, text="")
        if written:
            before = text[: members[0].start]
            gap = before[len(before.rstrip(" \t\r\n")) :] or " "
            at = kept[-1].value.end
            yield Edit(start=at, end=at, text="".join(f",{gap}{one}" for one in written))


def _margins(text: str, depth: int) -> tuple[str, str]:
    """White space before the members of an object without any, and before its end."""
    if "\n" not in text:
        return "", ""
    unit = re.search(r"\n([ \t]+)", text)
    step = unit[1] if unit else "  "
    line_end = "\r\n" if "\r\n" in text else "\n"
    return line_end + step * depth, line_end + step * (depth - 1)
