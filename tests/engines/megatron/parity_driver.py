"""Compares Hugging Face's models with Megatron's: `parity_driver.py CASES.json OUT.json`.

Each case has a Hugging Face config, and the arguments that are to make Megatron's model the same
one. Weights are copied from the first to the second; both answer with the loss and the gradient
norm of the same tokens. One rank, in 32 bits.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers  # before the host takes CUDA's place

from autotune.trial.engines import megatron as driver
from autotune.trial.scripts import train_megatron

TOKENS = 32
SAMPLES = 2
Weights = Mapping[str, torch.Tensor]


def hugging_face(config: dict[str, Any]) -> Any:
    """The model with random weights, norms and biases that are not all alike."""
    chosen = transformers.AutoConfig.for_model(**config)
    chosen._attn_implementation = "eager"
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(chosen).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "bias" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    return model


def attention(weights: Weights, at: str, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Megatron's names of a layer's attention, below it, and the weights."""
    yield "linear_proj.weight", weights[f"{at}o_proj.weight"]
    if f"{at}kv_a_proj_with_mqa.weight" in weights:
        latent = {
            "linear_q_proj": "q_proj",
            "linear_q_down_proj": "q_a_proj",
            "q_layernorm": "q_a_layernorm",
            "linear_q_up_proj": "q_b_proj",
            "linear_kv_down_proj": "kv_a_proj_with_mqa",
            "kv_layernorm": "kv_a_layernorm",
            "linear_kv_up_proj": "kv_b_proj",
        }
        for ours, hf_name in latent.items():
            if f"{at}{hf_name}.weight" in weights:
                yield f"{ours}.weight", weights[f"{at}{hf_name}.weight"]
        return
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    for kind in ("weight", "bias"):
        if f"{at}q_proj.{kind}" not in weights:
            continue
        parts = [weights[f"{at}{letter}_proj.{kind}"] for letter in "qkv"]
        counts = heads // groups, 1, 1
        width = len(parts[1]) // groups
        split = [part.view(groups, n, width, -1) for part, n in zip(parts, counts, strict=True)]
        whole = torch.cat(split, 1).flatten(0, 2)
        yield f"linear_qkv.{kind}", whole if kind == "weight" else whole.squeeze(-1)
    for letter in "qk":
        if f"{at}{letter}_norm.weight" in weights:
            yield f"{letter}_layernorm.weight", weights[f"{at}{letter}_norm.weight"]
    if f"{at}sinks" in weights:
        yield "core_attention.softmax_offset", weights[f"{at}sinks"]
        yield "linear_proj.bias", weights[f"{at}o_proj.bias"]


def mlp(weights: Weights, at: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Megatron's names of an MLP, and the weights: the gate before the up projection."""
    if f"{at}gate_proj.weight" in weights:
        gate, up = weights[f"{at}gate_proj.weight"], weights[f"{at}up_proj.weight"]
        yield "linear_fc1.weight", torch.cat([gate, up])
        yield "linear_fc2.weight", weights[f"{at}down_proj.weight"]


def experts(weights: Weights, at: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Megatron's names of a layer's router and experts, below its MLP, and the weights."""
    router = next(at + name for name in ("gate.", "router.") if f"{at}{name}weight" in weights)
    for ours, hf_name in (
        ("weight",) * 2,
        ("bias",) * 2,
        ("expert_bias", "e_score_correction_bias"),
    ):
        if router + hf_name in weights:
            yield f"router.{ours}", weights[router + hf_name]
    for name in ("shared_experts.", "shared_expert."):
        for ours, weight in mlp(weights, at + name):
            yield f"shared_experts.{ours}", weight
    if f"{at}shared_expert_gate.weight" in weights:
        yield "shared_experts.gate_weight", weights[f"{at}shared_expert_gate.weight"]
    ups, downs = weights[f"{at}experts.gate_up_proj"], weights[f"{at}experts.down_proj"]
    has_biases = f"{at}experts.gate_up_proj_bias" in weights  # GPT-OSS: gate and up take turns
    for number, (up, down) in enumerate(zip(ups, downs, strict=True)):
        name = f"experts.local_experts.{number}.linear_fc"
        if has_biases:
            up, down = up.t(), down.t()
            bias = weights[f"{at}experts.gate_up_proj_bias"][number]
            yield f"{name}1.bias", torch.cat([bias[0::2], bias[1::2]])
            yield f"{name}2.bias", weights[f"{at}experts.down_proj_bias"][number]
            up = torch.cat([up[0::2], up[1::2]])
        yield f"{name}1.weight", up
        yield f"{name}2.weight", down


def renamed(weights: Weights, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights of a Hugging Face model by Megatron's names."""
    yield "embedding.word_embeddings.weight", weights["model.embed_tokens.weight"]
    yield "output_layer.weight", weights["lm_head.weight"]
    yield "decoder.final_layernorm.weight", weights["model.norm.weight"]
    for number in range(config.num_hidden_layers):
        prefix, ours = f"model.layers.{number}.", f"decoder.layers.{number}."
        yield f"{ours}input_layernorm.weight", weights[f"{prefix}input_layernorm.weight"]
        after = weights[f"{prefix}post_attention_layernorm.weight"]
        yield f"{ours}pre_mlp_layernorm.weight", after
        for name, weight in attention(weights, f"{prefix}self_attn.", config):
            yield f"{ours}self_attention.{name}", weight
        is_dense = f"{prefix}mlp.gate_proj.weight" in weights
        of_mlp = (mlp if is_dense else experts)(weights, f"{prefix}mlp.")
        for name, weight in of_mlp:
            yield f"{ours}mlp.{name}", weight


def gradient_norm(model: torch.nn.Module) -> float:
    """Of all parameters together."""
    gradients = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return float(torch.stack(gradients).norm())


def tokens_of(case: Mapping[str, Any]) -> torch.Tensor:
    """Token ids (samples, tokens), the same ones for both."""
    shape, vocab = (SAMPLES, TOKENS), case["arguments"]["vocab_size"]
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(5))


def ours(case: Mapping[str, Any], reference: Any) -> dict[str, Any]:
    """What Megatron's model computes with the weights of a Hugging Face one."""
    from megatron.core import parallel_state

    tokens, arguments = tokens_of(case), case["arguments"]
    settings = train_megatron.settings_of(case["settings"], arguments)
    training = train_megatron.make_training(arguments, settings)
    model = train_megatron.unwrapped(training.chunks[0])
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    done = set()
    with torch.no_grad():
        for name, weight in renamed(reference.state_dict(), reference.config):
            assert state[name].shape == weight.shape, (name, state[name].shape, weight.shape)
            state[name].copy_(weight)
            done.add(name)
    mask = torch.ones(tokens.shape)
    mask[:, -1] = 0.0
    positions = torch.arange(TOKENS).expand_as(tokens)
    losses = model(tokens, positions, None, labels=tokens.roll(-1, 1), loss_mask=mask)
    loss = (losses * mask).sum() / mask.sum()
    loss.backward()
    parallel_state.destroy_model_parallel()
    return {
        "ours": [loss.item(), gradient_norm(_with_main_grads(model))],
        "unset": [name for name, _ in model.named_parameters() if name not in done],
    }


def _with_main_grads(model: torch.nn.Module) -> torch.nn.Module:
    """The model with its gradients where torch has them, and not in Megatron's buffer."""
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad
    return model


def main() -> None:
    """Compare every case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        **{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    torch.set_num_threads(1)
    cases = json.loads(Path(sys.argv[1]).read_text())
    models = [hugging_face(case["config"]) for case in cases]
    answers = []
    for case, model in zip(cases, models, strict=True):
        tokens = tokens_of(case)
        found = model(input_ids=tokens, labels=tokens)
        found.loss.backward()
        answers.append({"theirs": [found.loss.item(), gradient_norm(model)]})
    driver.load_code("cpu")
    driver.join_ranks()
    for case, model, answer in zip(cases, models, answers, strict=True):
        answer |= ours(case, model)
    Path(sys.argv[2]).write_text(json.dumps(answers))
    os._exit(0)


if __name__ == "__main__":
    main()
