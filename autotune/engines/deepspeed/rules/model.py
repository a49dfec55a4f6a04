"""The model: how long its sequences may be, and which of its layers can recompute."""

import re
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

_EVERY = re.compile(r"every_(\d{1,9})")


@rule("autotune/trial/scripts/train.py: layers 0, K, 2K, ...", consequence="ignored")
def _recompute_every(setup: Setup) -> Finding | None:
    if setup.recompute in ("none", "full"):
        return None
    match = _EVERY.fullmatch(setup.recompute)
    if match is None:
        return finding("no_recompute", recompute=setup.recompute)
    every = int(match[1])
    if every < 2:
        return finding("recompute_every_layer", recompute=setup.recompute, every=every)
    layers = setup.model.n_layers if setup.model is not None else 0
    if not layers or every <= layers:
        return None
    what = "the first layer alone" if setup.pp == 1 else "a whole stage at once"
    facts: dict[str, Any] = {"recompute": setup.recompute, "every": every, "layers": layers}
    other = "full" if layers == 1 else f"every_{layers}"
    return finding("recompute_beyond", what=what, other=other, **facts)
