"""The dialect of Megatron-DeepSpeed: arguments for the shell, and the ds_config that agrees."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.cost.plans import Recompute
from autotune.engines.megatron.arguments import CLIP_GRAD
from autotune.engines.megatron.knobs import MORE_KNOBS
from autotune.engines.megatron.model_arguments import Arguments
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.megatron import MegatronRun, megatron_readme, run_of

ARGUMENTS_FILE = "megatron_deepspeed_args.sh"
CONFIG_FILE = "ds_config.json"
FLAGS_FILE = Path(__file__).parents[1] / "megatron_deepspeed_flags.json"
"""Flag -> whether it takes a value, by `python -m tests.record_megatron_deepspeed_flags`."""
_RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "num_query_groups": "num_key_value_heads",
    "rotary_base": "rotary_position_embeddings_theta",
}
"""Argument of Megatron-LM -> that of Megatron-DeepSpeed, where they differ."""
_LEFT_OUT = frozenset(
    {
        *("context_parallel_size", "expert_model_parallel_size", "group_query_attention"),
        *("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"),
    }
)
"""Arguments that are at their default there, or that ds_config.json says."""
_OF_LAYOUT = frozenset(
    {
        *("checkpoint_activations", "deepspeed_activation_checkpointing", "checkpoint_num_layers"),
        *("no_pipeline_parallel", "zero_stage", "deepspeed"),
    }
)
"""Its own words for a layout."""


class MegatronDeepSpeed(Dialect):
    """For Megatron-DeepSpeed's pretrain_gpt.py: its arguments, and DeepSpeed's configuration.

    The distributed optimizer is ZeRO's stage 1 there.
    """

    engines = ("megatron",)
    script = ARGUMENTS_FILE
    only_launcher = "it starts scripts of Hugging Face's kind"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        run = run_of(handout)
        _check_expressible(run, handout)
        config = ds_config(run, handout)
        arguments = arguments_of(run, config)
        groups: dict[str, Arguments] = {"MODEL_ARGS": {}, "LAYOUT_ARGS": {}, "TRAINING_ARGS": {}}
        for name, value in arguments.items():
            is_layout = name in run.layout or name in _OF_LAYOUT
            other = "TRAINING_ARGS" if name in run.training else "MODEL_ARGS"
            groups["LAYOUT_ARGS" if is_layout else other][name] = value
        values = {
            "world": handout.candidate.world,
            "groups": {name: lines_of(found) for name, found in groups.items()},
            "null_vocab": run.vocab - 1,  # its NullTokenizer adds one
            "variables": sorted(handout.variables.items()),
            "config_file": CONFIG_FILE,
        }
        return {
            CONFIG_FILE: canonical_json(config),
            ARGUMENTS_FILE: templates.text("megatron/deepspeed_args.sh.j2", values),
            "README.md": megatron_readme(
                handout, run, launch, templates, "megatron/deepspeed.md.j2", {}
            ),
        }


def ds_config(run: MegatronRun, handout: Handout) -> dict[str, Any]:
    """DeepSpeed's configuration, whose batch, stage and precision the arguments repeat."""
    row, precision = run.row, handout.job.precision
    config: dict[str, Any] = {
        "train_batch_size": handout.job.global_batch,
        "train_micro_batch_size_per_gpu": row["micro_batch"],
        "gradient_accumulation_steps": row["grad_accum"],
        "zero_optimization": {"stage": row["distributed_optimizer"]},
        "gradient_clipping": CLIP_GRAD,
        "steps_per_print": 1,
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return config


def arguments_of(run: MegatronRun, config: dict[str, Any]) -> Arguments:
    """The arguments, by Megatron-DeepSpeed's names."""
    # It has layers of its own, and on a GPU no flag for most of what these turn off.
    kernels = {
        name: value
        for name, value in run.kernels.items()
        if run.task.on_cpu or _flag(name) in flags()
    }
    given = {**run.model, **kernels, **run.layout, **run.training}
    found: Arguments = {
        _RENAMED.get(name, name): value for name, value in given.items() if name not in _LEFT_OUT
    }
    found["normalization"] = str(found["normalization"]).lower()
    if found.pop("position_embedding_type") == "rope":
        found["use_rotary_position_embeddings"] = True
    if found.pop("recompute_granularity", None) == "full":
        # What the engine's pipeline understands; its own flag recomputes each layer.
        found["checkpoint_activations"] = True
        found["deepspeed_activation_checkpointing"] = True
        found.pop("recompute_method")
        found["checkpoint_num_layers"] = found.pop("recompute_num_layers")
    if run.row["pp"] == 1:
        found["no_pipeline_parallel"] = True
    found["zero_stage"] = config["zero_optimization"]["stage"]
    found["deepspeed"] = True
    return found


def _flag(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def lines_of(arguments: Arguments) -> list[list[str]]:
    """Arguments as words of a command line, a list each.

    Raises:
        RenderError: Megatron-DeepSpeed has no such flag.
    """
    lines = []
    for name, value in arguments.items():
        flag = _flag(name)
        if flag not in flags():
            raise RenderError(
                f"--to megatron-deepspeed: it has no {flag}",
                "--to megatron writes the same run for Megatron-LM",
            )
        lines.append([flag, str(value)] if flags()[flag] else [flag])
    return lines


@cache
def flags() -> dict[str, bool]:
    """Flags of Megatron-DeepSpeed's scripts, and whether each takes a value."""
    found: dict[str, bool] = json.loads(FLAGS_FILE.read_text(encoding="utf-8"))
    return found


def _check_expressible(run: MegatronRun, handout: Handout) -> None:
    """See that Megatron-DeepSpeed trains such a layout.

    Raises:
        RenderError: It does not.
    """
    row, megatron = run.row, "--to megatron for Megatron-LM"
    if handout.environment.accelerator == "cpu":
        raise RenderError(
            "--to megatron-deepspeed: it does not train CPU ranks, whatever the layout",
            f"write it {megatron}",
        )
    other = "--rank" if handout.figures is None else "--trial"
    wrong = {
        "an interleaved pipeline (vp)": row["vp"] > 1,
        "context parallelism (cp)": row["cp"] > 1,
        "embedding and loss as layers (ends_as_layers)": row["ends_as_layers"],
        "a mixture of experts in the words of Megatron-LM": run.task.n_experts > 1,
        "recomputation of a part of a chunk's layers": row["recompute_layers"] > 0,
        "selective recomputation": row["recompute"] == Recompute.SELECTIVE,
        **{f"a layout with {name} set": row[name] > 0 for name in MORE_KNOBS},
    }
    for what, is_asked in wrong.items():
        if is_asked:
            raise RenderError(
                f"--to megatron-deepspeed: it does not train {what}",
                f"choose another layout with {other}, or {megatron}",
            )
