"""Sequence parallelism (Ulysses): what the training script can split, and what it runs with.

Stages 0 to 3, offload, recomputation, LoRA, fp16 and bf16 train the losses and gradients of the
whole model (DeepSpeed 0.19.8, SGD without clipping: tests/trial/test_split_real.py).
"""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule


@rule("parallel_state_sp.py: initialize_sequence_parallel")
def _world(setup: Setup) -> Finding | None:
    sp, size = setup.sp_by_script, setup.tp * setup.pp * setup.sp_by_script
    if sp == 1 or setup.world % size == 0 or setup.world % (setup.tp * setup.pp):
        return None
    return Finding(
        message=f"tp * pp * sp = {setup.tp} * {setup.pp} * {sp} = {size} does not divide the "
        f"world: {setup.world} % {size} = {setup.world % size}",
        advice="set sp to 1",
    )


@rule("ulysses_sp.py: UlyssesSPAttentionHF")
def _heads(setup: Setup) -> Finding | None:
    sp = setup.sp_by_script
    if sp == 1 or setup.model is None or setup.model.n_heads % sp == 0:
        return None
    heads = setup.model.n_heads
    return Finding(
        message=f"sp={sp} does not divide the model's {heads} heads: {heads} % {sp} = "
        f"{heads % sp}",
        advice=_divisor(setup, heads),
    )


@rule("ulysses_sp.py: UlyssesSPAttentionHF; fewer than sp are repeated")
def _kv_heads(setup: Setup) -> Finding | None:
    sp = setup.sp_by_script
    if sp == 1 or setup.model is None or _heads.check(setup):
        return None
    heads = setup.model.n_kv_heads
    if heads % sp == 0 or sp % heads == 0:
        return None
    return Finding(
        message=f"sp={sp} and the model's {heads} key and value heads: neither divides the other",
        advice=_divisor(setup, heads),
    )


@rule("ulysses_sp.py: UlyssesSPDataLoaderAdapter.refill; autotune/trial/scripts/train.py")
def _length(setup: Setup) -> Finding | None:
    sp = setup.sp_by_script
    if sp == 1 or setup.seq_len is None or setup.seq_len % sp == 0:
        return None
    return Finding(
        message=f"sp={sp} does not divide seq_len={setup.seq_len}: {setup.seq_len} % {sp} = "
        f"{setup.seq_len % sp}",
        advice=f"set seq_len to {setup.seq_len - setup.seq_len % sp}",
    )


def _divisor(setup: Setup, heads: int) -> str:
    fits = max(d for d in range(1, setup.sp_by_script) if heads % d == 0 and setup.world % d == 0)
    return f"set sp to {fits}"
