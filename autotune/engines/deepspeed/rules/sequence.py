"""Sequence parallelism (Ulysses): what the training script can split, and what it runs with.

Stages 0 to 3, offload, recomputation, LoRA, fp16 and bf16 train the losses and gradients of the
whole model (DeepSpeed 0.19.8, SGD without clipping: tests/trial/test_split_real.py).
"""

from autotune.engines.deepspeed.rules.base import Setup, zero
from autotune.engines.deepspeed.rules.dtypes import uses_bf16_optimizer
from autotune.space.rule import Finding, rule

_KEY = "sequence_parallel_size"
_SINCE = "0.18.2"


@rule("ulysses_sp.py: register_with_transformers (no such file before 0.17.0); DeepSpeed PR 7638")
def _release(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or setup.is_at_least(_SINCE):
        return None
    return Finding(
        message=f"sp={setup.sp_by_script}: DeepSpeed {setup.version} lacks Ulysses for built "
        f"models and samples of any length ({_SINCE} has it)",
        advice=f"set sp to 1, or install deepspeed>={_SINCE}",
    )


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


@rule(
    "runtime/config.py: where zero.Init reads the world without the script's groups; "
    "the engine itself goes by the groups alone",
    consequence="ignored",
)
def _degree(setup: Setup) -> Finding | None:
    sp, size = setup.sp_by_script, setup.ds_config.get(_KEY, 1)
    if sp == 1 or (size == sp and setup.ds_config.get("data_parallel_size") is None):
        return None
    return Finding(
        message=f"the script splits sequences over {sp} ranks, the configuration has "
        f"{_KEY}={size} and data_parallel_size={setup.ds_config.get('data_parallel_size')}",
        changes={_KEY: sp, "data_parallel_size": None},
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


@rule("ulysses_sp.py: register_with_transformers")
def _attention(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or setup.attention != "eager":
        return None
    return Finding(
        message=f"sp={setup.sp_by_script} with attention=eager, which needs the mask that is "
        "dropped where sequences are split",
        advice="set attention to sdpa",
    )


@rule("ulysses_sp.py: uattn_wrapper drops the mask; autotune/job/model_families.py")
def _model(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or setup.supports_sp:
        return None
    return Finding(
        message=f"sp={setup.sp_by_script}: Ulysses is not known to split this model right "
        "(architectures that it trains as the whole model does: llama, mistral, mixtral, qwen2, "
        "qwen3, olmo2; a window of attention would be dropped)",
        advice="set sp to 1",
    )


@rule("runtime/engine.py: _configure_tensor_parallel_states puts its own mpu in place")
def _other_splits(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or setup.tp * setup.pp == 1:
        return None
    name, degree = ("tp", setup.tp) if setup.tp > 1 else ("pp", setup.pp)
    return Finding(
        message=f"sp={setup.sp_by_script} with {name}={degree}: DeepSpeed takes one set of groups "
        "from the script, those of Ulysses or others",
        advice=f"set sp or {name} to 1",
    )


@rule(
    "utils/bwc.py: bwc_tensor_model_parallel_rank; parallel_state_sp.py: get_model_parallel_rank"
)
def _bf16_optimizer(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or not uses_bf16_optimizer(setup):
        return None
    return Finding(
        message=f"sp={setup.sp_by_script} at stage 1 in bf16 with data_types.grad_accum_dtype="
        "fp32: DeepSpeed's BF16_Optimizer takes the ranks that share a sample for parts of the "
        "model, and leaves the gradients of all but the first out of their norm",
        changes={"data_types": {"grad_accum_dtype": None}},
    )


@rule("runtime/zero/stage3.py: __reduce_and_partition_ipg_grads; tests/trial/test_split_real.py")
def _not_scattered(setup: Setup) -> Finding | None:
    if setup.sp_by_script == 1 or setup.stage != 3 or setup.zero.get("reduce_scatter", True):
        return None
    return Finding(
        message=f"sp={setup.sp_by_script} at stage 3 with reduce_scatter=false: DeepSpeed divides "
        "gradients that fit into a bucket by the data-parallel ranks and larger ones by all",
        changes=zero(reduce_scatter=None),
    )


def _divisor(setup: Setup, heads: int) -> str:
    fits = max(d for d in range(1, setup.sp_by_script) if heads % d == 0 and setup.world % d == 0)
    return f"set sp to {fits}"
