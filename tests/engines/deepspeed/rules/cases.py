"""Setups for tests of the rules: a plain one that is legal and trains, and differences from it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.base.nested import merge
from autotune.engines.deepspeed.rules import ALL_RULES, Rule, plain
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.plain import model_of
from autotune.engines.deepspeed.rules.witnesses import Case, Witness, witnesses_of
from autotune.trial.transformer_shape import refusal

NEWEST = "0.19.8"


def witnesses() -> Iterator[tuple[str, Rule[Setup], Witness]]:
    """Every rule with each of its witnesses, under a name; each has its repaired case."""
    for rule in ALL_RULES:
        for number, witness in enumerate(witnesses_of(rule.name)):
            if witness.repaired is None:
                broken = witness.broken
                after = broken.ds_config
                for found in rule.findings(setup_of(broken, version=witness.deepspeed or NEWEST)):
                    after = merge(after, found.changes)
                witness = replace(witness, repaired=replace(broken, ds_config=after))
            yield f"{rule.name}-{number}", rule, witness


def setup_of(case: Case, *, version: str = NEWEST) -> Setup:
    """The setup of a case, with what the pipeline's transformer says of its model."""
    said = refusal(source_of(model_of(case)), seq_len=case.seq_len, lengths={})
    return plain.setup_of(case, version=version, pipeline_refusal=said)


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


def setup(
    ds_config: Mapping[str, Any] | None = None, *, version: str = NEWEST, **case: Any
) -> Setup:
    """The plain setup with a patch over its configuration; other fields as in `Case`."""
    return setup_of(Case(ds_config=ds_config or {}, **case), version=version)
