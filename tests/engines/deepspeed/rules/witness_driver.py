"""Runs many small configurations, each in fresh ranks, and says what happened.

Started with the path of a JSON list of runs and the path of the JSON lines to write. Every run
builds a tiny model, calls `deepspeed.initialize` and trains two optimizer steps.
"""

import contextlib
import copy
import datetime
import functools
import importlib
import inspect
import itertools
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.comm import comm as ds_comm
from deepspeed.runtime import engine as ds_engine
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import logger, safe_get_full_grad
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CTRLConfig,
    CTRLLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from autotune.trial.engines.deepspeed import load_code, load_model_code
from autotune.trial.prebuilt import without_debug_information
from autotune.trial.readback import recomputed_layers
from autotune.trial.scripts.train import (
    DTYPES,
    add_adapters,
    apply_recompute,
    chunk_loss,
    chunk_mlps,
    gradient_scale,
    prepare_autoep,
    sequence_piece,
    split_attention,
)
from autotune.trial.scripts.transformer import Shape, make_pipeline
from autotune.trial.transformer_shape import shape_of
from tests.forked_ranks import ask

STEPS = 2
WITHIN_S = 120.0
"""Time for a run, which takes a second on an idle machine; one may compile an extension."""
WAITS_FOR_OTHERS_S = 8.0
"""Time after which a rank whose others gather something else gives up."""
AFTER_ERROR_S = 3.0
"""Time of the other ranks once one has raised; where they raise as well, they do so at once."""


class PlainModel(torch.nn.Module):
    """A model that DeepSpeed knows nothing about: no Hugging Face config, no known names."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab, hidden)
        self.mix = torch.nn.Linear(hidden, hidden)
        self.out = torch.nn.Linear(hidden, vocab)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.out(torch.relu(self.mix(self.table(input_ids))))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class RoutedBlock(torch.nn.Module):
    """Experts that are modules, of which each rank passes others."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rank = torch.distributed.get_rank()
        taken = [e for n, e in enumerate(self.experts) if n % 2 == rank or n < 1 + rank]
        return hidden + sum(expert(hidden) for expert in taken)


class RoutedModel(PlainModel):
    """The plain model with such a block inside."""

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__(hidden, vocab)
        self.mix = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), RoutedBlock(hidden))


def main(runs_file: str, results_file: str) -> None:
    """Run everything in `runs_file`."""
    logger.setLevel(logging.ERROR)
    load_code("cpu")
    load_model_code({"config": {"model_type": "llama"}, "lora": {}})
    load_what_engines_load()
    runs = json.loads(Path(runs_file).read_text())
    build_whole_models(runs)
    # Stage 3 writes every parameter out for a log that nobody reads.
    torch.set_printoptions(threshold=0, edgeitems=0)
    with Path(results_file).open("w") as file:
        for run in runs:
            ranks = ask(
                functools.partial(run_one, run),
                run["world"],
                within_s=WITHIN_S,
                after_error_s=AFTER_ERROR_S,
            )
            file.write(json.dumps({"id": run["id"], "ranks": ranks}) + "\n")
            file.flush()


def load_what_engines_load() -> None:
    """Pay once for what every engine would import, and find out of the machine, in its start."""
    for module in ("deepspeed.module_inject.auto_ep_layer", "deepspeed.comm.mori"):
        with contextlib.suppress(ImportError):  # a release without it
            importlib.import_module(module)
    # Which extensions can be built here: newer releases ask a compiler when that is first read.
    getattr(deepspeed.ops, "__compatible_ops__")  # noqa: B009


def build_whole_models(runs: list[dict[str, Any]]) -> None:
    """Pay once for the models that ranks begin with, and for what torch does at a first step."""
    shapes = [json.dumps(run["model"]) for run in runs if run["pp"] == 1]
    for shape in dict.fromkeys(shapes):
        with contextlib.suppress(Exception):  # the ranks say what is wrong
            whole_model(shape)
    ids = torch.zeros((1, 2), dtype=torch.long)
    PlainModel(2, 2)(ids, ids).backward()


@functools.cache
def whole_model(shape: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model as it is after seed 0, and where torch's generator is then."""
    torch.manual_seed(0)
    return build_model(json.loads(shape)), torch.get_rng_state()


def run_one(run: dict[str, Any]) -> dict[str, Any]:
    """Train one configuration."""
    is_routed = run["model"]["architecture"] == "routed"
    waits_s = WAITS_FOR_OTHERS_S if is_routed else WITHIN_S
    ds_comm.init_distributed(verbose=False, timeout=datetime.timedelta(seconds=waits_s))
    torch.manual_seed(0)
    if run["precision"] == "fp16":
        # Many CPUs have no fp16, and DeepSpeed refuses it there; torch computes it all the same,
        # and what DeepSpeed's other checks say about fp16 can be asked on any machine.
        get_accelerator().is_fp16_supported = lambda: run["fp16_supported"]
    config = run["config"]
    if run["pp"] > 1:
        model = build_pipeline(run)
        run = run | {"recompute": "none"}  # it stands in the configuration
    else:
        model, state = whole_model(json.dumps(run["model"]))
        torch.set_rng_state(state)
        if rank := run["model"].get("lora_rank"):
            targets = "all-linear"
            lora = {"rank": rank, "alpha": rank, "dropout": 0.0, "target_modules": targets}
            add_adapters(model, lora)
    apply_recompute(model, run["recompute"])
    if run["attention"] != "default":
        model.set_attn_implementation(run["attention"])
    chunk_loss(model, run["loss_chunk_tokens"])
    chunk_mlps(model, run["mlp_chunk_tokens"], most_tokens=run["seq_len"])
    micro_batch = config.get("train_micro_batch_size_per_gpu", 1)
    prepare_autoep(model, config)
    gradient_scale(config, run["sp"])  # every script asks by what its losses are scaled
    trained = [p for p in model.parameters() if p.requires_grad]
    # Pairs of their own: AutoEP adds parameters to the list that it is given.
    before = [(p, p.detach().clone()) for p in trained]
    own = getattr(torch.optim, run["optimizer"])(trained) if run["optimizer"] else None
    engine, *_ = deepspeed.initialize(
        optimizer=own,
        mpu=split_attention(model, sp=run["sp"], micro_batch=micro_batch),
        model=model,
        config=copy.deepcopy(config),
        model_parameters=trained,
    )
    kept = keeps_weights(before)
    if run["compile"] != "none":
        engine.compile()
    # Before 0.19.7 the log does not know the call by which AutoTP compares its inputs.
    knows = "log_name" in inspect.signature(ds_comm.broadcast_object_list).parameters
    ds_comm.configure(enabled=knows or engine.autotp_size() <= 1, prof_all=True, verbose=False)
    ds_comm.comms_logger.comms_dict.clear()
    is_split = isinstance(engine, PipelineEngine) or "expert_parallel" in config
    norms = watch_norms(engine) if is_split else []
    losses = train(engine, run)
    return {
        "error": None,
        "losses": losses,
        "read_back": read_back(engine) | norm_facts(norms) | {"keeps_weights": kept},
        "scalars": scalars(engine.optimizer),
        "collectives": collectives(),
    }


def keeps_weights(before: list[tuple[torch.nn.Parameter, torch.Tensor]]) -> bool:
    """Whether the parameters that every rank holds whole are as they were, each with that."""
    return all(torch.equal(b.to(p), p) for p, b in before if b.shape == p.shape)


def build_pipeline(run: dict[str, Any]) -> torch.nn.Module:
    """The stage of this rank."""
    shape = Shape(**shape_of(run["source"], run["seq_len"]))
    dtype = DTYPES[run["precision"]]
    return make_pipeline(shape, pp=run["pp"], tp=run["tp"], seed=0, dtype=dtype)


def build_model(shape: dict[str, Any]) -> torch.nn.Module:
    """A tiny model of the shape that the case names."""
    if shape["architecture"] in ("plain", "routed"):
        kind = RoutedModel if shape["architecture"] == "routed" else PlainModel
        return kind(shape["hidden"], shape["vocab"])
    if shape["architecture"] == "ctrl":
        return CTRLLMHeadModel(
            CTRLConfig(
                n_embd=shape["hidden"],
                dff=shape["ffn_hidden"],
                n_layer=shape["n_layers"],
                n_head=shape["n_heads"],
                vocab_size=shape["vocab"],
                use_cache=False,
            )
        )
    if shape["architecture"] == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                n_embd=shape["hidden"],
                n_inner=shape["ffn_hidden"],
                n_layer=shape["n_layers"],
                n_head=shape["n_heads"],
                vocab_size=shape["vocab"],
                n_positions=shape["max_seq_len"] or 64,
                use_cache=False,
            )
        )
    name_of_experts = "num_experts" if shape["architecture"] == "olmoe" else "num_local_experts"
    config = AutoConfig.for_model(
        shape["architecture"],
        **({name_of_experts: shape["n_experts"]} if "n_experts" in shape else {}),
        **({"num_experts_per_tok": shape["experts_per_token"]} if "n_experts" in shape else {}),
        hidden_size=shape["hidden"],
        intermediate_size=shape["ffn_hidden"],
        num_hidden_layers=shape["n_layers"],
        num_attention_heads=shape["n_heads"],
        num_key_value_heads=shape["n_kv_heads"],
        head_dim=shape["hidden"] // shape["n_heads"],
        vocab_size=shape["vocab"],
        max_position_embeddings=shape["max_seq_len"] or 64,
        tie_word_embeddings=shape["tied_embeddings"],
        pad_token_id=None,
        output_router_logits=shape.get("balances_routers", False),
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(config)


def train(engine: Any, run: dict[str, Any]) -> list[float]:
    """Train on data that is the same on all ranks, as tensor parallelism needs it."""
    device = get_accelerator().current_device_name()
    generator = torch.Generator().manual_seed(1)
    losses = []
    if isinstance(engine, PipelineEngine):
        size = (engine.train_micro_batch_size_per_gpu(), run["seq_len"])
        drawn = (
            torch.randint(0, run["model"]["vocab"], size, generator=generator).to(device)
            for _ in itertools.count()
        )
        data = ((ids, ids) for ids in drawn)
        return [round(float(engine.train_batch(data_iter=data)), 6) for _ in range(STEPS)]
    for _ in range(STEPS):
        total = 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            ids = torch.randint(
                0,
                run["model"]["vocab"],
                (engine.train_micro_batch_size_per_gpu(), run["seq_len"]),
                generator=generator,
            ).to(device)
            inputs = {"input_ids": ids, "labels": ids}
            if run["sp"] > 1:
                rank = torch.distributed.get_rank() % run["sp"]
                inputs = sequence_piece(inputs, sp=run["sp"], rank=rank)
            answer = engine(**inputs)
            loss = answer if isinstance(answer, torch.Tensor) else answer.loss
            engine.backward(loss)
            engine.step()
            total += float(loss.detach())
        losses.append(round(total, 6))
    return losses


def watch_norms(engine: Any) -> list[tuple[float, float]]:
    """Note at every step the norm that DeepSpeed clips by, and that of all ranks' gradients.

    At stage 0 in fp32 alone: the wrappers of 16 bits clip by themselves. ZeRO says its norm after
    the step.
    """
    seen: list[tuple[float, float]] = []
    clip, step = ds_engine.clip_grad_norm_, engine.step

    def noting_clip() -> None:
        whole = whole_norm(engine, [(p, p.grad) for p in engine.module.parameters()])
        parameters, most = engine.module.parameters(), engine.gradient_clipping()
        seen.append((float(clip(parameters, max_norm=most, mpu=engine.mpu)), whole))

    def noting_step() -> None:
        is_last = engine.is_gradient_accumulation_boundary()
        graded = [(p, safe_get_full_grad(p)) for p in engine.module.parameters() if is_last]
        step()
        if is_last:
            seen.append((float(engine.get_global_grad_norm()), whole_norm(engine, graded)))

    if engine.zero_optimization() and engine.autotp_size() > 1:
        engine.step = noting_step
    elif not engine.zero_optimization() and run_dtype(engine) == torch.float32:
        engine.clip_fp32_gradients = noting_clip
    return seen


def whole_norm(engine: Any, gradients: list[tuple[torch.nn.Parameter, Any]]) -> float:
    """Norm of all gradients: of all stages of a pipeline, of all ranks' experts and slices."""
    graded = [(p, gradient) for p, gradient in gradients if gradient is not None]
    if isinstance(engine, PipelineEngine):
        group, own = engine.grid.get_model_parallel_group(), graded
    else:
        group, own = None, [(p, g) for p, g in graded if is_elsewhere_too(p)]
    total = torch.stack([torch.zeros(()), *(square(g) for _, g in own)]).sum()
    torch.distributed.all_reduce(total, group=group)
    mine = {id(p) for p, _ in own}
    total += sum(square(g) for p, g in graded if id(p) not in mine)
    return float(total.sqrt())


def is_elsewhere_too(parameter: torch.nn.Parameter) -> bool:
    """Whether each rank has another part of it: experts that are spread, layers that are split."""
    is_spread = not getattr(parameter, "allreduce", True)
    return is_spread or bool(getattr(parameter, "tensor_model_parallel", False))


def square(gradient: torch.Tensor) -> torch.Tensor:
    """Sum of the squares of a gradient."""
    return gradient.float().pow(2).sum()


def run_dtype(engine: Any) -> torch.dtype:
    """Type of the parameters."""
    return next(engine.module.parameters()).dtype


def norm_facts(norms: list[tuple[float, float]]) -> dict[str, Any]:
    """Whether gradients were clipped by the norm of all of them."""
    return {"norm_is_whole": all(math.isclose(a, b, rel_tol=1e-4) for a, b in norms)}


def read_back(engine: Any) -> dict[str, Any]:
    """What the live engine says that it runs."""
    inner = engine.optimizer
    wrapped = getattr(engine, "basic_optimizer", None)
    return {
        "stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "grad_accum": engine.gradient_accumulation_steps(),
        "train_batch_size": engine.train_batch_size(),
        "dp": dp_of(engine),
        "tp": max(1, engine.autotp_size()),
        "sp": engine.sequence_parallel_size,
        "samples_per_step": engine.train_micro_batch_size_per_gpu()
        * engine.gradient_accumulation_steps()
        * dp_of(engine),
        "dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "communication_dtype": str(engine.communication_data_type).removeprefix("torch."),
        "clipping": engine.gradient_clipping(),
        "optimizer": type(wrapped).__name__,
        "wrapper": type(inner).__name__,
        "optimizer_offload": bool(
            getattr(inner, "cpu_offload", False) or getattr(inner, "offload_optimizer", False)
        ),
        "optimizer_swap": bool(getattr(inner, "swap_optimizer", False)),
        "param_offload": bool(getattr(inner, "offload_param", False)),
        "recomputed_layers": recomputed_layers(engine.module),
        "states_dtype": states_dtype(wrapped),
    }


def dp_of(engine: Any) -> int:
    """Data-parallel ranks; DeepSpeed does not say where the script has made the groups."""
    ranks = torch.distributed.get_world_size() // engine.sequence_parallel_size
    return ranks if engine.dp_world_size is None else engine.dp_world_size


def states_dtype(optimizer: Any) -> str:
    """Type of Adam's moments; empty where there are none."""
    states = getattr(optimizer, "state", {}).values()
    found = (state["exp_avg"] for state in states if "exp_avg" in state)
    return next((str(moment.dtype).removeprefix("torch.") for moment in found), "")


def scalars(optimizer: Any) -> dict[str, Any]:
    """Every plain value that the live optimizer and its parameter coordinator hold."""
    found = {}
    offload = getattr(optimizer, "parameter_offload", None)
    coordinator = offload.get_param_coordinator() if offload is not None else None
    for label, thing in (("", optimizer), ("offload.", offload), ("coordinator.", coordinator)):
        for name, value in getattr(thing, "__dict__", {}).items():
            if isinstance(value, (bool, int, float, str)) or value is None:
                found[label + name.split("__")[-1]] = value
    return found


def collectives() -> dict[str, int]:
    """How often each collective ran on each message size."""
    return {
        f"{name}/{size}": values[0]
        for name, sizes in ds_comm.comms_logger.comms_dict.items()
        for size, values in sizes.items()
    }


if __name__ == "__main__":
    with without_debug_information():
        main(sys.argv[1], sys.argv[2])
