"""JSON texts: where everything stands, and how a value is written."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from autotune.check.text_nodes import Member, TextNode
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK

_SPACE = re.compile(r"[ \t\r\n]*")
_MEMBER = re.compile(
    r'(?P<key>"[^"\\]*")[ \t\r\n]*:[ \t\r\n]*'
    r'(?P<value>"[^"\\]*"|[-+.\deE]+|true|false|null)[ \t\r\n]*,?[ \t\r\n]*'
)
"""A key and its value, where neither has an escape or something inside, up to the next key."""
_REMARKED = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?P<remark>//[^\n]*|#[^\n]*|/\*.*?\*/)', re.DOTALL)
_COMMA_AT_END = re.compile(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[}\]])')
"""What Hjson takes beside JSON, and strings, in which it stands for itself."""
_DECODER = json.JSONDecoder()
_LINE = 80
"""Characters of a new section that stand in one line."""


def data(text: str, *, reads_exponents: bool) -> dict[str, Any]:
    """The data of a text; 5e8 is a number there, whoever reads it."""
    found: dict[str, Any] = json.loads(_bare(text))
    return found


def comments(text: str, start: int = 0, end: int | None = None) -> Counter[str]:
    """Comments of a text or a part of it: DeepSpeed's reader takes them."""
    found = _REMARKED.finditer(text, start, len(text) if end is None else end)
    return Counter(one["remark"].strip() for one in found if one["remark"])


@lru_cache(maxsize=2)
def _bare(text: str) -> str:
    """A text with blanks in the place of comments, and of commas behind last values.

    What is no JSON otherwise stays so.
    """

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])

    return _COMMA_AT_END.sub(blank, _REMARKED.sub(blank, text))


def dumped(value: Any, spelled: Mapping[str, str], newline: str, unit: str) -> str:
    """A value as it is written.

    Args:
        value: It.
        spelled: Number as Python writes it -> as the text did: 5e8 stays 5e8.
        newline: What begins the line that it stands in; empty: all in one line.
        unit: One more step of indentation.
    """
    if not isinstance(value, Mapping):
        text = json.dumps(value)
        return spelled.get(text, text) if isinstance(value, float) else text
    inner = newline and newline + unit
    parts = [f"{json.dumps(n)}: {dumped(v, spelled, inner, unit)}" for n, v in value.items()]
    flat = f"{{{', '.join(parts)}}}"
    if not newline or (len(flat) <= _LINE and "\n" not in flat):
        return flat
    return f"{{{inner}{f',{inner}'.join(parts)}{newline}}}"


def duplicates(text: str) -> list[str]:
    """Dotted names of keys that an object of the text holds more than once."""
    return list(_duplicates(root(text.removeprefix(BYTE_ORDER_MARK)), ""))


def _duplicates(node: TextNode, path: str) -> Iterator[str]:
    members = node.members or ()
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        yield from (f"{path}{name}" for name, count in Counter(names).items() if count > 1)
    for member in members:
        if member.value.members:
            yield from _duplicates(member.value, f"{path}{member.name}.")


@lru_cache(maxsize=1)
def root(text: str) -> TextNode:
    """The object that a text is; its places, its keys that are there twice and its edits ask."""
    bare = _bare(text)
    return _node(bare, _skip(bare, 0))


def _node(text: str, start: int) -> TextNode:
    if text[start] != "{":
        end = _DECODER.raw_decode(text, start)[1]
        if text[start] != "[" or text.find("{", start, end) < 0:
            return TextNode(start, end)
        items, at = [], _skip(text, start + 1)
        while text[at] != "]":
            items.append(_node(text, at))
            at = _skip(text, items[-1].end)
            at = _skip(text, at + 1) if text[at] == "," else at
        return TextNode(start, end, items=tuple(items))
    members = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        if (plain := _MEMBER.match(text, at)) is not None:
            value = TextNode(*plain.span("value"))
            members.append(Member(plain["key"][1:-1], at, plain.end("key"), value))
            at = plain.end()
            continue
        name, after_name = _DECODER.raw_decode(text, at)
        value = _node(text, _skip(text, _skip(text, after_name) + 1))
        members.append(Member(name, at, after_name, value))
        at = _skip(text, value.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return TextNode(start, at + 1, tuple(members))


def _skip(text: str, at: int) -> int:
    blank = _SPACE.match(text, at)
    assert blank is not None, "nothing at all is blank, too"
    return blank.end()
