"""Files that are filled in before anybody reads them: one finding for all their placeholders."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.errors import RenderError
from autotune.base.nested import look_up
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.space.rule import Violation

_MARKS = (
    r"\{\{[^{}\n]*\}\}",  # Jinja
    r"\{%[^%\n]*%\}",
    r"\$\{[^{}\n]*\}",  # a shell, OmegaConf
    r"\$[A-Za-z_]\w*",
    r"<[A-Za-z_][\w .-]*>",
    r"@@?[A-Za-z_]\w*@@?",
    r"%[A-Za-z_]\w*%",
)
_NAME = r"[A-Z]+(?:_[A-Z0-9]+)+"
_PLACEHOLDER = re.compile(rf"\s*(?:{'|'.join(_MARKS)}|__[A-Za-z]\w*__|{_NAME})\s*,?\s*")
"""A text that is nothing else; Hjson takes the comma behind a word for a part of it."""


def _bare(*marks: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<line>\{{%[^%\n]*%\}})|:[ \t]*(?P<value>{'|'.join(marks)})[ \t]*(?=[,}}\]\r\n]|$)"
    )


_BARE, _BARE_OF_YAML = _bare(*_MARKS, _NAME), _bare(*_MARKS)
"""A placeholder without quotes where a value belongs; YAML's own texts have none."""
_MOST_NAMED = 3


def is_placeholder(value: Any) -> bool:
    """Whether a value is a text that somebody fills in."""
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value) is not None


def refuse_template(text: str, path: Path, error: Exception, *, has_words: bool) -> None:
    """Say of a text that cannot be read that it is a template, where it is one.

    Args:
        text: The text.
        path: The file.
        error: Why it cannot be read.
        has_words: Whether a text needs no quotes there, as in YAML.

    Raises:
        RenderError: It is one.
    """
    found = (_BARE_OF_YAML if has_words else _BARE).search(text)
    if found is not None:
        _refuse(found, path, error)


def _refuse(found: re.Match[str], path: Path, error: Exception) -> NoReturn:
    line = found.string.count("\n", 0, found.start()) + 1
    raise RenderError(
        f"{path}:{line}: is a template: {found['value'] or found['line']} is not filled in",
        "fill it in, and check what comes out",
    ) from error


def joined_templates(
    config: Mapping[str, Any], violations: Sequence[Violation]
) -> list[Violation]:
    """One violation in place of those that say of each placeholder that it is no value."""
    unfilled = [one for one in violations if one.level == "error" and _is_of_one(config, one)]
    if not unfilled:
        return list(violations)
    keys = tuple(dict.fromkeys(key for one in unfilled for key in one.at))
    named = ", ".join(f"{key}={look_up(config, key)}" for key in keys[:_MOST_NAMED])
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    joined = violation_of("file.template", *keys, named=f"{named}{more}")
    return [joined, *(one for one in violations if one not in unfilled)]


def _is_of_one(config: Mapping[str, Any], violation: Violation) -> bool:
    return bool(violation.at) and all(is_placeholder(look_up(config, key)) for key in violation.at)
