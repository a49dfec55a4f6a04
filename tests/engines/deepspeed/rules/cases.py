"""Setups for tests of the rules: a plain one that is legal and trains, and differences from it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.base.nested import merge
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.rules import ALL_RULES, Rule
from autotune.engines.deepspeed.rules.base import Case, Setup, Witness
from autotune.job.model import ModelShape
from autotune.trial.transformer_shape import refusal

NEWEST = "0.19.8"

PLAIN_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 0},
}

PLAIN_MODEL: dict[str, Any] = {
    "architecture": "llama",
    "n_layers": 2,
    "hidden": 32,
    "ffn_hidden": 64,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab": 64,
    "max_seq_len": None,
    "tied_embeddings": False,
}

SUPPORTS_TP = {"llama"}
SUPPORTS_RECOMPUTE = {"llama", "gpt2"}


def witnesses() -> Iterator[tuple[str, Rule[Setup], Witness]]:
    """Every rule with each of its witnesses, under a name; each has its repaired case."""
    for rule in ALL_RULES:
        for number, witness in enumerate(rule.witnesses):
            if witness.repaired is None:
                broken = witness.broken
                after = broken.ds_config
                for found in rule.findings(setup_of(broken, version=witness.deepspeed or NEWEST)):
                    after = merge(after, found.changes)
                witness = replace(witness, repaired=replace(broken, ds_config=after))
            yield f"{rule.name}-{number}", rule, witness


def config_of(case: Case) -> dict[str, Any]:
    """The whole ds_config of a case."""
    return _drop_none(merge(PLAIN_CONFIG, case.ds_config))


def model_of(case: Case) -> dict[str, Any]:
    """Every size of a case's model, and its architecture."""
    return PLAIN_MODEL | dict(case.model)


def setup_of(case: Case, *, version: str = NEWEST) -> Setup:
    """The setup of a case, on two CPU ranks or as many as it says."""
    model = model_of(case)
    architecture = model.pop("architecture")
    has_adapters = bool(model.pop("lora_rank", 0))
    return Setup(
        ds_config=config_of(case),
        world=case.world,
        tp=case.tp,
        pp=case.pp,
        global_batch=case.global_batch,
        seq_len=case.seq_len,
        recompute=case.recompute,
        precision=case.precision,
        model=ModelShape(
            gated_mlp=True,
            n_params=3_000 if has_adapters else 22_688,
            n_params_frozen=22_688 if has_adapters else 0,
            n_params_active=25_688 if has_adapters else 22_688,
            **({"largest_param": 2048, "n_experts": 0, "experts_per_token": 0} | model),
        ),
        supports_tp=architecture in SUPPORTS_TP,
        supports_recompute=architecture in SUPPORTS_RECOMPUTE,
        environment=environment(
            version=version, fp16=case.fp16_supported, accelerator=case.accelerator
        ),
        attention=case.attention,
        loss_chunk_tokens=case.loss_chunk_tokens,
        compile=case.compile,
        supports_loss_chunks=architecture in SUPPORTS_RECOMPUTE,
        pipeline_refusal=refusal(source_of(model_of(case)), seq_len=case.seq_len, lengths={}),
        sp_by_script=case.sp_by_script,
        supports_sp=architecture in ("llama", "mixtral"),
    )


def source_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """A case's model as a trial's spec would name it."""
    if model["architecture"] == "plain":
        return {"factory": "tests.engines.deepspeed.rules.witness_driver:PlainModel"}
    if model["architecture"] == "gpt2":
        sizes = {"n_embd": "hidden", "n_inner": "ffn_hidden", "n_layer": "n_layers"}
        sizes |= {"n_head": "n_heads", "vocab_size": "vocab", "n_positions": "max_seq_len"}
    else:
        sizes = {"hidden_size": "hidden", "intermediate_size": "ffn_hidden"}
        sizes |= {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        sizes |= {"num_key_value_heads": "n_kv_heads", "vocab_size": "vocab"}
    config = {name: model[size] for name, size in sizes.items() if model[size] is not None}
    config["model_type"] = model["architecture"]
    config["tie_word_embeddings"] = model["tied_embeddings"]
    adapters = {"lora": {}} if model.get("lora_rank") else {}
    return {"config": config, **adapters}


def environment(
    *, version: str = NEWEST, accelerator: str = "cpu", fp16: bool = True
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


def setup(
    ds_config: Mapping[str, Any] | None = None, *, version: str = NEWEST, **case: Any
) -> Setup:
    """The plain setup with a patch over its configuration; other fields as in `Case`."""
    return setup_of(Case(ds_config=ds_config or {}, **case), version=version)


def _drop_none(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _drop_none(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if value is not None
    }
