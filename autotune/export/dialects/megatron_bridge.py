"""The dialect of Megatron-Bridge: its ConfigContainer as YAML, and the script that reads it.

Megatron-LM's arguments become fields of the classes behind them, of Megatron Core or around it.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import RenderError
from autotune.base.templates import Templates
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.engines.megatron.engine import PADDED_TO
from autotune.engines.megatron.model_arguments import Arguments, pattern_of
from autotune.export.base import Handout, Launch
from autotune.export.megatron import MegatronDialect, MegatronRun, megatron_readme, run_of

FIELDS_FILE = Path(__file__).parents[1] / "bridge_fields.json"
"""Section of its configuration -> fields, by `python -m tests.record_bridge_fields`."""
CONFIG_FILE = "bridge.yaml"
Sections = dict[str, dict[str, Any]]
"""Section -> its fields."""
MOMENT_DTYPES = ("exp_avg_dtype", "exp_avg_sq_dtype")
"""Arguments that are types of torch there: the script looks them up by their names."""
_TABLES = json.loads(FIELDS_FILE.with_name("bridge.json").read_text(encoding="utf-8"))
_SECTION_OF = {name: section for section, names in _TABLES["section_of"].items() for name in names}
"""Argument of layout or training -> its section; others are the model's or the optimizer's."""
_RENAMED: dict[str, str] = _TABLES["renamed"]
"""Argument of Megatron-LM -> the field of the model, if it differs."""
_WRITTEN_OTHERWISE: dict[str, dict[str, Any]] = {
    **_TABLES["written_otherwise"],
    **{name: {} for names in _TABLES["follows"].values() for name in names},
}
"""Argument -> fields of the model that say the same; none for what follows from others."""
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
            raise RenderError(
                "--to megatron-bridge: it trains on CUDA devices alone, and this is a "
                "configuration of CPU ranks",
                "--to megatron-core writes the run of the trials",
            )
        run = run_of(handout)
        sections, precision = _sections(run, handout), _precision(run, handout.job.precision)
        tuned: Sections = defaultdict(dict)
        for name, value in run.layout.items():
            put(tuned, name, value)
        tuned["dataset"]["seq_length"] = handout.job.seq_len  # its samples are as long
        of_layout = {
            f"{s}.{n}": value for s, fields in tuned.items() for n, value in fields.items()
        }
        _check(sections)
        text = yaml.safe_dump({**sections, **precision}, sort_keys=False)
        lines = [f"{n}={json.dumps(value)}" for n, value in {**of_layout, **precision}.items()]
        return {
            **handout.exported,
            CONFIG_FILE: templates.text("megatron/bridge.yaml.j2", {"sections": text}),
            self.script: templates.text("megatron/bridge_train.py", {}),
            **megatron_readme(
                handout, run, launch, templates, "megatron/bridge.md.j2", {"tuned": lines}
            ),
        }


def put(sections: Sections, name: str, value: Any) -> None:
    """Put an argument of Megatron-LM's into the section that reads it."""
    if name in _WRITTEN_OTHERWISE:
        sections["model"] |= _WRITTEN_OTHERWISE[name]
    elif name == "use_nccl_ub":
        sections["ddp"]["nccl_ub"] = value
    elif name == "te_rng_tracker":
        sections["rng"][name] = sections["model"]["use_te_rng_tracker"] = value
    elif name == "use_distributed_optimizer":
        sections["ddp"][name] = sections["optimizer"][name] = value
    elif name == "cpu_offloading_num_layers":
        sections["model"] |= {"cpu_offloading": True, name: value}
    else:
        if name in _LISTS and isinstance(value, str):
            value = _LISTS[name](value)
        if name in MOMENT_DTYPES:
            value = _TORCH_NAMES[value]
        sections[_SECTION_OF.get(name, "model")][_RENAMED.get(name, name)] = value


@cache
def fields_of(section: str) -> frozenset[str]:
    """Fields of a section."""
    fields: dict[str, list[str]] = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))
    return frozenset(fields[section])


def _sections(run: MegatronRun, handout: Handout) -> Sections:
    job = handout.job
    found: Sections = deepcopy(_TABLES["of_a_run"])
    found["model"] |= {"vocab_size": run.vocab, "make_vocab_size_divisible_by": PADDED_TO}
    found["dataset"] |= {"random_seed": job.seed or 1, "seq_length": job.seq_len}
    found["tokenizer"]["vocab_size"] = run.vocab
    for name, value in {**_with_yarn(run.model), **run.layout}.items():
        put(found, name, value)
    for name, value in run.training.items():
        found[_SECTION_OF.get(name, "optimizer")][name] = value
    return found


def _check(sections: Sections) -> None:
    """Refuse a field that Megatron-Bridge has not, with the knob that needs it."""
    for section, fields in sections.items():
        # Latent attention has a class of its own.
        is_latent = bool(fields.get("multi_latent_attention"))
        for field in fields.keys() - fields_of("latent_model" if is_latent else section):
            knob = KNOBS_OF.get(field)
            raise RenderError(
                f"--to megatron-bridge: its section {section} has no field {field}"
                + (f", which {knob} needs" if knob else ""),
                "--to megatron writes the same run for Megatron-LM"
                + (f"; or choose a candidate without {knob}" if knob else ""),
            )


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
    """What the script hands over beside the sections: a mixed precision by name.

    Raises:
        RenderError: Megatron-Bridge has none such.
    """
    name: str | None = f"{precision}_mixed"
    if precision == "fp32":
        name = None
    elif "fp4_format" in run.layout:
        name = f"{precision}_with_nvfp4_mixed"
    elif "fp8_format" in run.layout:
        if run.layout["fp8_format"] != "hybrid" and run.layout["fp8_recipe"] != "mxfp8":
            raise RenderError(
                "--to megatron-bridge: its mixed precisions have fp8 in the format hybrid alone",
                "choose a candidate with fp8=hybrid, or --to megatron for Megatron-LM",
            )
        name = f"{precision}_with_{_FP8[str(run.layout['fp8_recipe'])]}_mixed"
    reduces = {"grad_reduce_in_fp32": False} if run.layout.get("grad_reduce_in_bf16") else {}
    return {"mixed_precision": name, **reduces}
