"""Build a model without memory and count it: `python -m autotune.job.model_probe ANSWER < source`.

Run by `autotune.job.model` in a process of its own, since it imports torch and the user's code.
"""

import importlib
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.job.model_families import Family
from autotune.job.model_shape import LATENT_KEYS, ModelShape
from autotune.job.published import unsaid_layers
from autotune.trial.scripts.train import add_adapters
from autotune.trial.transformer_shape import HEADS, KV_HEADS, size_named

_EXPERT = re.compile(r"(^|\.)experts\.")
_EXPERTS = re.compile(r"(\w+_)?experts")
_GATE = re.compile(r"(^|\.)(gate_proj|gate_up_proj|w3|v1)(\.weight)?$")
_SHARED_EXPERT = re.compile(r"(^|\.)shared_(experts?|mlp)\.")
_LAYER = re.compile(r"(^|\.)(\d+)\.")
_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
"""Kinds of layers, by transformers' `layer_types`, whose arithmetic attention's formula says."""
_UNSAID_SHARE = 0.05
"""Weights of the layers that the sizes leave unexplained before they count as of another kind:
biases, norms, routers' scales and small projections of their own explain less."""
_POSITION = re.compile(r"(^|[._])(wpe|pos|position|positions|position_embeddings?)$")

# DeepSpeed 0.19.8, module_inject/tp_plan_converter.py.
_TP_STYLES = {
    *("colwise", "colwise_rep", "colwise_gather_output", "rowwise"),
    *("replicated_with_grad_allreduce", "embedding_rowwise"),
}


class NotUsableError(JobError):
    """The model cannot be built, or not be trained as it is."""


def main() -> None:
    """Answer with the shape of the source's model."""
    answer(_found)


def answer(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read a request from stdin and write what `work` makes of it, or what is wrong, to a file."""
    try:
        found = work(json.load(sys.stdin))
    except NotUsableError as error:
        found = {"error": error.message, "hint": error.hint}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


def _found(source: dict[str, Any]) -> dict[str, Any]:
    module = build(source)
    if "lora" in source:
        shape = adapted_shape(module, source)
        adapted = (name for name, p in module.named_parameters() if p.requires_grad)
        return {"shape": shape, "adapts_experts": any(map(_EXPERT.search, adapted))}
    return {
        "shape": shape_of(module),
        "supports_tp": _supports_tp(module),
        "supports_recompute": _supports_recompute(module),
        "attention": attention_of(type(module)),
        "expert_blocks": _expert_blocks(module),
    }


def build(source: dict[str, Any]) -> nn.Module:
    """Build the module on the meta device and check that it can be called as trials call it.

    Raises:
        NotUsableError: It cannot be built, is no module, or takes other arguments.
    """
    module = _from_config(source["config"]) if "config" in source else _from_factory(source)
    _check_forward(module)
    return module


def shape_of(module: nn.Module) -> dict[str, Any]:
    """The fields of a `ModelShape`, from the module's tensors and, where it has one, its config.

    Raises:
        NotUsableError: It has no trainable parameters, its vocabulary cannot be seen, or a token
            takes more experts than there are.
    """
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    n_trained = _n_trained(module)
    if not n_trained:
        raise NotUsableError("it has no trainable parameters", "return a module to train")
    config = getattr(module, "config", None)
    known = _reader(config)
    words, positions = _embeddings(module)
    vocab = known("vocab_size") or (words.num_embeddings if words else 0)
    if not vocab:
        raise NotUsableError.of("job.no_vocabulary")
    n_experts = known("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    per_token = known("num_experts_per_tok", "num_experts_per_token", "moe_top_k")
    if per_token > n_experts > 0:
        where, n = "the config of the model", per_token
        raise NotUsableError.of("job.too_few_experts", where=where, n=n, experts=n_experts)
    of_experts = _expert_names(module, n_experts)
    in_experts = sum(sizes[name] for name in of_experts)
    idle = in_experts - in_experts * per_token // n_experts if n_experts and per_token else 0
    is_of_family = isinstance(module, PreTrainedModel)  # whose config says what there is
    heads = known("num_attention_heads") or (0 if is_of_family else size_named(module, HEADS))
    expert_ffn = known("moe_intermediate_size") if n_experts else 0
    shape = {
        "n_layers": known("num_hidden_layers") or _longest_list(module),
        "hidden": known("hidden_size") or (words.embedding_dim if words else 0),
        "ffn_hidden": expert_ffn
        or known("intermediate_size", "ffn_dim", "ffn_hidden_size")
        or _mlp_width(module, known("hidden_size")),
        "n_heads": heads,
        "n_kv_heads": _kv_heads(config, known)
        or (0 if is_of_family else size_named(module, KV_HEADS))
        or heads,
        "vocab": vocab,
        # Where positions are learned, there is a last one.
        "max_seq_len": positions
        and (known("max_position_embeddings") or positions.num_embeddings),
        "configured_positions": 0 if positions else known("max_position_embeddings"),
        "tied_embeddings": words is not None and _is_shared(module, words),
        "gated_mlp": any(_GATE.search(name) for name in sizes),
        "n_experts": n_experts,
        "experts_per_token": per_token,
        "n_params": n_trained,
        "n_params_frozen": sum(sizes.values()) - n_trained,
        "n_params_active": sum(sizes.values()) - idle,
        "largest_param": max(sizes.values()),
        "n_params_lookup": sum(_lookups(module)),
        "head_dim": _head_dim(known),
        **({n: known(key) for n, key in LATENT_KEYS.items()} if known("kv_lora_rank") else {}),
        **_windows(config),
    }
    if n_experts > 1:
        dense_ffn = known("intermediate_size_mlp", "intermediate_size")
        shape |= _beside_experts(module, shape, of_experts, dense_ffn)
    return {**shape, "unsaid": _unsaid(module, config, ModelShape(**shape))}


def _mlp_width(module: nn.Module, hidden: int) -> int:
    """Width of an MLP whose config does not say it (Bloom, GPT-J); 0: none is seen."""
    named = ((name.split("."), p) for name, p in module.named_parameters() if p.dim() == 2)
    matrices = (p for names, p in named if {"mlp", "ffn"} & {*names} and hidden in p.shape)
    return max((p.numel() // hidden for p in matrices), default=0)


def _kv_heads(config: Any, known: Callable[..., int]) -> int:
    """Heads of keys; 0 where the config says none. Falcon's first releases share one."""
    text = _text_config(config)
    is_shared = getattr(text, "multi_query", False) is True
    if is_shared and not getattr(text, "new_decoder_architecture", False):
        return 1
    return known("num_key_value_heads", "num_kv_heads", "kv_n_heads")


def _expert_names(module: nn.Module, n_experts: int) -> set[str]:
    """Names of the parameters of experts: by their name, or one tensor for them all."""
    return {
        name
        for name, p in module.named_parameters()
        if _EXPERT.search(name) or (p.dim() == 3 and n_experts > 1 and p.shape[0] == n_experts)
    }


def _windows(config: Any) -> dict[str, int]:
    text = _text_config(config)
    named = (getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size"))
    window = next((value for value in named if type(value) is int and value > 0), 0)
    kinds = getattr(text, "layer_types", None)
    n_layers = getattr(text, "num_hidden_layers", 0)
    cut = ("sliding_attention", "chunked_attention")
    n_windowed = sum(kind in cut for kind in kinds) if kinds else n_layers
    return {"window": window, "n_windowed_layers": n_windowed} if window and n_windowed else {}


def _beside_experts(
    module: nn.Module, shape: dict[str, Any], of_experts: set[str], dense_ffn: int
) -> dict[str, Any]:
    """Layers without experts, and the MLP that every token passes beside them."""
    sparse = {int(found[2]) for name in of_experts if (found := _LAYER.search(name))}
    dense = tuple(index for index in range(shape["n_layers"]) if index not in sparse)
    by_layer: dict[int, int] = {}
    for name, p in module.named_parameters():
        if _SHARED_EXPERT.search(name) and p.dim() == 2 and (found := _LAYER.search(name)):
            by_layer[int(found[2])] = by_layer.get(int(found[2]), 0) + p.numel()
    matrices = 3 if shape["gated_mlp"] else 2
    return {
        "n_dense_layers": len(dense),
        "dense_layers": () if dense == tuple(range(len(dense))) else dense,
        "dense_ffn_hidden": dense_ffn if dense else 0,
        "expert_biases": any(name.endswith("bias") for name in of_experts),
        "shared_expert_hidden": max(by_layer.values(), default=0) // matrices // shape["hidden"],
    }


def _unsaid(module: nn.Module, config: Any, shape: ModelShape) -> str:
    """Why the sizes do not say what the layers are; empty where they do.

    Layers that are no attention are told by their kind; any others by their weights, which
    attention and MLPs of these sizes would not have.
    """
    text = _text_config(config)
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    others = sorted({str(kind) for kind in kinds} - _ATTENTION)
    if others:  # transformers calls Mamba's linear attention, too
        known = unsaid_layers(str(getattr(text, "model_type", "")))
        return known or f"layers of {' and '.join(others)}"
    if shape.n_experts > 1 and not shape.experts_per_token:
        return "experts of which nobody says how many a token takes"
    if not (shape.n_heads and shape.hidden and shape.ffn_hidden):
        return ""  # refused for the sizes that cannot be seen
    built = sum(
        p.numel()
        for name, p in module.named_parameters()
        if p.dim() > 1 and (found := _LAYER.search(name)) and int(found[2]) < shape.n_layers
    )
    expected = shape.layer_weights
    if abs(built - expected) <= _UNSAID_SHARE * expected:
        return ""
    return f"layers of {built:,} weights, where attention and MLPs of its sizes have {expected:,}"


def _head_dim(known: Callable[..., int]) -> int | None:
    """Width of one head; of latent attention the mean of what is compared and what is summed."""
    if compared := known("qk_nope_head_dim"):
        return (compared + known("qk_rope_head_dim") + known("v_head_dim")) // 2
    return known("head_dim") or None


def adapted_shape(module: nn.Module, source: dict[str, Any]) -> dict[str, Any]:
    """The shape of a module with the source's adapters, which are put into it.

    Raises:
        NotUsableError: peft cannot put them there, or there is nothing that they go to.
    """
    before = shape_of(module)
    idle = before["n_params"] + before["n_params_frozen"] - before["n_params_active"]
    try:
        add_adapters(module, source["lora"])
    except Exception as error:
        kinds = ((name.rpartition(".")[2], type(m)) for name, m in module.named_modules())
        linear = {n for n, k in kinds if issubclass(k, nn.Linear) or k.__name__ == "Conv1D"}
        known = ", ".join(sorted(linear)) or "it has none"
        raise NotUsableError.of("job.no_targets", error=one_line(error), known=known) from error
    sizes = [p.numel() for p in module.parameters()]
    n_trained = _n_trained(module)
    if before["n_experts"]:
        adapters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        of_experts = sum(p.numel() for name, p in adapters.items() if _EXPERT.search(name))
        idle += of_experts - of_experts * before["experts_per_token"] // before["n_experts"]
    return {
        **before,
        "n_params": n_trained,
        "n_params_frozen": sum(sizes) - n_trained,
        "n_params_active": sum(sizes) - idle,
        "largest_param": max(sizes),
    }


def _n_trained(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _from_config(config: dict[str, Any]) -> nn.Module:
    try:
        hf_config = AutoConfig.for_model(**config)
        with torch.device("meta"):
            module: nn.Module = AutoModelForCausalLM.from_config(hf_config)
    except Exception as error:
        kind, known = config["model_type"], [*CONFIG_MAPPING]
        alike = " (the model_type of a family with the same layers will do: qwen3_moe)"
        mend = "mend the config" if kind in known else f"{did_you_mean(kind, known)}mend it{alike}"
        mend += ", or write a factory"
        if kind in known and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            mend = "plans forecast decoders alone; to trace and to train it, write a factory"
        if "auto_map" in config:
            mend = "its code lies beside its weights: write a factory that loads it with "
            mend += "trust_remote_code=True"
        unsaid = unsaid_layers(kind)
        only = f"; its {unsaid} cannot be predicted, only traced and trained" if unsaid else ""
        # Without all of its types.
        reason = re.split(r"\. Should contain one of |\. Model type should ", one_line(error))[0]
        facts = {"kind": kind, "reason": reason, "mend": mend, "only": only}
        raise NotUsableError.of("job.not_built", **facts) from error
    return module


def _from_factory(source: dict[str, Any]) -> nn.Module:
    sys.path[:0] = [path for path in source["path"] if path not in sys.path]
    name, _, attribute = source["factory"].partition(":")
    try:
        found = importlib.import_module(name)
    except Exception as error:
        facts = {"reason": one_line(error), "searched": ", ".join(source["path"])}
        raise NotUsableError.of("job.not_imported", name=name, **facts) from error
    factory = getattr(found, attribute, None)
    if not callable(factory):
        names = sorted(key for key, value in vars(found).items() if callable(value))
        facts = {"attribute": attribute, "names": ", ".join(names) or "none"}
        raise NotUsableError.of("job.no_callable", name=name, **facts)
    module = _call(factory)
    if not isinstance(module, nn.Module):
        raise NotUsableError.of("job.no_module", kind=type(module).__name__)
    return module


def _call(factory: Callable[[], Any]) -> Any:
    try:
        with torch.device("meta"):
            return factory()
    except Exception:
        # Reading a value (`.item()`, `.tolist()`) while building is fine in a trial, not on meta.
        pass
    try:
        return factory()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = one_line(error)
        raise NotUsableError.of("job.factory_raised", reason=reason, frame=frame) from error


def _check_forward(module: nn.Module) -> None:
    try:
        inspect.signature(module.forward).bind(input_ids=None, labels=None)
    except TypeError as error:
        kind = type(module).__name__
        raise NotUsableError.of("job.no_forward", kind=kind, error=error) from error


def _supports_tp(module: nn.Module) -> bool:
    """Whether AutoTP would take it: every style of the model's plan is one that it converts.

    It splits linear layers; experts that are packed into tensors of their own are none. Where it
    goes by names for want of a plan, Falcon's heads and Bloom's ALiBi raise.
    """
    if not isinstance(module, PreTrainedModel) or any(p.dim() > 2 for p in module.parameters()):
        return False
    of_layers = getattr(module.config, "base_model_tp_plan", None)
    plan = {**(of_layers or {}), **(getattr(module, "_tp_plan", None) or {})}
    return bool(of_layers) and {*plan.values()} <= _TP_STYLES


def _supports_recompute(module: nn.Module) -> bool:
    has_switch = callable(getattr(module, "gradient_checkpointing_enable", None))
    return bool(getattr(module, "supports_gradient_checkpointing", has_switch))


def attention_of(kind: type[nn.Module]) -> list[str]:
    """Values of `attn_implementation` that train it: flex_attention if no other is fused."""
    if not issubclass(kind, PreTrainedModel):
        return [*Family().attention]
    # The flash attention that GPT-OSS names, vllm-flash-attn3, has no gradients of its sinks.
    has_flash = kind._supports_flash_attn and not kind._compatible_flash_implementations
    fused = {"sdpa": kind._supports_sdpa, "flash_attention_2": has_flash}
    fused["flex_attention"] = kind._supports_flex_attn and not any(fused.values())
    return ["eager", *(name for name, is_there in fused.items() if is_there)]


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _expert_blocks(module: nn.Module) -> list[str]:
    """Classes of blocks whose experts are modules, of which a token passes some."""
    return sorted(
        {
            type(block).__name__
            for block in module.modules()
            for name, child in block.named_children()
            if _EXPERTS.fullmatch(name) and isinstance(child, nn.ModuleList) and len(child) > 1
        }
    )


def _reader(config: Any) -> Callable[..., int]:
    text = _text_config(config)
    parts = [text, *(getattr(text, name, None) for name in ("ffn_config", "attn_config"))]  # DBRX

    def known(*names: str) -> int:
        values = (getattr(part, name, None) for part in parts for name in names)
        # A list has a value for each layer (Hunyuan).
        values = (v[0] if isinstance(v, list) and len({*map(str, v)}) == 1 else v for v in values)
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), 0)

    return known


def _embeddings(module: nn.Module) -> tuple[nn.Embedding | None, nn.Embedding | None]:
    """The embedding of the tokens (the largest that is not one of positions) and of positions."""
    found = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Embedding)]
    positions = [m for name, m in found if _POSITION.search(name)]
    words = [m for name, m in found if not _POSITION.search(name)]
    largest = max(words, key=lambda m: m.num_embeddings, default=None)
    return largest, positions[0] if positions else None


def _is_shared(module: nn.Module, embedding: nn.Embedding) -> bool:
    others = (m for m in module.modules() if not isinstance(m, nn.Embedding))
    return any(p is embedding.weight for m in others for p in m.parameters(recurse=False))


def _lookups(module: nn.Module) -> Iterator[int]:
    counted: set[int] = set()
    for part in module.modules():
        if not isinstance(part, nn.Embedding) or id(part.weight) in counted:
            continue
        counted.add(id(part.weight))
        if not _is_shared(module, part):
            yield part.weight.numel()


def _longest_list(module: nn.Module) -> int:
    lists = [m for m in module.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    alike = (len(m) for m in lists if len({type(layer) for layer in m}) == 1)
    return max(alike, default=0)


def one_line(error: Exception) -> str:
    """Message of an exception, in one line that is not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]


if __name__ == "__main__":
    main()
