"""The keys of a ds_config: what DeepSpeed reads, which values it takes, and since when.

`keys.json` is recorded by `make keys`, release by release (`releases.READ`); a test compares it
with the installed one, and `make versions` with those in `releases.TRIED`. `absent_through` names
the last release read that lacks a key, so one between two is given the benefit of the doubt.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.rules.values import Check, Section, key_of

_TABLE: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("keys.json").read_text(encoding="utf-8")
)

SPELLINGS: Mapping[str, str] = _TABLE["zero_optimization"]["spellings"]
"""Second spelling of a `zero_optimization` key -> the first: pydantic's field name and alias."""

DEPRECATED: Mapping[str, str] = _TABLE["zero_optimization"]["deprecated"]
"""Deprecated key of `zero_optimization` -> the one that replaces it."""

_ODD = frozenset(
    {
        *("cpu_offload_use_pin_memory", "bfloat16", *DEPRECATED, *SPELLINGS),
        *("tensorboard", "csv_monitor", "wandb", "comet"),
        *("data_efficiency", "datastates_ckpt", "checkpoint", "hybrid_engine"),
    }
)
"""Deprecated keys, second spellings, and sections that rules look into which the search need not
ask."""


def _section(row: Mapping[str, Any]) -> Section:
    keys = {name: key_of(key_row) for name, key_row in row["keys"].items()}
    keys |= {second: keys[first] for second, first in row.get("spellings", {}).items()}
    return Section(
        keys=keys, strict=row.get("strict", False), strict_from=row.get("strict_from", "")
    )


SECTIONS: Mapping[str, Section] = {path: _section(row) for path, row in _TABLE.items()}
"""Dotted path of a section -> its keys; the empty path is the whole file. Sections that are not
here (`pipeline`, `datastates_ckpt`, what a curriculum holds, ...) are not looked into."""


@lru_cache(maxsize=64)
def plain_keys(version: str) -> Mapping[str, Mapping[str, Check]]:
    """Section -> key -> check, of the keys that a release reads under this name alone."""
    return {
        path: {
            name: key.accepts
            for name, key in section.keys.items()
            if name not in _ODD and not key.is_removed(version) and not key.is_missing(version)
        }
        for path, section in SECTIONS.items()
    }
