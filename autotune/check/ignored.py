"""Findings that the user does not want: by a flag, by a comment, or by a key of the file.

`# autotune: ignore batch.product` (or `//`) speaks of its own line, or of the next one where it
stands alone; above everything else it speaks of the whole file, and so does the key
`_autotune_ignore` of a configuration, which DeepSpeed and the others do not read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.check.rule_list import no_such_rule, rule_names

KEY = "_autotune_ignore"
MEGATRON_PREFIX = "megatron."
"""Stands before the names of rules about Megatron's launches: subjects of DeepSpeed's recur."""

_COMMENT = re.compile(r"(?:#|//)\s*autotune:\s*ignore\s+(?P<rules>[\w.*, ]+)")
_ALONE = re.compile(r"\s*(?:#|//).*")


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Rules whose findings are not shown; names, or patterns such as `huggingface.*`."""

    everywhere: tuple[str, ...] = ()
    lines: Mapping[int, tuple[str, ...]]
    """Line, from 1 -> rules that are ignored there."""

    @property
    def is_nothing(self) -> bool:
        """Whether every finding is wanted."""
        return not (self.everywhere or self.lines)

    def holds(self, rule: str, line: int) -> bool:
        patterns = (*self.everywhere, *self.lines.get(line, ()))
        return any(fnmatchcase(rule, pattern) for pattern in patterns)


def ignored_in(
    text: str, config: Mapping[str, Any], flags: Sequence[str], *, name: str
) -> Ignored:
    """The findings of a file that the user does not want.

    Args:
        text: The file.
        config: The configuration in it.
        flags: Rules that the command line names.
        name: The file, for errors.

    Raises:
        JobError: One of them is no rule and no pattern that fits one, or the key holds no list.
    """
    everywhere = [*known_rules(flags, flag("ignore")), *known_rules(_by_key(config, name), name)]
    lines: dict[int, tuple[str, ...]] = {}
    is_above_all = True
    for number, line in enumerate(text.split("\n"), start=1):
        is_alone = _ALONE.fullmatch(line.rstrip("\r")) is not None
        found = _COMMENT.search(line)
        if found is not None:
            rules = tuple(known_rules(_names(found["rules"]), f"{name}:{number}"))
            if is_alone and is_above_all:
                everywhere += rules
            else:
                at = number + is_alone
                lines[at] = (*lines.get(at, ()), *rules)
        is_above_all = is_above_all and (is_alone or not line.strip(" \t\r\ufeff"))
    return Ignored(everywhere=tuple(everywhere), lines=lines)


def _by_key(config: Mapping[str, Any], name: str) -> list[str]:
    given = config.get(KEY) if KEY in config else []
    if isinstance(given, str):
        return _names(given)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise JobError.of("check.ignored_is_no_list", name=name, key=KEY, given=given)
    return given


def _names(text: str) -> list[str]:
    return [one for one in re.split(r"[,\s]+", text) if one]


def known_rules(patterns: Iterable[str], where: str) -> list[str]:
    """Names and patterns of rules, as they are; a JobError where one fits no rule."""
    patterns = list(patterns)
    for pattern in patterns:
        if pattern.startswith(MEGATRON_PREFIX):
            continue  # their names are known to NumPy's room alone, for which nothing waits here
        if not any(fnmatchcase(rule, pattern) for rule in rule_names()):
            raise no_such_rule(pattern, where=where)
    return patterns
