"""YAML texts: where everything stands, comments too, and how a value is written.

The places are those of PyYAML, which reads these files for accelerate and transformers as well.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.base.yaml_file import parse_yaml
from autotune.check.text_nodes import Member, TextNode, TooOddError

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\r\n]*", re.MULTILINE)
_MERGE = "tag:yaml.org,2002:merge"


def data(text: str, *, reads_exponents: bool) -> dict[str, Any]:
    """The data of a text; `reads_exponents`: whether 5e8 is a number in it."""
    return parse_yaml(text, Path("the text"), reads_exponents=reads_exponents)


def dumped(value: Any, spelled: Mapping[str, str], newline: str, unit: str) -> str:
    """A value in one line, as it may stand anywhere; see `json_text.dumped`."""
    if isinstance(value, float) and repr(value) in spelled:
        return spelled[repr(value)]
    text = yaml.safe_dump(
        [value], default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False
    )
    return str(text).strip()[1:-1]


def root(text: str) -> TextNode:
    """The mapping that a text is."""
    found = _node(_composed(text))
    if found.members is None:
        raise TooOddError
    return found


def comments(text: str, start: int = 0, end: int | None = None) -> Counter[str]:
    """The comments in a text, or a stretch of it, in their order."""
    inside = sorted(set(_scalars(_composed(text))))  # an alias is its anchor
    found: Counter[str] = Counter()
    for match in _COMMENT.finditer(text, start, len(text) if end is None else end):
        before = bisect_right(inside, (match.start(), len(text)))
        if before == 0 or inside[before - 1][1] <= match.start():
            found[match[0].rstrip()] += 1
    return found


def _composed(text: str) -> yaml.Node:
    try:
        found = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise TooOddError from error
    if found is None:
        raise TooOddError
    return found


def _node(node: yaml.Node) -> TextNode:
    start, end = node.start_mark.index, _end(node)
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    is_fixed = is_block or getattr(node, "style", None) in ("|", ">")
    if not isinstance(node, yaml.MappingNode):
        items = map(_node, node.value) if isinstance(node, yaml.SequenceNode) else ()
        return TextNode(start, end, is_fixed=is_fixed, items=tuple(items))
    members = []
    for key, value in node.value:
        if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
            continue
        is_alias = value.start_mark.index < key.start_mark.index
        # What an alias means is written elsewhere, for others as well.
        found = TextNode(key.end_mark.index, key.end_mark.index, is_fixed=True)
        span = key.start_mark.index, key.end_mark.index
        members.append(Member(str(key.value), *span, found if is_alias else _node(value)))
    indent = " " * node.value[0][0].start_mark.column if is_block and node.value else None
    return TextNode(start, end, tuple(members), indent, is_fixed)


def _scalars(node: yaml.Node) -> Iterator[tuple[int, int]]:
    """Stretches of the scalars below a node, in the order of the text."""
    if isinstance(node, yaml.ScalarNode):
        yield node.start_mark.index, _end(node)
        return
    for one in node.value:
        for inner in one if isinstance(one, tuple) else (one,):
            yield from _scalars(inner)


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
