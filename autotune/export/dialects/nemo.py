"""The dialect of NeMo 2: its model, strategy and optimizer as YAML, and the script that trains."""

from pathlib import Path
from typing import Any

import numpy as np

from autotune.engines.megatron.engine import PADDED_TO, padded_vocab
from autotune.export.base import Handout
from autotune.export.megatron import MegatronRun
from autotune.export.megatron_sections import MOMENT_DTYPES, SectionedDialect, Sections, say

FIELDS_FILE = Path(__file__).parents[1] / "nemo_fields.json"
"""Section of its configuration -> fields, by `python -m tests.record_nemo_fields`."""
_ELSEWHERE = {
    **dict.fromkeys(
        (
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("num_virtual_stages_per_pipeline_rank", "context_parallel_size"),
            *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
            *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
            *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
            "use_tp_pp_dp_mapping",
        ),
        "strategy",
    ),
    **dict.fromkeys(("micro_batch_size", "global_batch_size"), "data"),
    **dict.fromkeys(
        (
            *("overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp"),
            *("data_parallel_sharding_strategy", "fp8_param_gather", "fsdp_double_buffer"),
        ),
        "ddp",
    ),
    **dict.fromkeys(
        (
            *("optimizer_cpu_offload", "optimizer_offload_fraction"),
            *("use_precision_aware_optimizer", "overlap_cpu_optimizer_d2h_h2d"),
            *MOMENT_DTYPES,
        ),
        "optimizer",
    ),
}
"""Argument of Megatron-LM -> its section; others are the model's."""
_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "32"},
    "bf16": {"precision": "bf16-mixed", "params_dtype": "bfloat16", "grad_reduce_in_fp32": True},
    "fp16": {"precision": "16-mixed", "params_dtype": "float16", "grad_reduce_in_fp32": False},
}
"""Precision of a job -> arguments of MegatronMixedPrecision, as NeMo's recipes have them.

Source: NVIDIA-NeMo/NeMo, nemo/collections/llm/recipes/precision/mixed_precision.py."""


class NeMo(SectionedDialect):
    """For NeMo 2: a run of its GPT model from random weights on mock data."""

    name = "nemo"
    config_file = "nemo.yaml"
    fields_file = FIELDS_FILE
    templates = "megatron/nemo"

    def sections(self, run: MegatronRun, handout: Handout) -> Sections:
        job, tp = handout.job, run.row["tp"]
        found: Sections = {
            "model": {
                "vocab_size": int(padded_vocab(run.vocab, np.array(tp))),
                "make_vocab_size_divisible_by": PADDED_TO,
                "seq_length": job.seq_len,
                "activation_func": "gelu",
                "gated_linear_unit": False,
                "add_bias_linear": True,
                "share_embeddings_and_output_weights": True,
            },
            "strategy": {},
            "ddp": {"grad_reduce_in_fp32": job.precision == "bf16"},
            "precision": dict(_PRECISIONS[job.precision]),
            "comm_overlap": {"tp_comm_overlap": False},
            "data": {"seq_length": job.seq_len},
            "tokenizer": {"vocab_size": run.vocab - 1},  # it adds one for the end of a document
            "optimizer": {},
            "trainer": {
                "devices": handout.per_node,
                "num_nodes": handout.n_nodes,
                "max_steps": 100,
                "log_every_n_steps": 1,
                "limit_val_batches": 0,
                "num_sanity_val_steps": 0,
            },
        }
        for name, value in {**run.model, **run.layout}.items():
            self.say(found, name, value)
        for name, value in run.training.items():
            if name not in ("lr_decay_style", "seed"):  # constant without a schedule
                found["optimizer"][name] = value
        if job.precision != "fp32":
            found["optimizer"][job.precision] = True
        found["seed"] = {"seed": run.training["seed"]}
        return found

    def say(self, sections: Sections, name: str, value: Any) -> None:
        if name == "ckpt_format":
            sections["strategy"]["save_ckpt_format"] = value
        elif name == "use_rope_scaling":  # Llama31Config scales, by a factor of this name
            sections["model"]["scale_factor"] = 8.0
        elif name == "rope_scaling_factor":
            sections["model"]["scale_factor"] = value
        elif name in ("fp8_format", "fp8_recipe"):
            sections["precision"][name.removesuffix("_format")] = value
        elif name == "fp8_param_gather":
            sections["precision"][name] = sections["ddp"][name] = value
        elif name == "grad_reduce_in_bf16":
            sections["precision"]["grad_reduce_in_fp32"] = not value
            sections["ddp"]["grad_reduce_in_fp32"] = not value
        elif name == "use_nccl_ub":
            sections["ddp"]["nccl_ub"] = value
        elif name == "tp_comm_overlap":
            sections["comm_overlap"][name] = value
        elif name == "no_overlap_p2p_communication":
            sections["comm_overlap"] |= {"overlap_p2p_comm": False, "batch_p2p_comm": True}
        else:
            say(sections, name, value, elsewhere=_ELSEWHERE)
