"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is a row of rules.json, the arguments of `layout_rule`; one that calculates names a function
of `conditions` under `allows`. A row with `each` is a rule for each of some knobs: `{knob}` stands
for the knob, `{value}` for what `each` has for it.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.data import table_beside
from autotune.engines.megatron import conditions
from autotune.engines.megatron.layout_rule import layout_rule
from autotune.engines.megatron.layout_task import LayoutRows
from autotune.space.rule import Rule

_ROWS: list[dict[str, Any]] = table_beside(__file__, "rules.json")
_EACH = {row["name"]: row["each"] for row in _ROWS if "each" in row}
ON_GPU_ALONE: list[str] = _EACH["{knob}.gpu"]
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE: Mapping[str, str] = _EACH["{knob}.transformer_engine"]
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
OF_SOME_RELEASES: Mapping[str, str] = _EACH["{knob}.release"]
"""Knob -> its flag, where not every release has it that is known."""


def _rules() -> Iterator[Rule[LayoutRows]]:
    for row in _ROWS:
        each = row.get("each", {"": ""})
        for knob in each:
            value = each[knob] if isinstance(each, Mapping) else ""
            entries: dict[str, Any] = {
                entry: text.replace("{knob}", knob).replace("{value}", value)
                for entry, text in row.items()
                if entry != "each"
            }
            if "allows" in entries:
                entries["allows"] = vars(conditions)[f"_{entries['allows']}"]
            yield layout_rule(**entries)


RULES = tuple(_rules())
