"""Changes of an Hjson text that leave everything else as it was written, comments too.

Hjson is JSON with comments, commas and quotes that may be missing, and texts without quotes that
end with their line. Source of the rules: hjson/decoder.py.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.check.edit import Edit, JsonEdits, Member, Value, same_data, spliced
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK

_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLANK = re.compile(r"\s*")
_KEY = re.compile(r"""[^\s:,{}\[\]"'#]+""")
_LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')


def edited_hjson(text: str, wanted: Mapping[str, Any]) -> str | None:
    """An Hjson text that says what is wanted, and differs from the first where it has to.

    None where that cannot be done with every comment kept.

    Args:
        text: A valid Hjson object, with a byte order mark or without.
        wanted: All that the text is to say; the order of its keys does not matter.
    """
    if text.startswith(BYTE_ORDER_MARK):
        after = edited_hjson(text.removeprefix(BYTE_ORDER_MARK), wanted)
        return None if after is None else BYTE_ORDER_MARK + after
    try:
        before = _HjsonText(text)
        data = _loads(text)
        after = spliced(text, _HjsonEdits(text, before, data, wanted).edits())
        said = _loads(after)
        kept = _HjsonText(after).comments
    except (_OddError, ValueError, IndexError):
        return None
    is_whole = Counter(one.rstrip() for one in kept) == Counter(
        one.rstrip() for one in before.comments
    )
    return after if same_data(said, wanted) and is_whole else None


class _OddError(Exception):
    """The text is written in a way that is not edited."""


def _loads(text: str) -> dict[str, Any]:
    import hjson  # installed with DeepSpeed, and only needed for what is not JSON

    # Its own mappings are told from Python's by `same_data`.
    data = json.loads(json.dumps(hjson.loads(text)))
    if not isinstance(data, dict):
        raise _OddError
    return data


class _HjsonText:
    """The places of an Hjson text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.comments: list[str] = []
        at = self._skip(0)
        if text[at : at + 1] == "{":
            self.root, end = self._object(at)
            self._skip(end)
        else:
            members, end = self._members(at, closes="")
            self.root = Value(0, end, members)

    def _skip(self, at: int) -> int:
        """Past blanks and comments."""
        while True:
            blank = _BLANK.match(self.text, at)
            at = blank.end() if blank else at
            found = _COMMENT.match(self.text, at)
            if found is None:
                return at
            self.comments.append(found[0])
            at = found.end()

    def _object(self, at: int) -> tuple[Value, int]:
        members, end = self._members(at + 1, closes="}")
        return Value(at, end + 1, members), end + 1

    def _members(self, at: int, *, closes: str) -> tuple[tuple[Member, ...], int]:
        found: list[Member] = []
        while True:
            at = self._skip(at)
            char = self.text[at : at + 1]
            if char == closes:
                return tuple(found), at
            if char == ",":
                at += 1
                continue
            quoted = _QUOTED.match(self.text, at)
            key = quoted or _KEY.match(self.text, at)
            if key is None:
                raise _OddError
            name = key[0][1:-1] if quoted else key[0]
            start, at = at, self._skip(key.end())
            if self.text[at : at + 1] != ":":
                raise _OddError
            value, at = self._value(self._skip(at + 1))
            found.append(Member(name, start, value))

    def _value(self, at: int) -> tuple[Value, int]:
        text = self.text
        if text.startswith("{", at):
            return self._object(at)
        if text.startswith("[", at):
            end = self._array(at)
            return Value(at, end, None), end
        if text.startswith("'''", at):
            end = text.index("'''", at + 3) + 3
            return Value(at, end, None), end
        quoted = _QUOTED.match(text, at)
        if quoted is not None:
            return Value(at, quoted.end(), None), quoted.end()
        end = self._bare_end(at)
        return Value(at, end, None), end

    def _array(self, at: int) -> int:
        at += 1
        while True:
            at = self._skip(at)
            char = self.text[at : at + 1]
            if char == "]":
                return at + 1
            if char == "":
                raise _OddError
            at = at + 1 if char == "," else self._value(at)[1]

    def _bare_end(self, at: int) -> int:
        """One past a number or a word, or a text without quotes, which ends with its line."""
        literal = _LITERAL.match(self.text, at)
        if literal is not None:
            after = self.text[literal.end() :].lstrip(" \t\r")
            if after[:1] in ("", "\n", ",", "}", "]", "#") or after[:2] in ("//", "/*"):
                return literal.end()
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return at + len(self.text[at:end].rstrip())


class _HjsonEdits(JsonEdits):
    """The edits that make an Hjson text say what is wanted."""

    def __init__(
        self, text: str, parsed: _HjsonText, data: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> None:
        super().__init__(text, parsed.root, data, wanted)

    def membership(
        self, node: Value, gone: list[Member], added: Mapping[str, Any], depth: int
    ) -> Iterator[Edit]:
        """Take members out, a line each where they have one, and put others at the end."""
        text, members = self._text, node.members or ()
        going = {member.start for member in gone}
        kept = [member for member in members if member.start not in going]
        stretch = text[node.start : node.end]
        if not kept or "\n" not in stretch:
            yield from super().membership(node, gone, added, depth)
            return
        for member in gone:
            start = text.rfind("\n", 0, member.start) + 1
            end = text.find("\n", member.value.end)
            rest = text[member.value.end : end].strip().removeprefix(",").strip()
            is_alone = not text[start : member.start].strip() and end >= 0
            if not is_alone or (rest and _COMMENT.fullmatch(rest) is None):
                raise _OddError
            remark = f"{text[start : member.start]}{rest}\n" if rest else ""
            yield Edit(start=start, end=end + 1, text=remark)
        if added:
            yield from self._appended(kept[-1], added, depth)

    def _appended(self, last: Member, added: Mapping[str, Any], depth: int) -> Iterator[Edit]:
        text, end = self._text, last.value.end
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end
        rest = text[end:line_end].strip()
        has_comma = rest.startswith(",")
        rest = rest.removeprefix(",").strip()
        if rest and _COMMENT.fullmatch(rest) is None:
            raise _OddError
        start = text.rfind("\n", 0, last.start) + 1
        indent = text[start : last.start]
        if indent.strip():
            raise _OddError
        is_bare = text[last.value.start] not in "{[\"'" and (
            _LITERAL.fullmatch(text[last.value.start : end]) is None
        )
        comma = "" if is_bare else ","
        lines = [self.member_text(name, value, depth) for name, value in added.items()]
        if not has_comma and comma:
            yield Edit(start=end, end=end, text=comma)
        behind = "," if has_comma else ""
        newline = "\r\n" if text[line_end - 1 : line_end] == "\r" else "\n"
        at = line_end - len(newline) + 1
        block = f",{newline}{indent}".join(lines) + behind
        yield Edit(start=at, end=at, text=f"{newline}{indent}{block}")
