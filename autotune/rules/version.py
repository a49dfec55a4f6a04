"""What the installed release of DeepSpeed no longer has, or not yet."""

from dataclasses import replace
from typing import Any

from autotune.rules.base import Case, Finding, Rule, Setup, Witness, raised
from autotune.rules.keys import SECTIONS, is_at_least, missing_keys, removed_keys
from autotune.rules.parallel import autotp_size
from autotune.rules.schema import sections

REMOVED_OPTIMIZERS = frozenset({"onebitadam", "zerooneadam", "onebitlamb"})
_OPTIMIZERS_REMOVED_IN = "0.19.7"
AUTOTP_BY_CONFIG_SINCE = "0.18.6"
AUTOTP_AT_STAGE_3_SINCE = "0.19.4"
_AUTOTP_UNEVEN_SINCE = "0.19.7"
PLAIN_BF16_SINCE = "0.17.6"
_FP16_MASTERS_SINCE = "0.18.3"
_FLAT_BUFFER_BROKEN_IN, _FLAT_BUFFER_MENDED_IN = "0.18.7", "0.19.0"


def _removed_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    gone = removed_keys(version)
    for path, content, section in sections(setup.ds_config) if gone else ():
        for name in gone.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            dotted = f"{path}.{name}" if path else name
            return (
                f"{dotted} is refused by DeepSpeed from {key.removed_in} on, whatever its value; "
                f"{version} is installed: {key.why_removed}",
                f"remove {dotted}",
            )
    return None


def _missing_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    missing = missing_keys(version)
    for path, content, section in sections(setup.ds_config) if missing else ():
        for name in missing.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            dotted = f"{path}.{name}" if path else name
            what = "raises on it" if section.is_strict(version) else "ignores it"
            return (
                f"{dotted} is not known to DeepSpeed {key.absent_through} and before; {version} "
                f"is installed and {what}",
                f"remove {dotted}, or install a DeepSpeed newer than {key.absent_through}",
            )
    return None


def _removed_optimizer(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.optimizer not in REMOVED_OPTIMIZERS:
        return None
    if not is_at_least(version, _OPTIMIZERS_REMOVED_IN):
        return None
    return (
        f"optimizer.type={setup.section('optimizer')['type']} is gone from DeepSpeed "
        f"{_OPTIMIZERS_REMOVED_IN} on; {version} is installed",
        "set optimizer.type to AdamW",
    )


def _autotp_by_script(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size = max(setup.tp, autotp_size(setup))
    if size == 1 or is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    return (
        f"tensor_parallel.autotp_size={size}: DeepSpeed {version} does not split a model by its "
        f"configuration ({AUTOTP_BY_CONFIG_SINCE} and later do; before, only a script that calls "
        f"deepspeed.tp_model_init): {size} GPUs would each train the whole model on the same "
        "data, CPU ranks fail in the first step",
        f"remove tensor_parallel, or install deepspeed>={AUTOTP_BY_CONFIG_SINCE}",
    )


def _autotp_at_stage_3(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size = autotp_size(setup)
    if size == 1 or setup.stage != 3 or is_at_least(version, AUTOTP_AT_STAGE_3_SINCE):
        return None
    if not is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    return (
        f"tensor_parallel.autotp_size={size} at stage 3: DeepSpeed {version} takes tensor "
        f"parallelism at stages 0 to 2 ({AUTOTP_AT_STAGE_3_SINCE} and later at 3 too)",
        f"set zero_optimization.stage to 2, or install deepspeed>={AUTOTP_AT_STAGE_3_SINCE}",
    )


def _autotp_uneven_heads(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    size, model = autotp_size(setup), setup.model
    if size == 1 or model is None or is_at_least(version, _AUTOTP_UNEVEN_SINCE):
        return None
    if not is_at_least(version, AUTOTP_BY_CONFIG_SINCE):
        return None
    if model.n_heads % size == 0 and model.n_kv_heads % size == 0:
        return None
    return (
        f"tensor_parallel.autotp_size={size} does not divide {model.n_heads} heads and "
        f"{model.n_kv_heads} key-value heads: DeepSpeed {version} splits no head "
        f"({_AUTOTP_UNEVEN_SINCE} and later give ranks unequal numbers of them)",
        f"remove tensor_parallel, or install deepspeed>={_AUTOTP_UNEVEN_SINCE}",
    )


def _bf16_without_zero(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.dtype != "bf16" or setup.stage or is_at_least(version, PLAIN_BF16_SINCE):
        return None
    return (
        f"bf16 at stage 0: DeepSpeed {version} shards the optimizer states all the same (its "
        f"BF16_Optimizer; {PLAIN_BF16_SINCE} and later do not)",
        f"set zero_optimization.stage to 1, or install deepspeed>={PLAIN_BF16_SINCE}",
    )


def _fp16_masters(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    asked = setup.section("fp16").get("fp16_master_weights_and_grads") is True
    if not asked or setup.dtype != "fp16" or setup.stage not in (1, 3):
        return None
    if is_at_least(version, _FP16_MASTERS_SINCE):
        return None
    return (
        f"fp16.fp16_master_weights_and_grads at stage {setup.stage}: DeepSpeed {version} has it "
        f"at stage 2 alone ({_FP16_MASTERS_SINCE} and later at 1 and 3 too)",
        "set fp16.fp16_master_weights_and_grads to false",
    )


def _flat_buffer_on_cpu(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.environment.accelerator != "cpu" or setup.stage not in (1, 2) or setup.dp == 1:
        return None
    if not is_at_least(version, _FLAT_BUFFER_BROKEN_IN):
        return None
    if is_at_least(version, _FLAT_BUFFER_MENDED_IN):
        return None
    return (
        f"stage {setup.stage} over {setup.dp} CPU ranks: DeepSpeed {_FLAT_BUFFER_BROKEN_IN} and "
        f"later fail in the first step there, until {_FLAT_BUFFER_MENDED_IN} ({version} is "
        "installed)",
        f"set zero_optimization.stage to 0 or 3, or install deepspeed>={_FLAT_BUFFER_MENDED_IN}",
    )


_BF16 = {"bf16": {"enabled": True}}
_FP16 = {
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
    "optimizer": {"params": {"torch_adam": None}},
    "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
}


def _optimizer(kind: str) -> dict[str, Any]:
    return {"optimizer": {"type": kind}}


KEY_RULES = (
    Rule(
        name="version.removed_key",
        check=_removed_key,
        source="runtime/config.py:80-141, DeepSpeed issue 8489",
        witnesses=tuple(
            raised(
                f"DeepSpeedConfigError: .*{'has been' if not path else name}",
                {path: {"stage": 3, name: 1}} if path else {name: {"enabled": False}},
                {path: {name: None}} if path else {name: None},
            )
            for path, section in SECTIONS.items()
            for name, key in section.keys.items()
            if key.removed_in
        ),
    ),
    Rule(
        name="version.missing_key",
        check=_missing_key,
        source="the same fields, read off the releases that autotune.rules.keys names",
        witnesses=(
            Witness(
                broken=Case(
                    ds_config={"zero_optimization": {"stage": 1, "parameter_alignment": True}}
                ),
                repaired=Case(ds_config={"zero_optimization": {"stage": 1}}),
                consequence="raised",
                raises="Extra inputs are not permitted",
                deepspeed="0.19.6",
            ),
        ),
    ),
)
"""About keys: `autotune.rules.schema.is_plain` answers for them."""

RULES = (
    Rule(
        name="version.removed_optimizer",
        check=_removed_optimizer,
        source="runtime/engine.py:2018",
        witnesses=tuple(
            raised(
                f"AssertionError: {kind} is not a supported DeepSpeed Optimizer",
                _optimizer(kind),
                _optimizer("AdamW"),
            )
            for kind in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
        ),
    ),
    Rule(
        name="version.autotp_by_script",
        check=_autotp_by_script,
        source="__init__.py of 0.16.9 and 0.17.6: only tp_model_init splits; DeepSpeed PR 7806",
        witnesses=(
            Witness(
                # A GPU goes on and trains the whole model (read, not run); CPU ranks get no
                # further than the comparison of their inputs.
                broken=Case(ds_config={"tensor_parallel": {"autotp_size": 2}}, tp=2),
                repaired=Case(),
                consequence="raised",
                raises="RuntimeError: Invalid device string: '0'",
                deepspeed="0.16.9",
            ),
        ),
    ),
    Rule(
        name="version.autotp_at_stage_3",
        check=_autotp_at_stage_3,
        source="runtime/engine.py:514 of 0.18.9: _configure_tensor_parallel_states",
        witnesses=(
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
        ),
    ),
    Rule(
        name="version.autotp_uneven_heads",
        check=_autotp_uneven_heads,
        source="module_inject/layers.py of 0.18.9, 0.19.6; DeepSpeed PR 8185",
        witnesses=(
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
        ),
    ),
    Rule(
        name="version.bf16_without_zero",
        check=_bf16_without_zero,
        source="runtime/engine.py:1041, 1370 of 0.16.9; DeepSpeed PR 7515",
        witnesses=(
            Witness(
                broken=Case(ds_config=_BF16, precision="bf16"),
                repaired=Case(
                    ds_config=_BF16 | {"zero_optimization": {"stage": 1}}, precision="bf16"
                ),
                consequence="differs",
                reads={"wrapper": "BF16_Optimizer"},
                deepspeed="0.16.9",
            ),
        ),
    ),
    Rule(
        name="version.flat_buffer_on_cpu",
        check=_flat_buffer_on_cpu,
        source="runtime/zero/stage_1_and_2.py:413 of 0.18.9; DeepSpeed PR 7828, mended by 7948",
        witnesses=(
            replace(
                raised(
                    "RuntimeError: Output 0 of Split.* is a view and is being modified inplace",
                    {"zero_optimization": {"stage": 1}},
                    {"zero_optimization": {"stage": 0}},
                ),
                deepspeed="0.18.9",
            ),
        ),
    ),
    Rule(
        name="version.fp16_masters",
        check=_fp16_masters,
        source="runtime/config.py of 0.16.9: _do_error_check; DeepSpeed PR 7700",
        witnesses=(
            replace(
                raised(
                    "AssertionError: Fp16_master_weights_and_grads is only supported with ZeRO",
                    _FP16,
                    {"fp16": {"fp16_master_weights_and_grads": None}},
                    precision="fp16",
                ),
                deepspeed="0.16.9",
            ),
        ),
    ),
)
