"""The dialect of Megatron-Bridge: its ConfigContainer as YAML, and the script that reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.engines.megatron.engine import PADDED_TO
from autotune.engines.megatron.model_arguments import Arguments
from autotune.export.base import Handout
from autotune.export.megatron import MegatronRun
from autotune.export.megatron_sections import MOMENT_DTYPES, SectionedDialect, Sections, say

FIELDS_FILE = Path(__file__).parents[1] / "bridge_fields.json"
"""Section of its configuration -> fields, by `python -m tests.record_bridge_fields`."""
_ELSEWHERE = {
    "micro_batch_size": "train",
    "global_batch_size": "train",
    "overlap_grad_reduce": "ddp",
    "overlap_param_gather": "ddp",
    "use_megatron_fsdp": "ddp",
    "data_parallel_sharding_strategy": "ddp",
    "fsdp_double_buffer": "ddp",
    "ckpt_format": "checkpoint",
    "fp8_param_gather": "ddp",
    **dict.fromkeys(
        (
            *("optimizer_cpu_offload", "optimizer_offload_fraction"),
            *("use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d"),
            *MOMENT_DTYPES,
        ),
        "optimizer",
    ),
    "use_tp_pp_dp_mapping": "dist",
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


class MegatronBridge(SectionedDialect):
    """For Megatron-Bridge: a run of its GPT model from random weights."""

    name = "megatron-bridge"
    config_file = "bridge.yaml"
    fields_file = FIELDS_FILE
    templates = "megatron/bridge"

    def sections(self, run: MegatronRun, handout: Handout) -> Sections:
        job = handout.job
        found: Sections = {
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
            "dist": {},
        }
        for name, value in {**_with_yarn(run.model), **run.layout}.items():
            self.say(found, name, value)
        for name, value in run.training.items():
            found[_ELSEWHERE.get(name, "optimizer")][name] = value
        return found

    def fields_section(self, section: str, fields: Mapping[str, Any]) -> str:
        """Latent attention has a class of its own."""
        return "latent_model" if fields.get("multi_latent_attention") else section

    def say(self, sections: Sections, name: str, value: Any) -> None:
        if name == "fp4_format":  # mixed_precision says it
            return
        if name == "grad_reduce_in_bf16":  # its mixed precision decides
            return
        if name == "use_nccl_ub":
            sections["ddp"]["nccl_ub"] = value
            return
        if name == "te_rng_tracker":
            sections["rng"][name] = sections["model"]["use_te_rng_tracker"] = value
            return
        say(sections, name, value, elsewhere=_ELSEWHERE)

    def beside(self, run: MegatronRun, handout: Handout) -> dict[str, Any]:
        """Its script asks for a mixed precision by name."""
        found: dict[str, Any] = {"mixed_precision": _mixed_precision(run, handout.job.precision)}
        if run.layout.get("grad_reduce_in_bf16"):
            found["grad_reduce_in_fp32"] = False
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


def _mixed_precision(run: MegatronRun, precision: str) -> str | None:
    """The name of a mixed precision; None in fp32.

    Raises:
        RenderError: Megatron-Bridge has none such.
    """
    if precision == "fp32":
        return None
    if "fp4_format" in run.layout:
        return f"{precision}_with_nvfp4_mixed"
    if "fp8_format" not in run.layout:
        return f"{precision}_mixed"
    if run.layout["fp8_format"] != "hybrid" and run.layout["fp8_recipe"] != "mxfp8":
        raise RenderError(
            "--to megatron-bridge: its mixed precisions have fp8 in the format hybrid alone",
            "choose a candidate with fp8=hybrid, or --to megatron for Megatron-LM",
        )
    return f"{precision}_with_{_FP8[str(run.layout['fp8_recipe'])]}_mixed"
