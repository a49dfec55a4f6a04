"""The dialect of Megatron-Bridge: its ConfigContainer as YAML, and the script that reads it.

Megatron-LM's arguments become fields of the classes behind them, of Megatron Core or around it.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autotune.base.nested import merge, nested
from autotune.base.templates import Templates
from autotune.engines.megatron.arguments import FLEX_BACKEND
from autotune.engines.megatron.engine import PADDED_TO
from autotune.engines.megatron.model_arguments import Arguments, pattern_of
from autotune.export.base import Handout, Launch
from autotune.export.megatron import (
    MegatronDialect,
    MegatronRun,
    Row,
    at_places,
    megatron_readme,
    no_setting,
    run_of,
)

FIELDS_FILE = Path(__file__).parents[1] / "bridge_fields.json"
"""Section of its configuration -> fields, by `python -m tests.record_bridge_fields`."""
CONFIG_FILE = "bridge.yaml"
_TO = "--to megatron-bridge"
Sections = dict[str, dict[str, Any]]
"""Section -> its fields."""
MOMENT_DTYPES = ("exp_avg_dtype", "exp_avg_sq_dtype")
"""Arguments that are types of torch there: the script looks them up by their names."""
_TABLES = json.loads(FIELDS_FILE.with_name("bridge.json").read_text(encoding="utf-8"))
_ROWS: dict[str, Row] = _TABLES["rows"]
"""Argument -> its fields, if it is no field of the model by its own name; none for what follows
from others, such as the mixed precision."""
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LISTS: dict[str, Callable[[str], list[int]]] = {
    **dict.fromkeys(("moe_layer_freq", "window_attn_skip_freq"), pattern_of),
    "window_size": lambda text: [int(part) for part in text.split(",")],
}
"""Argument whose text stands for a list there -> what reads it."""
_FP8: dict[str, str] = _TABLES["fp8"]
"""Recipe of fp8 -> its part of a name of Megatron-Bridge's mixed precisions.

Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/mixed_precision.py."""


class MegatronBridge(MegatronDialect):
    """For Megatron-Bridge: a run of its GPT model from random weights."""

    script = "train.py"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        if handout.environment.accelerator == "cpu":
            raise no_setting(_TO, "accelerator", "it trains on CUDA devices alone")
        run = run_of(handout, FLEX_BACKEND)  # its fields are those of a later release
        sections, precision = _sections(run, handout), _precision(run, handout.job.precision)
        # Its samples are as long as the model's.
        tuned = {**bridge_fields(run.layout), "dataset.seq_length": handout.job.seq_len}
        text = yaml.safe_dump({**sections, **precision}, sort_keys=False)
        of_precision = {
            name if name == "mixed_precision" else f"mixed_precision.{name}": value
            for name, value in precision.items()
        }
        named = [*sorted(tuned.items()), *of_precision.items()]
        lines = [f"{name}={json.dumps(value)}" for name, value in named]
        return {
            **handout.exported,
            CONFIG_FILE: templates.text("megatron/bridge.yaml.j2", {"sections": text}),
            self.script: templates.text("megatron/bridge_train.py", {}),
            **megatron_readme(
                handout, run, launch, templates, "megatron/bridge.md.j2", {"tuned": lines}
            ),
        }


def bridge_fields(arguments: Arguments) -> dict[str, Any]:
    """Arguments of Megatron-LM's as `section.field` -> its value."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        converted: Any = value
        if name in _LISTS and isinstance(value, str):
            converted = _LISTS[name](value)
        if name in MOMENT_DTYPES:
            converted = _TORCH_NAMES[str(value)]
        found |= at_places(_ROWS.get(name, f"model.{name}"), converted)
    return found


@cache
def fields_of(section: str) -> frozenset[str]:
    """Fields of a section."""
    fields: dict[str, list[str]] = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))
    return frozenset(fields[section])


def _sections(run: MegatronRun, handout: Handout) -> Sections:
    """The run, by sections.

    Raises:
        RenderError: Megatron-Bridge has no such field.
    """
    job = handout.job
    of_the_run: dict[str, Any] = {
        **{"model.vocab_size": run.vocab, "model.make_vocab_size_divisible_by": PADDED_TO},
        **{"dataset.random_seed": job.seed or 1, "dataset.seq_length": job.seq_len},
        "tokenizer.vocab_size": run.vocab,
    }
    of_the_run |= bridge_fields({**_with_yarn(run.model), **run.layout, **run.training})
    sections = nested((place.split("."), value) for place, value in of_the_run.items())
    found: Sections = merge(_TABLES["of_a_run"], sections)
    for section, fields in found.items():
        # Latent attention has a class of its own.
        is_latent = bool(fields.get("multi_latent_attention"))
        for field in fields.keys() - fields_of("latent_model" if is_latent else section):
            raise no_setting(_TO, field, f"its section {section} has no field {field}")
    return found


def _with_yarn(arguments: Arguments) -> Arguments:
    """A model's arguments with YaRN's by the names of the fields; latent attention has its own."""
    if arguments["position_embedding_type"] != "yarn":
        return arguments
    renamed = {
        name: f"yarn_{name}" for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim")
    }
    found = {renamed.get(name, name): value for name, value in arguments.items()}
    rounds = not found.pop("no_yarn_correction_range_round_to_int", False)
    return {**found, "yarn_correction_range_round_to_int": rounds}


def _precision(run: MegatronRun, precision: str) -> dict[str, Any]:
    """A mixed precision by its name, which the script hands over, and what differs in it."""
    found: dict[str, Any] = {"mixed_precision": f"{precision}_mixed"}
    if precision == "fp32":
        found["mixed_precision"] = None
    elif "fp4_format" in run.layout:
        found["mixed_precision"] = f"{precision}_with_nvfp4_mixed"
    elif "fp8_format" in run.layout:
        recipe = _FP8[str(run.layout["fp8_recipe"])]
        found["mixed_precision"] = f"{precision}_with_{recipe}_mixed"
        found["fp8"] = run.layout["fp8_format"]  # by name, blocks have hybrid
    if run.layout.get("grad_reduce_in_bf16"):
        found["grad_reduce_in_fp32"] = False
    return found
