"""The one way into somebody's text: `edit(text, changes)`; all else stays as it was written.

One change at a time: after each the text is read again, so none has to know of the others.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.errors import AutotuneError
from autotune.check.changes import same_data, with_changes
from autotune.check.languages import language_of
from autotune.check.text_nodes import Member, TextNode, TooOddError
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK
from autotune.space.rule import Moves, Patch

_At = tuple[Any, ...]
"""Keys from the root of a text to one of its values."""
_INDENTED = re.compile(r"\n([ \t]+)")
_FLOAT = re.compile(r"(?<![\w.])-?(?:0|[1-9]\d*)(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)(?![\w.])")
_REMARK_BEHIND = re.compile(r"[ \t]*(,?)[ \t]*(?:(?://|#)[^\r\n]*|/\*[^\n]*?\*/)")
_BETWEEN = re.compile(r"(?:\s|(?://|#)[^\n]*|/\*.*?\*/)*+(,?)", re.DOTALL)
_MOST_READ = {"json": 2**26, "hjson": 2**22, "yaml": 2**22}
"""Characters that are read again for all changes of a text together: PyYAML takes its time."""


def edit(
    text: str,
    changes: Patch,
    syntax: str = "json",
    *,
    moves: Moves | None = None,
    reads_exponents: bool = False,
) -> str | None:
    """A text that says the same but for some changes, and is otherwise as it was written.

    Args:
        text: A valid mapping, with a byte order mark or without.
        changes: Values to set, nested like the text; None takes a key away, `NULL` is null.
        moves: Which of them bring a key to another place; within its section it is renamed where
            it stands.
        syntax: `json`, `hjson` or `yaml`; nothing else is edited, and of Hjson only what is JSON
            but for comments and commas at the end.
        reads_exponents: Whether a reader of the YAML takes 5e8 for a number.

    Returns:
        The text; None where its way of writing does not allow the changes, or where a comment or
        an alias would be lost.
    """
    if syntax not in _MOST_READ:
        return None
    after = text.removeprefix(BYTE_ORDER_MARK)
    mark = text[: len(text) - len(after)]
    language = language_of(syntax)
    try:
        data = language.data(after, reads_exponents=reads_exponents)
        comments = language.comments(after)
        steps = list(_steps(data, changes, moves or {}))
        if len(steps) * len(text) > _MOST_READ[syntax]:
            return None
        is_spelled = syntax != "yaml" or reads_exponents
        floats = _FLOAT.findall(after) if steps and is_spelled else ()
        spelled = {repr(float(one)): one for one in floats}
        for at, value, new_name in steps:
            after = _EditedText(after, syntax, spelled).changed(at, value, new_name)
        again = language.data(after, reads_exponents=reads_exponents)
        is_meant = same_data(again, with_changes(data, changes))
        if not is_meant or language.comments(after) != comments:
            return None
    except (TooOddError, AutotuneError, ValueError):
        return None
    return mark + after


def _steps(
    data: Mapping[str, Any], changes: Patch, moves: Moves, at: _At = ()
) -> Iterator[tuple[_At, Any, str]]:
    """Single changes: a path, the value there or None where the key goes, the key's new name."""
    here = [(old[-1], new[-1]) for old, new in moves.items() if old[:-1] == new[:-1] == at]
    after = with_changes(data, changes)
    renamed = {
        old: new
        for old, new in here
        if old in data and new not in data and old not in after and new in after
        if same_data(after[new], data[old])
    }
    for name, value in changes.items():
        if name in renamed:
            yield (*at, name), data[name], renamed[name]
        elif isinstance(value, Mapping) and isinstance(data.get(name), Mapping):
            yield from _steps(data[name], value, moves, (*at, name))
        elif name not in renamed.values() and (value is not None or name in data):
            new = value if value is None else with_changes({}, {name: value})
            yield (*at, name), new, ""


class _EditedText:
    def __init__(self, text: str, syntax: str, spelled: Mapping[str, str]) -> None:
        self._text, self._spelled = text, spelled
        self._is_json, self._language = syntax != "yaml", language_of(syntax)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        indented = _INDENTED.search(text)
        self._unit = indented[1] if indented else "  "

    def changed(self, at: _At, new: Mapping[str, Any] | None, new_name: str) -> str:
        """The text after one step: a member `new`, a key's new name, or None where it goes."""
        section, above = self._language.root(self._text), None
        for name in at[:-1]:
            above = _member(section, name)
            if above is None:
                raise TooOddError
            section = above.value
        member = _member(section, at[-1])
        if member is None:
            if new is None or new_name:
                raise TooOddError  # it is merged in from elsewhere
            return self._added(section, new)
        if new_name:
            is_quoted = self._text[member.start] == '"'
            return self._spliced(member.start, member.end, self._named(new_name, is_quoted))
        if new is None:
            return self._without(section, above, member)
        node = member.value
        if node.is_fixed:
            raise TooOddError
        value = self._dumped(new[at[-1]], "")
        return self._spliced(node.start, node.end, " " * (node.start == node.end) + value)

    def _spliced(self, start: int, end: int, text: str) -> str:
        return self._text[:start] + text + self._text[end:]

    def _dumped(self, value: Any, newline: str, unit: str = "") -> str:
        unit = unit or self._unit
        return self._language.dumped(value, self._spelled, newline, unit)

    def _named(self, name: Any, is_quoted: bool) -> str:
        return json.dumps(name) if is_quoted else self._dumped(name, "")

    def _lines(self, new: Mapping[str, Any], indent: str) -> str:
        found = ""
        for name, value in new.items():
            head = f"{indent}{self._dumped(name, '')}:"
            if isinstance(value, Mapping) and value:
                found += f"{head}{self._newline}{self._lines(value, f'{indent}  ')}"
            else:
                found += f"{head} {self._dumped(value, '')}{self._newline}"
        return found

    def _added(self, section: TextNode, new: Mapping[str, Any]) -> str:
        ((name, value),) = new.items()
        members = section.members
        if members is None:
            raise TooOddError
        if section.indent is not None:
            lines = self._lines(new, section.indent)
            at = self._line_end(max(one.value.end for one in members))
            if at and self._text[at - 1] != "\n":
                lines = self._newline + lines.removesuffix(self._newline)
            return self._spliced(at, at, lines)
        start = self._text.rfind("\n", 0, section.start) + 1
        line = self._text[start : section.start]
        outer = self._newline + line[: len(line) - len(line.lstrip())]
        if not members:
            is_one_line = "\n" not in self._text or not self._is_json
            inner, outer = ("", "") if is_one_line else (outer + self._unit, outer)
            member = f"{self._named(name, False)}: {self._dumped(value, inner)}"
            return self._spliced(section.start, section.end, f"{{{inner}{member}{outer}}}")
        _, is_below, gap = self._text[section.start + 1 : members[0].start].rpartition("\n")
        gap = self._newline + gap if is_below and not gap.strip() else " "
        newline = gap if "\n" in gap and self._is_json else ""
        at = members[-1].value.end
        step = newline.removeprefix(outer) if newline.startswith(outer) else ""
        member = f"{self._named(name, False)}: {self._dumped(value, newline, step)}"
        remark = _REMARK_BEHIND.match(self._text, at) if newline else None
        behind, comma = (remark[0], remark[1]) if remark else ("", "")  # about the last member
        return self._spliced(at, at + len(behind), f"{'' if comma else ','}{behind}{gap}{member}")

    def _without(self, section: TextNode, above: Member | None, member: Member) -> str:
        """The text without a member; `above` is the one whose value the section is."""
        members = section.members or ()
        index = members.index(member)
        start, end = member.start, member.value.end
        if section.indent is None:
            left = members[index - 1].value.end if index else section.start + 1
            right = members[index + 1].start if index + 1 < len(members) else section.end - 1
            if self._is_json and self._language.comments(self._text, left, right):
                return self._without_remarked(member, left if index else start)
            if len(members) == 1:
                return self._spliced(section.start, section.end, "{}")
            start = members[index - 1].value.end if index else start
            return self._spliced(start, end if index else members[1].start, "")
        start, end = self._text.rfind("\n", 0, start) + 1, self._line_end(end)
        if self._text[start : member.start].strip():
            raise TooOddError  # `? key`, or `- key`
        remarks = "".join(
            f"{section.indent}{one}{self._newline}"
            for one in self._language.comments(self._text, start, end)
        )
        if len(members) > 1:
            return self._spliced(start, end, remarks)
        if above is None:
            return self._spliced(start, end, f"{remarks}{{}}{self._newline}")
        after, at = self._spliced(start, end, remarks), self._text.index(":", above.end) + 1
        return f"{after[:at]} {{}}{after[at:]}"

    def _without_remarked(self, member: Member, before: int) -> str:
        """The text without a member of JSON; what stands around it keeps its place."""
        text, start, end = self._text, member.start, member.value.end
        behind, ahead = (next(_BETWEEN.finditer(text, at)) for at in (end, before))
        end = behind.end() if behind[1] else end
        line, rest = text.rfind("\n", 0, start) + 1, self._line_end(end)
        if not (text[line:start] + text[end:rest]).strip():
            start, end = line, rest
        if ahead[1] and not behind[1]:
            return text[: ahead.start(1)] + text[ahead.end() : start] + text[end:]
        return self._spliced(start, end, "")

    def _line_end(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end + 1


def _member(section: TextNode, name: Any) -> Member | None:
    """A member of a section; of a key twice, the last one counts."""
    found = (one for one in reversed(section.members or ()) if one.name == str(name))
    return next(found, None)
