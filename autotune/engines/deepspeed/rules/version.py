"""What the installed release of DeepSpeed no longer has, or not yet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.base.nested import merge
from autotune.engines.deepspeed.rules.adam import CPU_ADAM, params_of
from autotune.engines.deepspeed.rules.base import Case, Setup, Witness, as_section, patch, raised
from autotune.engines.deepspeed.rules.keys import SECTIONS, missing_keys, removed_keys
from autotune.engines.deepspeed.rules.nvme import SWAPPED_MODEL, swapped
from autotune.engines.deepspeed.rules.parallel import autotp_size
from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.engines.deepspeed.rules.sections import dotted, sections
from autotune.engines.deepspeed.rules.zenflow import STEP, zenflow_config
from autotune.space.rule import Finding, rule

_LAMB_PARAMS = (
    *("lr", "bias_correction", "betas", "eps", "eps_inside_sqrt", "weight_decay"),
    *("max_grad_norm", "max_coeff", "min_coeff", "amsgrad"),
)
"""Parameters of FusedLamb (ops/lamb/fused_lamb.py)."""

REMOVED_OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "onebitadam": ("AdamW", params_of("FusedAdam")),
    "zerooneadam": ("AdamW", params_of("FusedAdam")),
    "onebitlamb": ("Lamb", _LAMB_PARAMS),
}
"""Optimizer -> the one without compression that takes its place, and the parameters of that. Both
1-bit Adams decay weights as AdamW does (0.19.6, runtime/fp16/onebit)."""
_OPTIMIZERS_REMOVED_IN = "0.19.7"
AUTOTP_BY_CONFIG_SINCE = "0.18.6"
AUTOTP_AT_STAGE_3_SINCE = "0.19.4"
_AUTOTP_UNEVEN_SINCE = "0.19.7"
PLAIN_BF16_SINCE = "0.17.6"
_FP16_MASTERS_SINCE = "0.18.3"
_ZENFLOW_SUPPORTED_SINCE = "0.19.4"
_CPU_PINS_SINCE = "0.19.6"
_KEPT_IN_MEMORY = 1_000_000_000
"""Elements that stay in memory where `offload_param.max_in_cpu` is not set."""
_FLAT_BUFFER_BROKEN_IN, _FLAT_BUFFER_MENDED_IN = "0.18.7", "0.19.0"


_BF16 = {"bf16": {"enabled": True}}
_FP16 = {
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
    **CPU_ADAM,
    "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
}


def _optimizer(kind: str) -> dict[str, Any]:
    return {"optimizer": {"type": kind}}


@rule(
    "version.removed_key",
    "runtime/config.py:80-141, DeepSpeed issue 8489",
    *(
        raised(
            f"DeepSpeedConfigError: .*{'has been' if not path else name}",
            {path: {"stage": 3, name: 1}} if path else {name: {"enabled": False}},
            {path: {name: None}} if path else {name: None},
        )
        for path, section in SECTIONS.items()
        for name, key in section.keys.items()
        if key.removed_in
    ),
)
def _removed_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    gone = removed_keys(version)
    told = []
    changes: dict[str, Any] = {}
    for path, content, section in sections(setup.ds_config) if gone else ():
        for name in gone.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            told.append(f"{dotted(path, name)} is gone since {key.removed_in}: {key.why_removed}")
            changes = merge(changes, patch(path, {name: None}))
    if not told:
        return None
    return Finding(
        message=f"refused by DeepSpeed {version}, whatever the value: {'; '.join(sorted(told))}",
        changes=changes,
    )


@rule(
    "version.missing_key",
    "the same fields, read off the releases that keys.py names",
    Witness(
        broken=Case(ds_config={"zero_optimization": {"stage": 1, "parameter_alignment": True}}),
        repaired=Case(ds_config={"zero_optimization": {"stage": 1}}),
        consequence="raised",
        raises="Extra inputs are not permitted",
        deepspeed="0.19.6",
    ),
)
def _missing_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    missing = missing_keys(version)
    told, raises = [], False
    changes: dict[str, Any] = {}
    for path, content, section in sections(setup.ds_config) if missing else ():
        for name in missing.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            what = "raises on it" if section.is_strict(version) else "ignores it"
            told.append(
                f"{dotted(path, name)} is not known to DeepSpeed {key.absent_through} and before, "
                f"{version} {what}"
            )
            changes = merge(changes, patch(path, {name: None}))
            raises = raises or section.is_strict(version)
    if not told:
        return None
    return Finding(
        message="; ".join(sorted(told)),
        changes=changes,
        advice="or install a newer DeepSpeed",
        consequence="raised" if raises else "ignored",
    )


def is_removed(deepspeed_version: str) -> bool:
    """Whether a release of DeepSpeed has none of `REMOVED_OPTIMIZERS` any more."""
    return is_at_least(deepspeed_version, _OPTIMIZERS_REMOVED_IN)


@rule(
    "version.removed_optimizer",
    "runtime/engine.py:2018",
    *(
        raised(
            f"AssertionError: {kind} is not a supported DeepSpeed Optimizer",
            _optimizer(kind),
            _optimizer("AdamW"),
        )
        for kind in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
    ),
)
def _removed_optimizer(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.optimizer not in REMOVED_OPTIMIZERS:
        return None
    if not is_removed(version):
        return None
    message = (
        f"optimizer.type={setup.section('optimizer')['type']} is gone from DeepSpeed "
        f"{_OPTIMIZERS_REMOVED_IN} on; this is {version}"
    )
    heir, known = REMOVED_OPTIMIZERS[setup.optimizer]
    if heir == "Lamb" and setup.environment.accelerator == "cpu":
        return Finding(message=message, advice="choose another optimizer.type, such as AdamW")
    params = dict.fromkeys(name for name in setup.optimizer_params if name not in known)
    changes = {"type": heir, "params": params} if params else {"type": heir}
    return Finding(message=message, changes={"optimizer": changes})


@rule(
    "version.autotp_by_script",
    "__init__.py of 0.16.9 and 0.17.6: only tp_model_init splits; DeepSpeed PR 7806",
    Witness(
        # A GPU goes on and trains the whole model (read, not run); CPU ranks get no
        # further than the comparison of their inputs.
        broken=Case(ds_config={"tensor_parallel": {"autotp_size": 2}}, tp=2),
        repaired=Case(),
        consequence="raised",
        raises="RuntimeError: Invalid device string: '0'",
        deepspeed="0.16.9",
    ),
)
def _autotp_by_script(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size = max(setup.tp, autotp_size(setup.ds_config))
    if size == 1 or is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    return Finding(
        message=f"tensor_parallel.autotp_size={size}: DeepSpeed {version} does not split a model "
        f"by its configuration ({AUTOTP_BY_CONFIG_SINCE} and later do; before, only a script that "
        f"calls deepspeed.tp_model_init): {size} GPUs would each train the whole model on the "
        "same data, CPU ranks fail in the first step",
        advice=f"set tp to 1, or install deepspeed>={AUTOTP_BY_CONFIG_SINCE}",
    )


@rule(
    "version.autotp_at_stage_3",
    "runtime/engine.py:514 of 0.18.9: _configure_tensor_parallel_states",
    replace(
        raised(
            "AssertionError: .*compatibility between 'autotp' and 'zero_stage = 3'",
            {
                "tensor_parallel": {"autotp_size": 2},
                "zero_optimization": {"stage": 3},
            },
            {"zero_optimization": {"stage": 2}},
            tp=2,
        ),
        deepspeed="0.18.9",
    ),
)
def _autotp_at_stage_3(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size = autotp_size(setup.ds_config)
    if size == 1 or setup.stage != 3 or is_at_least(version, AUTOTP_AT_STAGE_3_SINCE):
        return None
    if not is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    return Finding(
        message=f"tensor_parallel.autotp_size={size} at stage 3: DeepSpeed {version} takes tensor "
        f"parallelism at stages 0 to 2 ({AUTOTP_AT_STAGE_3_SINCE} and later at 3 too)",
        changes={"zero_optimization": {"stage": 2}},
        advice=f"or install deepspeed>={AUTOTP_AT_STAGE_3_SINCE}",
    )


@rule(
    "version.autotp_uneven_heads",
    "module_inject/layers.py of 0.18.9, 0.19.6; DeepSpeed PR 8185",
    Witness(
        broken=Case(
            ds_config={"tensor_parallel": {"autotp_size": 2}},
            tp=2,
            model={"n_kv_heads": 1},
        ),
        repaired=Case(model={"n_kv_heads": 1}),
        consequence="raised",
        raises="RuntimeError: shape .* is invalid for input of size",
        deepspeed="0.18.9",
    ),
)
def _autotp_uneven_heads(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size, model = autotp_size(setup.ds_config), setup.model
    if size == 1 or model is None or is_at_least(version, _AUTOTP_UNEVEN_SINCE):
        return None
    if not is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    if model.n_heads % size == 0 and model.n_kv_heads % size == 0:
        return None
    return Finding(
        message=f"tensor_parallel.autotp_size={size} does not divide {model.n_heads} heads and "
        f"{model.n_kv_heads} key-value heads: DeepSpeed {version} splits no head "
        f"({_AUTOTP_UNEVEN_SINCE} and later give ranks unequal numbers of them)",
        advice=f"choose a tp that divides them, or install deepspeed>={_AUTOTP_UNEVEN_SINCE}",
    )


@rule(
    "version.bf16_without_zero",
    "runtime/engine.py:1041, 1370 of 0.16.9; DeepSpeed PR 7515",
    Witness(
        broken=Case(ds_config=_BF16, precision="bf16"),
        repaired=Case(ds_config=_BF16 | {"zero_optimization": {"stage": 1}}, precision="bf16"),
        consequence="differs",
        reads={"wrapper": "BF16_Optimizer"},
        deepspeed="0.16.9",
    ),
)
def _bf16_without_zero(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.dtype != "bf16" or setup.stage or is_at_least(version, PLAIN_BF16_SINCE):
        return None
    return Finding(
        message=f"bf16 at stage 0: DeepSpeed {version} shards the optimizer states all the same "
        f"(its BF16_Optimizer; {PLAIN_BF16_SINCE} and later do not)",
        changes={"zero_optimization": {"stage": 1}},
        advice=f"or install deepspeed>={PLAIN_BF16_SINCE}",
    )


@rule(
    "version.flat_buffer_on_cpu",
    "runtime/zero/stage_1_and_2.py:413 of 0.18.9; DeepSpeed PR 7828, mended by 7948",
    replace(
        raised(
            "RuntimeError: Output 0 of Split.* is a view and is being modified inplace",
            {"zero_optimization": {"stage": 1}},
            {"zero_optimization": {"stage": 0}},
        ),
        deepspeed="0.18.9",
    ),
)
def _flat_buffer_on_cpu(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.environment.accelerator != "cpu" or setup.stage not in (1, 2) or setup.dp == 1:
        return None
    if not is_at_least(version, _FLAT_BUFFER_BROKEN_IN):
        return None
    if is_at_least(version, _FLAT_BUFFER_MENDED_IN):
        return None
    return Finding(
        message=f"stage {setup.stage} over {setup.dp} CPU ranks: DeepSpeed "
        f"{_FLAT_BUFFER_BROKEN_IN} and later fail in the first step there, until "
        f"{_FLAT_BUFFER_MENDED_IN} (this is {version})",
        advice="set zero_optimization.stage to 0 or 3, or install "
        f"deepspeed>={_FLAT_BUFFER_MENDED_IN}",
    )


@rule(
    "version.param_nvme_on_cpu",
    "runtime/swap_tensor/utils.py:100 of 0.18.6; accelerator/cpu_accelerator.py",
    replace(
        raised(
            "AssertionError",
            swapped("offload_param", max_in_cpu=0),
            {"zero_optimization": {"offload_param": {"max_in_cpu": None}}},
            model=SWAPPED_MODEL,
        ),
        deepspeed="0.16.9",
    ),
)
def _param_nvme_on_cpu(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    section = as_section(setup.zero.get("offload_param"))
    if setup.environment.accelerator != "cpu" or setup.stage != 3:
        return None
    if section.get("device") != "nvme" or is_at_least(version, _CPU_PINS_SINCE):
        return None
    kept = section.get("max_in_cpu", _KEPT_IN_MEMORY)
    n_params = setup.model.n_params if setup.model is not None else 1
    if n_params <= kept * setup.dp:
        return None  # no parameter leaves the memory
    return Finding(
        message=f"zero_optimization.offload_param.device=nvme with max_in_cpu={kept:.0f} on CPU "
        f"ranks: DeepSpeed {version} swaps parameters from pinned memory alone, which CPU ranks "
        f"have from {_CPU_PINS_SINCE} on",
        changes={"zero_optimization": {"offload_param": {"max_in_cpu": None}}}
        if n_params <= _KEPT_IN_MEMORY * setup.dp
        else {"zero_optimization": {"offload_param": None}},
        advice=f"or install deepspeed>={_CPU_PINS_SINCE}",
    )


@rule(
    "version.zenflow_untested",
    "runtime/zero/utils.py of 0.18.6, 0.19.0 and 0.19.4: ZERO_SUPPORTED_OPTIMIZERS",
    replace(
        raised(
            "AssertionError: You are using an untested ZeRO Optimizer",
            zenflow_config(2, STEP),
            {"zero_optimization": {"zenflow": None}},
        ),
        deepspeed="0.18.6",
    ),
)
def _zenflow_untested(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if not as_section(setup.zero.get("zenflow")) or setup.stage == 0:
        return None
    if setup.ds_config.get("zero_allow_untested_optimizer") is True:
        return None
    if is_at_least(version, _ZENFLOW_SUPPORTED_SINCE):
        return None
    return Finding(
        message=f"zero_optimization.zenflow: DeepSpeed {version} does not count ZenFlow's own "
        f"optimizer among those that ZeRO supports ({_ZENFLOW_SUPPORTED_SINCE} and later do)",
        # Allowed by zero_allow_untested_optimizer, 0.18.6 trained to NaN in the second step.
        changes={"zero_optimization": {"zenflow": None}},
        advice=f"or install deepspeed>={_ZENFLOW_SUPPORTED_SINCE}",
    )


@rule(
    "version.fp16_masters",
    "runtime/config.py of 0.16.9: _do_error_check; DeepSpeed PR 7700",
    replace(
        raised(
            "AssertionError: Fp16_master_weights_and_grads is only supported with ZeRO",
            _FP16,
            {"fp16": {"fp16_master_weights_and_grads": None}},
            precision="fp16",
        ),
        deepspeed="0.16.9",
    ),
)
def _fp16_masters(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    asked = setup.section("fp16").get("fp16_master_weights_and_grads") is True
    if not asked or setup.dtype != "fp16" or setup.stage not in (1, 3):
        return None
    if is_at_least(version, _FP16_MASTERS_SINCE):
        return None
    return Finding(
        message=f"fp16.fp16_master_weights_and_grads at stage {setup.stage}: DeepSpeed {version} "
        f"has it at stage 2 alone ({_FP16_MASTERS_SINCE} and later at 1 and 3 too)",
        changes={"fp16": {"fp16_master_weights_and_grads": False}},
    )


KEY_RULES = (_removed_key, _missing_key)
"""Rules about keys: `autotune.engines.deepspeed.rules.sections.is_plain` answers for them."""
