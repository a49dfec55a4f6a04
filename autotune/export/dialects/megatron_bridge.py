"""The dialect of Megatron-Bridge: its ConfigContainer as YAML, and the script that reads it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import RenderError
from autotune.base.templates import Templates
from autotune.engines.megatron.engine import PADDED_TO
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.megatron import (
    RENAMED,
    SAID_OTHERWISE,
    MegatronRun,
    megatron_readme,
    run_of,
)
from autotune.export.readme import figures_file

FIELDS_FILE = Path(__file__).parents[1] / "bridge_fields.json"
"""Section of its configuration -> fields, by `python -m tests.record_bridge_fields`."""
CONFIG_FILE = "bridge.yaml"
_ELSEWHERE = {
    "micro_batch_size": "train",
    "global_batch_size": "train",
    "overlap_grad_reduce": "ddp",
    "overlap_param_gather": "ddp",
    "use_megatron_fsdp": "ddp",
    "data_parallel_sharding_strategy": "ddp",
    "ckpt_format": "checkpoint",
    "fp8_param_gather": "ddp",
    **dict.fromkeys(
        (
            *("optimizer_cpu_offload", "optimizer_offload_fraction"),
            *("use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d"),
        ),
        "optimizer",
    ),
    "lr_decay_style": "scheduler",
    "seed": "rng",
}
"""Argument of layout or training -> its section; others are the model's or the optimizer's."""


_FP8 = {
    "delayed": "fp8_delayed_scaling",
    "tensorwise": "fp8_current_scaling",
    "blockwise": "fp8_subchannel_scaling",
    "mxfp8": "mxfp8",
}
"""Recipe of fp8 -> its part of a name of Megatron-Bridge's mixed precisions.

Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/mixed_precision.py."""


class MegatronBridge(Dialect):
    """For Megatron-Bridge: a run of its GPT model from random weights."""

    engines = ("megatron",)
    script = "train.py"
    only_launcher = "it starts scripts with a configuration of DeepSpeed"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`.

        Raises:
            RenderError: Besides, on CPU ranks, and where Megatron-Bridge has no field for an
                argument.
        """
        assert launch is not None, "it has a script"
        if handout.environment.accelerator == "cpu":
            raise RenderError(
                "--to megatron-bridge: it trains on CUDA devices alone, and this is a "
                "configuration of CPU ranks",
                "--to megatron-core writes the run of the trials",
            )
        run = run_of(handout)
        text = yaml.safe_dump(sections_of(run, handout), sort_keys=False)
        return {
            **handout.files,
            CONFIG_FILE: templates.text("megatron/bridge.yaml.j2", {"sections": text}),
            self.script: templates.text("megatron/bridge_train.py", {}),
            "README.md": megatron_readme(
                handout, run, launch, templates, "megatron/bridge.md.j2", {}
            ),
            **figures_file(handout),
        }


def sections_of(run: MegatronRun, handout: Handout) -> dict[str, Any]:
    """The configuration by its sections.

    Raises:
        RenderError: Megatron-Bridge has no field for an argument.
    """
    job = handout.job
    found: dict[str, dict[str, Any]] = {
        "model": {
            "vocab_size": run.vocab,
            "should_pad_vocab": True,
            "make_vocab_size_divisible_by": PADDED_TO,
            "activation_func": "gelu",
        },
        "train": {"train_iters": 100},
        "validation": {"eval_iters": 0},
        "optimizer": {},
        "scheduler": {},
        "ddp": {},
        "dataset": {
            **{"random_seed": job.seed or 1, "seq_length": job.seq_len, "split": "99,1,0"},
            **{"reset_position_ids": False, "reset_attention_mask": False},
            **{"eod_mask_loss": False, "dataloader_type": "single"},
        },
        "logger": {"log_interval": 1, "log_throughput": True},
        "tokenizer": {"tokenizer_type": "NullTokenizer", "vocab_size": run.vocab},
        "checkpoint": {},
        "rng": {},
    }
    for name, value in {**run.model, **run.layout}.items():
        if name in SAID_OTHERWISE:
            found["model"] |= SAID_OTHERWISE[name]
        elif name == "use_distributed_optimizer":
            found["ddp"][name] = found["optimizer"][name] = value
        elif name == "cpu_offloading_num_layers":
            found["model"] |= {"cpu_offloading": True, name: value}
        else:
            found[_ELSEWHERE.get(name, "model")][RENAMED.get(name, name)] = value
    for name, value in run.training.items():
        found[_ELSEWHERE.get(name, "optimizer")][name] = value
    for section, fields in found.items():
        for name in fields:
            if name not in fields_of(section):
                raise RenderError(
                    f"--to megatron-bridge: its section {section} has no field {name}",
                    "--to megatron writes the same run for Megatron-LM",
                )
    return {**found, "mixed_precision": _mixed_precision(run, job.precision)}


def _mixed_precision(run: MegatronRun, precision: str) -> str | None:
    """The name of a mixed precision; None in fp32.

    Raises:
        RenderError: Megatron-Bridge has none such.
    """
    if precision == "fp32":
        return None
    if "fp8_format" not in run.layout:
        return f"{precision}_mixed"
    if run.layout["fp8_format"] != "hybrid" and run.layout["fp8_recipe"] != "mxfp8":
        raise RenderError(
            "--to megatron-bridge: its mixed precisions have fp8 in the format hybrid alone",
            "choose a candidate with fp8=hybrid, or --to megatron for Megatron-LM",
        )
    return f"{precision}_with_{_FP8[str(run.layout['fp8_recipe'])]}_mixed"


@cache
def fields_of(section: str) -> frozenset[str]:
    """Fields of a section of Megatron-Bridge's configuration."""
    fields: dict[str, list[str]] = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))
    return frozenset(fields[section])
