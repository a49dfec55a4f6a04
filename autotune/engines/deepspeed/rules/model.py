"""The model: how long its sequences may be, and which of its layers can recompute."""

import re

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule

_EVERY = re.compile(r"every_(\d{1,9})")


@rule("learned position embeddings are a table with one row per position")
def _seq_len(setup: Setup) -> Finding | None:
    longest = setup.model.max_seq_len if setup.model is not None else None
    if setup.seq_len is None or longest is None or setup.seq_len <= longest:
        return None
    return Finding(
        message=f"seq_len={setup.seq_len} is longer than the model's {longest} positions",
        advice=f"set seq_len to {longest} or less",
    )


@rule("transformers: gradient_checkpointing_enable")
def _recompute_unsupported(setup: Setup) -> Finding | None:
    if setup.recompute == "none" or setup.supports_recompute:
        return None
    return Finding(
        message=f"recompute={setup.recompute}: this model has no switch for it",
        advice="set recompute to none",
    )


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


@rule("runtime/activation_checkpointing/offload_activations.py")
def _inputs_on_host(setup: Setup) -> Finding | None:
    if setup.offload_activations == "none" or setup.is_at_least("0.19.8"):
        return None
    return Finding(
        message=f"offload.activations=cpu: DeepSpeed has it since 0.19.8, this is {setup.version}",
        advice="install deepspeed 0.19.8, or set offload.activations to none",
    )
