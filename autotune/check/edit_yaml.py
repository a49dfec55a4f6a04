"""Changes of a YAML text that leave everything else as it was written, comments too."""

import contextlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import AutotuneError
from autotune.base.yaml_file import parse_yaml
from autotune.check.edit import Edit, plain, renames, same_data, spliced
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\r\n]*", re.MULTILINE)
_STEP = "  "
_MERGE = "tag:yaml.org,2002:merge"


class _TooOddError(Exception):
    """The text is written in a way that is not edited."""


def edited_yaml(
    text: str, wanted: Mapping[str, Any], *, reads_exponents: bool = False
) -> str | None:
    """A YAML text that says what is wanted, and differs from the first where it has to.

    None where that cannot be done with every comment kept.

    Args:
        text: A valid YAML mapping.
        wanted: All that the text is to say; the order of its keys does not matter.
        reads_exponents: Whether its reader takes 5e8 for a number.
    """
    if text.startswith(BYTE_ORDER_MARK):
        bare = text.removeprefix(BYTE_ORDER_MARK)
        after = edited_yaml(bare, wanted, reads_exponents=reads_exponents)
        return None if after is None else BYTE_ORDER_MARK + after
    for carries in (True, False):
        with contextlib.suppress(_TooOddError, AutotuneError):
            data = _parsed(text, reads_exponents)
            after = spliced(text, _Yaml(text, data, wanted, carries=carries).edits())
            if same_data(_parsed(after, reads_exponents), wanted) and _comments(
                after
            ) == _comments(text):
                return after
    return None


def _parsed(text: str, reads_exponents: bool) -> dict[str, Any]:
    return parse_yaml(text, Path("the text"), reads_exponents=reads_exponents)


def _composed(text: str) -> yaml.MappingNode:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode), "it was parsed as a mapping before"
    return node


def _comments(text: str) -> Counter[str]:
    root = _composed(text)
    return Counter(found.rstrip() for _, found in _comments_in(text, root, 0, len(text)))


def _comments_in(text: str, node: yaml.Node, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Place and text of the comments in a stretch; `node` holds all that is no comment there."""
    inside = sorted(set(_leaves(node)))  # an alias is its anchor
    for match in _COMMENT.finditer(text, start, end):
        before = bisect_right(inside, (match.start(), len(text)))
        if before == 0 or inside[before - 1][1] <= match.start():
            yield match.start(), match[0]


def _leaves(node: yaml.Node) -> Iterator[tuple[int, int]]:
    """Stretches of the scalars below a node, in the order of the text."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _leaves(key)
            yield from _leaves(value)
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _leaves(one)
    else:
        yield node.start_mark.index, _end(node)


def _end(node: yaml.Node) -> int:
    """One past the last character of a node; the mark of a block is where the next one begins."""
    if isinstance(node, yaml.ScalarNode):
        end = int(node.end_mark.index)
        if node.style in ("|", ">"):
            start = node.start_mark
            assert start.buffer is not None, "a text keeps its marks' buffer"
            raw = start.buffer[start.pointer : start.pointer + end - start.index]
            return int(start.index) + len(raw.rstrip())
        return end
    assert isinstance(node, yaml.CollectionNode), "there are no other nodes"
    if node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


class _Yaml:
    """The edits that make a YAML text say what is wanted."""

    def __init__(
        self, text: str, data: Mapping[str, Any], wanted: Mapping[str, Any], *, carries: bool
    ) -> None:
        self._text, self._wanted, self._carries = text, wanted, carries
        self._root, self._data = _composed(text), data
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._carried: dict[tuple[str, str], str] = {}
        """Comments behind keys that move: name and value -> the comment."""
        self._written: dict[str, str] = {}
        """Numbers that go, as they are written."""

    def edits(self) -> Iterator[Edit]:
        arriving = set(_arriving(self._data, self._wanted))
        self._collect(self._root, self._data, self._wanted, arriving)
        yield from self._of(self._root, self._data, self._wanted, None)

    def _collect(
        self, node: yaml.Node, data: Any, wanted: Any, arriving: set[tuple[str, str]]
    ) -> None:
        """Keep the text that moves with keys: their numbers' spelling, the comment behind them."""
        if isinstance(node, yaml.ScalarNode) and isinstance(data, float):
            raw = self._text[node.start_mark.index : node.end_mark.index]
            self._written.setdefault(json.dumps(data), raw)
        if not isinstance(node, yaml.MappingNode) or not isinstance(data, Mapping):
            return  # a mapping of nodes without a value is a set
        for name, (key, value) in _members(node, data).items():
            there = data[name]
            goal = wanted.get(name) if isinstance(wanted, Mapping) else None
            self._collect(value, there, goal, arriving)
            moves = (str(name), plain(there)) in arriving
            is_gone = not (isinstance(wanted, Mapping) and name in wanted)
            is_line = isinstance(value, yaml.ScalarNode) and not node.flow_style
            if self._carries and is_gone and moves and is_line:
                behind = list(_comments_in(self._text, value, _end(value), self._line_end(key)))
                for _, comment in behind[:1]:
                    self._carried[str(name), plain(there)] = comment

    def _of(
        self,
        node: yaml.MappingNode,
        data: Mapping[str, Any],
        wanted: Mapping[str, Any],
        key: yaml.Node | None,
    ) -> Iterator[Edit]:
        """Edits of a mapping; `key` is the one that it stands under."""
        members = _members(node, data)
        for name in data.keys() - members.keys():  # merged in from elsewhere
            if name not in wanted or not same_data(data[name], wanted[name]):
                raise _TooOddError
        gone = {name: value for name, value in data.items() if name not in wanted}
        added = {name: value for name, value in wanted.items() if name not in data}
        renamed = renames(gone, added)
        for name, (own, value) in members.items():
            if name in renamed:
                start, end = own.start_mark.index, own.end_mark.index
                yield Edit(start=start, end=end, text=self._key(renamed[name], own))
            if name in wanted or name in renamed:
                yield from self._replaced(value, data[name], wanted[renamed.get(name, name)], own)
        for name in renamed.values():
            del added[name]
        going = [members[name] for name in gone if name not in renamed]
        if any(_is_alias(own, value) for own, value in going):
            raise _TooOddError
        if node.flow_style or not node.value:
            yield from self._flow(node, going, added)
        else:
            yield from self._block(node, going, added, key)

    def _replaced(self, node: yaml.Node, data: Any, wanted: Any, key: yaml.Node) -> Iterator[Edit]:
        if isinstance(node, yaml.MappingNode) and isinstance(wanted, Mapping):
            if _is_alias(key, node) and plain(data) != plain(wanted):
                raise _TooOddError
            yield from self._of(node, data, wanted, key)
        elif plain(data) != plain(wanted):
            if _is_alias(key, node):
                raise _TooOddError
            start, end = node.start_mark.index, _end(node)
            is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
            if is_block or (isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")):
                raise _TooOddError
            space = " " if start == end else ""
            yield Edit(start=start, end=end, text=space + self._dumped(wanted))

    def _flow(
        self,
        node: yaml.MappingNode,
        going: list[tuple[yaml.Node, yaml.Node]],
        added: Mapping[str, Any],
    ) -> Iterator[Edit]:
        members = node.value
        leaving = {id(own) for own, _ in going}
        kept = [member for member in members if id(member[0]) not in leaving]
        written = [f"{self._dumped(name)}: {self._dumped(there)}" for name, there in added.items()]
        if not kept:
            if going or written:
                yield Edit(
                    start=node.start_mark.index,
                    end=node.end_mark.index,
                    text=f"{{{', '.join(written)}}}",
                )
            return
        first = members.index(kept[0])
        for index, member in enumerate(members):
            if id(member[0]) not in leaving:
                continue
            if first < index:
                start, end = _end(members[index - 1][1]), _end(member[1])
            else:
                start = member[0].start_mark.index
                end = members[index + 1][0].start_mark.index
            yield Edit(start=start, end=end, text="")
        if written:
            before = self._text[node.start_mark.index + 1 : members[0][0].start_mark.index]
            gap = before if "\n" in before and not before.strip() else " "
            at = _end(kept[-1][1])
            yield Edit(start=at, end=at, text="".join(f",{gap}{one}" for one in written))

    def _block(
        self,
        node: yaml.MappingNode,
        going: list[tuple[yaml.Node, yaml.Node]],
        added: Mapping[str, Any],
        key: yaml.Node | None,
    ) -> Iterator[Edit]:
        text, members = self._text, node.value
        leaving = {id(own) for own, _ in going}
        kept = [member for member in members if id(member[0]) not in leaving]
        indent = " " * members[0][0].start_mark.column
        for own, value in going:
            start, end = self._line_start(own), self._line_end_of(_end(value))
            if text[start : own.start_mark.index].strip():
                raise _TooOddError  # `? key`, or `- key`
            after = self._line_end_of(_end(value), past=True)
            yield Edit(start=start, end=after, text=self._remarks(own, value, end, indent))
        lines = [
            line for name, value in added.items() for line in self._lines(name, value, indent)
        ]
        if lines and kept:
            at = self._line_end_of(max(_end(value) for _, value in kept), past=True)
            ends = not at or text[at - 1] == "\n"
            block = "".join(line + self._newline for line in lines)
            yield Edit(
                start=at, end=at, text=block if ends else self._newline + block.rstrip("\r\n")
            )
        elif lines:
            at = self._line_start(members[0][0])
            yield Edit(start=at, end=at, text="".join(line + self._newline for line in lines))
        elif not kept:
            if key is None:
                at = self._line_start(members[0][0])
                yield Edit(start=at, end=at, text="{}" + self._newline)
            else:
                at = text.index(":", key.end_mark.index) + 1
                yield Edit(start=at, end=at, text=" {}")

    def _remarks(self, own: yaml.Node, value: yaml.Node, end: int, indent: str) -> str:
        """The comments of a member that goes, a line each, but for the one that goes along."""
        start = self._line_start(own)
        found = [comment for _, comment in _comments_in(self._text, value, start, end)]
        name = getattr(own, "value", "")
        moved = [comment for (old, _), comment in self._carried.items() if old == name]
        found = [one for one in found if one not in moved]
        return "".join(f"{indent}{one}{self._newline}" for one in found)

    def _lines(self, name: str, value: Any, indent: str) -> Iterator[str]:
        if isinstance(value, Mapping) and value:
            yield f"{indent}{self._dumped(name)}:"
            for inner, there in value.items():
                yield from self._lines(inner, there, indent + _STEP)
        else:
            comment = self._carried.get((str(name), plain(value)), "")
            behind = f"  {comment}" if comment else ""
            yield f"{indent}{self._dumped(name)}: {self._dumped(value)}{behind}"

    def _key(self, name: str, before: yaml.Node) -> str:
        return json.dumps(name) if getattr(before, "style", None) == '"' else self._dumped(name)

    def _dumped(self, value: Any) -> str:
        """A value in one line, as it may stand anywhere."""
        if isinstance(value, float) and json.dumps(value) in self._written:
            return self._written[json.dumps(value)]
        if isinstance(value, Mapping) and value:
            inner = (f"{self._dumped(n)}: {self._dumped(v)}" for n, v in value.items())
            return f"{{{', '.join(inner)}}}"
        text = yaml.safe_dump(
            [value], default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False
        )
        return str(text).strip()[1:-1]

    def _line_start(self, node: yaml.Node) -> int:
        return self._text.rfind("\n", 0, node.start_mark.index) + 1

    def _line_end(self, node: yaml.Node) -> int:
        return self._line_end_of(node.end_mark.index)

    def _line_end_of(self, at: int, *, past: bool = False) -> int:
        """End of the line at a place, or start of the next one."""
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end + past


def _members(
    node: yaml.MappingNode, data: Mapping[str, Any]
) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Key -> its nodes, of the keys that stand in the mapping itself."""
    if all(key.tag != _MERGE for key, _ in node.value):
        return dict(zip(data, node.value, strict=True))
    return {key.value: (key, value) for key, value in node.value if key.value in data}


def _is_alias(key: yaml.Node, value: yaml.Node) -> bool:
    """Whether a value is written elsewhere: an anchor stands before its aliases."""
    return bool(value.start_mark.index < key.start_mark.index)


def _arriving(data: Any, wanted: Any) -> Iterator[tuple[str, str]]:
    """Name and value of every key that the text does not have yet."""
    if not isinstance(wanted, Mapping):
        return
    for name, value in wanted.items():
        if isinstance(data, Mapping) and name in data:
            yield from _arriving(data[name], value)
        else:
            yield str(name), plain(value)
            yield from _arriving({}, value)
