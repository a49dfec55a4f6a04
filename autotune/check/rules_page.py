"""A rule for people: `autotune rule NAME`, and its section in the page of the site.

It is told by its witnesses: the part of a configuration that breaks it, what `check` says of that,
what DeepSpeed does with it, and what it becomes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from autotune.base.nested import merge
from autotune.check.ignored import MEGATRON_PREFIX
from autotune.check.rule_list import no_such_rule, rule_names
from autotune.engines.deepspeed.rules import ALL_RULES, COMMUNICATION_RULES, Rule
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.plain import setup_of
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from autotune.engines.deepspeed.rules.witnesses import Case, Witness, witnesses_of
from autotune.engines.deepspeed.sources.file_rules import FILE_RULES, FileRule
from autotune.space.rule import Finding, Level

_MOST_EXAMPLES = 4
"""Most witnesses of a rule that are shown; the others break it in the same way."""

_UNWITNESSED = "Arithmetic alone decides it, so there is no example."

_DOES = {
    "raised": "DeepSpeed {version} ends with an exception",
    "differs": "DeepSpeed {version} runs something other than the file says",
    "ignored": "DeepSpeed {version} runs as if the value were not there",
    "converted": "DeepSpeed {version} takes the value for the one that is meant",
}


@dataclass(frozen=True, kw_only=True)
class RuleExample:
    """A witness, as people read it."""

    broken: Mapping[str, Any]
    """The part of the configuration that breaks the rule; a key at null is left out."""
    also: Mapping[str, Any]
    """Further conditions of the case: ranks, a layout, a precision."""
    says: str
    """The message of `check` about it; empty where it depends on the training script."""
    fix: str
    does: str
    """The engine's reaction to it."""
    mended: Mapping[str, Any] | None
    """The same part once it is legal; None where it is something else that changes."""


@dataclass(frozen=True, kw_only=True)
class RulePage:
    """Description of a rule."""

    name: str
    level: Level
    source: str
    """Source of the rule in the engine's code."""
    says: str
    """Its subject, where it has no examples."""
    examples: Sequence[RuleExample]


def page_of(name: str) -> RulePage:
    """The description of one rule.

    What refuses a layout of Megatron's names its rule without `megatron.`.

    Raises:
        JobError: There is no such rule.
    """
    if (one := _described(name).get(name)) is not None:
        return RulePage(name=name, level=one.level, source=one.source, says=one.says, examples=())
    shared = next((rule for rule in COMMUNICATION_RULES if rule.name == name), None)
    if shared is not None:
        return RulePage(
            name=name, level="error", source=shared.source, says=shared.says, examples=()
        )
    rule = next((rule for rule in ALL_RULES if rule.name == name), None)
    if rule is None:
        if (as_refused := f"{MEGATRON_PREFIX}{name}") in all_names():
            return page_of(as_refused)
        raise no_such_rule(name)
    witnesses = witnesses_of(rule.name)
    says = "" if witnesses else _UNWITNESSED
    if (of_megatron := f"{MEGATRON_PREFIX}{name}") in all_names():
        says = f"{says} Megatron's rule of this name is `{of_megatron}`.".strip()
    return RulePage(
        name=name,
        level=_level(rule, witnesses),
        source=rule.source,
        says=says,
        examples=[_example(rule, witness) for witness in witnesses[:_MOST_EXAMPLES]],
    )


def markdown_of(page: RulePage) -> str:
    """One section of the page."""
    lines = [f"## {page.name}", "", f"Level: {page.level}. Source: {page.source}.", ""]
    if page.says:
        lines += [page.says, ""]
    for example in page.examples:
        lines += [*_example_lines(example), ""]
    return "\n".join(lines)


def summary_of(name: str) -> str:
    """What a rule says, in a line."""
    page = page_of(name)
    says = next((one.says for one in page.examples if one.says), page.says) or page.source
    return says.partition(". ")[0]


def all_names() -> list[str]:
    """Names of all rules, of DeepSpeed's and of Megatron's."""
    from autotune.check.megatron import megatron_rules  # brings NumPy

    return [*rule_names(), *megatron_rules()]


def _described(name: str) -> Mapping[str, FileRule]:
    """The rules without examples among which a name is, if it is one of theirs."""
    if not name.startswith(MEGATRON_PREFIX):
        return FILE_RULES
    from autotune.check.megatron import megatron_rules  # brings NumPy

    return megatron_rules()


def _example_lines(example: RuleExample) -> Iterator[str]:
    yield f"```json\n{json.dumps(example.broken, indent=2)}\n```"
    yield ""
    if example.also:
        yield f"- with: {', '.join(f'{name} {value}' for name, value in example.also.items())}"
    if example.says:
        yield f"- `check` says: {example.says}"
    yield f"- {example.does}"
    if example.fix:
        yield f"- fix: {example.fix}"
    if example.mended is not None:
        yield f"- legal: `{json.dumps(example.mended)}`"


def _example(rule: Rule[Setup], witness: Witness) -> RuleExample:
    case, version = witness.broken, witness.deepspeed or NEWEST_READ
    found = rule.findings(setup_of(case, version=version))
    mended = _mended(witness, found)
    does = _DOES[witness.consequence].format(version=version)
    return RuleExample(
        broken=case.ds_config,
        also=_also(case),
        says="; ".join(finding.message for finding in found),
        fix="; ".join(filter(None, (one.fix for one in found))),
        does=does + (f": `{_readable(witness.raises)}`" if witness.raises else ""),
        mended=mended,
    )


def _mended(witness: Witness, found: Sequence[Finding]) -> Mapping[str, Any] | None:
    if witness.repaired is not None:
        same_around = _also(witness.repaired) == _also(witness.broken)
        return witness.repaired.ds_config if same_around else None
    after: Mapping[str, Any] = witness.broken.ds_config
    for finding in found:
        after = merge(after, finding.changes)
    return after


def _also(case: Case) -> dict[str, Any]:
    """Fields of a case that are not the plain one's; it always runs on two ranks at least."""
    plain = {one.name: one.default if one.default is not MISSING else {} for one in fields(Case)}
    values = {name: getattr(case, name) for name in plain if name != "ds_config"}
    return {
        name.replace("_", " "): value for name, value in values.items() if value != plain[name]
    }


def _readable(pattern: str) -> str:
    r"""A pattern of an exception without what only machines need: `.*`, `\n`, escapes."""
    for machine, human in (("\n.*", ": "), ("\n", ": "), (".*", "..."), ("\\", "")):
        pattern = pattern.replace(machine, human)
    return pattern.strip()


def _level(rule: Rule[Setup], witnesses: Sequence[Witness]) -> Level:
    """The weight of what it says of its first witness; without one it is an error."""
    for witness in witnesses:
        setup = setup_of(witness.broken, version=witness.deepspeed or NEWEST_READ)
        for violation in rule.violations(setup):
            return violation.level
    return "error"
