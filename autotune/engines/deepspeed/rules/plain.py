"""The plain setup that every `Case` of a witness differs from: legal, small, and it trains."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from autotune.base.data import table_beside
from autotune.base.nested import merge
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from autotune.engines.deepspeed.rules.witnesses import Case
from autotune.job.model_families import family_of
from autotune.job.model_shape import ModelShape

_PLAIN = table_beside(__file__, "plain.json")
PLAIN_CONFIG: dict[str, Any] = _PLAIN["config"]
PLAIN_MODEL: dict[str, Any] = _PLAIN["model"]
PLAIN_SHAPE = ModelShape(
    **{name: size for name, size in PLAIN_MODEL.items() if name != "architecture"},
    gated_mlp=True,
    n_experts=0,
    experts_per_token=0,
    n_params=22_688,
    n_params_active=22_688,
    largest_param=2_048,
)
"""The shape of that model."""

_MIXTURES = frozenset({"mixtral", "olmoe", "gpt_oss"})
_SUPPORTS_TP = frozenset({"llama"})
_SUPPORTS_RECOMPUTE = frozenset({"llama", "gpt2"})
_SUPPORTS_SP = frozenset({"llama", "mixtral"})
_ADAPTER_PARAMS = 3_000
_SAME = {field.name for field in fields(Case)} & {field.name for field in fields(Setup)} - {
    *("ds_config", "model", "accelerator")
}
"""What a case says as a setup does."""


def config_of(case: Case) -> dict[str, Any]:
    """The whole ds_config of a case."""
    return _drop_none(merge(PLAIN_CONFIG, case.ds_config))


def model_of(case: Case) -> dict[str, Any]:
    """Every size of a case's model, and its architecture."""
    return PLAIN_MODEL | dict(case.model)


def setup_of(case: Case, *, version: str = NEWEST_READ, pipeline_refusal: str = "") -> Setup:
    """The setup of a case, on two CPU ranks or as many as it says.

    Args:
        case: The difference from the plain setup.
        version: Release of DeepSpeed.
        pipeline_refusal: As in `Setup`.
    """
    model = model_of(case)
    architecture = model.pop("architecture")
    adapters = _ADAPTER_PARAMS if model.pop("lora_rank", 0) else 0
    balances_routers = bool(model.pop("balances_routers", False))
    whole = PLAIN_SHAPE.n_params
    attention = family_of({"model_type": architecture}).attention
    return Setup(
        ds_config=config_of(case),
        ranks=case.world,
        **{name: getattr(case, name) for name in _SAME},
        model=replace(
            PLAIN_SHAPE,
            n_params=adapters or whole,
            n_params_frozen=whole if adapters else 0,
            n_params_active=whole + adapters,
            **model,
        ),
        model_type=architecture if architecture in _MIXTURES else "",
        has_adapters=adapters > 0,
        balances_routers=balances_routers,
        expert_blocks=("RoutedBlock",) if architecture == "routed" else (),
        supports_tp=architecture in _SUPPORTS_TP,
        supports_recompute=architecture in _SUPPORTS_RECOMPUTE,
        environment=environment(
            version=version, fp16=case.fp16_supported, accelerator=case.accelerator
        ),
        attentions=" or ".join(attention),
        has_attention=case.attention in ("default", *attention),
        supports_loss_chunks=architecture in _SUPPORTS_RECOMPUTE,
        supports_mlp_chunks=architecture in _SUPPORTS_RECOMPUTE,
        pipeline_refusal=pipeline_refusal,
        supports_sp=architecture in _SUPPORTS_SP,
    )


def environment(
    *, version: str = NEWEST_READ, accelerator: str = "cpu", fp16: bool = True
) -> Environment:
    """A machine with two devices."""
    return Environment(
        accelerator=accelerator,
        n_devices=2,
        device_name="test device",
        device_memory_bytes=8 * 2**30,
        peak_flops=None,
        deepspeed_version=version,
        torch_version="2.13.0",
        precisions=("fp32", "bf16", "fp16") if fp16 else ("fp32", "bf16"),
    )


def _drop_none(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _drop_none(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if value is not None
    }
