"""How a rule of layouts is made: a condition on whole columns, and what it says of one layout."""

import re
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from autotune.engines.megatron.layout_task import LayoutRows, LayoutTask, Truth
from autotune.space.rule import Finding, Rule, UnknownFactError

CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
ARGUMENTS = "megatron/training/arguments.py, validate_args"
_NAMED_VALUE = re.compile(r"\b(\w+) \{\1\}")
_VALUE = re.compile(r"\{(\w+)\}")


def layout_rule(
    name: str,
    holds: Callable[..., Any],
    message: str,
    fix: str,
    source: str,
    *,
    undoes: tuple[str, ...] = (),
) -> Rule[LayoutRows]:
    """A rule on whole columns.

    `holds` says which layouts are allowed; its parameters name the fields of the task and the
    columns that it gets. In `message` (which values clash) and `fix` (the nearest change that
    makes it legal), `{tp}` stands for a value of the layout or of the task. `undoes` names the
    knobs that a launch leaves out for it, or one module of `recompute_modules`.
    """
    wanted = tuple(signature(holds).parameters)

    def answer(rows: LayoutRows) -> Truth:
        known = {**vars(rows.task), **rows.columns}
        if unknown := set(wanted) - known.keys():
            raise UnknownFactError(", ".join(sorted(unknown)))
        found: Truth = holds(*(known[column] for column in wanted))
        return found

    def check(rows: LayoutRows) -> Finding | None:
        if answer(rows)[0]:
            return None
        facts = {**vars(rows.task), **rows.row(0)}
        text = fix.format_map(facts)
        changes = dict.fromkeys(undoes)
        return Finding(
            message=message.format_map(facts),
            changes=changes,
            words=text if changes else "",
            advice="" if changes else text,
        )

    reads = tuple(column for column in wanted if column not in LayoutTask.__dataclass_fields__)
    return Rule(
        name=name,
        check=check,
        source=source,
        says=_in_general(f"{message}. Fix: {fix}."),
        reads=reads,
        holds=answer,
    )


def _in_general(text: str) -> str:
    """A message without a layout's values: `tp {tp}` is `tp`, `{tp} ranks` is `tp ranks`."""
    return _VALUE.sub(r"\1", _NAMED_VALUE.sub(r"\1", text))


def with_parameters(holds: Callable[..., Truth], *names: str) -> Callable[..., Truth]:
    """A function under other names of its parameters, by which a rule finds its values."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    named = [Parameter(name, kind) for name in names]
    holds.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return holds
