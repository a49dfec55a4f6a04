"""Every rule of `check` by its name: of DeepSpeed, of the file itself, of other consumers."""

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.engines.deepspeed.rules import ALL_RULES, COMMUNICATION_RULES
from autotune.engines.deepspeed.sources.file_rules import FILE_RULES


def rule_names() -> list[str]:
    """Every rule that `check` knows, in the order in which they are documented."""
    shared = (rule.name for rule in COMMUNICATION_RULES)
    return [*(rule.name for rule in ALL_RULES), *shared, *FILE_RULES]


def no_such_rule(name: str, *, where: str = "") -> JobError:
    """The error for a name, or a pattern, that fits no rule."""
    of_group = [rule for rule in rule_names() if rule.startswith(f"{name.rstrip('.*')}.")]
    hint = did_you_mean(name, of_group or rule_names())
    return JobError(
        f"{where}{': ' if where else ''}{name} is no rule",
        f"{hint}`autotune rule` lists them all",
    )
