"""Every rule of `check` by its name: of DeepSpeed, of the file itself, of other consumers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.engines.deepspeed.rules import ALL_RULES, COMMUNICATION_RULES
from autotune.space.rule import Level


@dataclass(frozen=True, kw_only=True)
class FileRule:
    """Description of a rule that is not about what DeepSpeed reads."""

    says: str
    level: Level
    source: str
    """Source of the rule in the consumer's code."""


FILE_RULES: Mapping[str, FileRule] = {
    name: FileRule(**row)
    for name, row in json.loads(
        Path(__file__).with_name("file_rules.json").read_text(encoding="utf-8")
    ).items()
}
"""Rules about the file itself, and about consumers other than DeepSpeed."""


def rule_names() -> list[str]:
    """Every rule that `check` knows, in the order in which they are documented."""
    shared = (rule.name for rule in COMMUNICATION_RULES)
    return [*(rule.name for rule in ALL_RULES), *shared, *FILE_RULES]


def no_such_rule(name: str, *, where: str = "") -> JobError:
    """The error for a name, or a pattern, that fits no rule."""
    hint = did_you_mean(name, rule_names())
    return JobError(
        f"{where}{': ' if where else ''}{name} is no rule",
        f"{hint}`autotune rule` lists them all",
    )
