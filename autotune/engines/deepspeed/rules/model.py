"""The model: how long its sequences may be, and which of its layers can recompute."""

import re

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule

_EVERY = re.compile(r"every_(\d{1,9})")


@rule("autotune/trial/scripts/train.py: layers 0, K, 2K, ...", consequence="ignored")
def _recompute_every(setup: Setup) -> Finding | None:
    if setup.recompute in ("none", "full"):
        return None
    match = _EVERY.fullmatch(setup.recompute)
    if match is None:
        return Finding(
            message=f"recompute={setup.recompute!r} is not none, full or every_K",
            advice="set recompute to none",
        )
    every = int(match[1])
    if every < 2:
        return Finding(
            message=f"recompute={setup.recompute}: K={every} is below 2",
            advice="set recompute to full",
        )
    layers = setup.model.n_layers if setup.model is not None else 0
    if not layers or every <= layers:
        return None
    return Finding(
        message=f"recompute={setup.recompute}: K={every} exceeds the model's {layers} layers, so "
        f"it means {'the first layer alone' if setup.pp == 1 else 'a whole stage at once'}",
        advice=f"set recompute to {'full' if layers == 1 else f'every_{layers}'}",
    )
