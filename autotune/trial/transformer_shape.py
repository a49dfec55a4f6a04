"""Which Hugging Face configs the pipeline's transformer can be, and which sizes models say.

Nothing here imports torch: the coordinator asks before a trial, a rank when it builds the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.contract import Layout, Workload, settings_of
from autotune.trial.scripts.lengths import is_drawn

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
"""Architectures that `autotune.trial.scripts.transformer` computes exactly."""

HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nheads", "nhead")
"""What the number of attention heads is called."""
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "n_query_groups")
"""What the number of heads of keys and values is called, where they are fewer."""
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Hugging Face's name -> the transformer's."""

_LONGEST = "original_max_position_embeddings"
_SCALED_BY = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LONGEST),
}
"""Kind of rotary positions -> the keys that it reads besides `rope_theta`."""

_WINDOWS = {"mistral": 4096, "mixtral": 0, "qwen2": 4096, "qwen3": 4096}
"""Tokens that architectures with a window of attention see where the config does not say."""

_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
"""Heads of keys where a config does not name them; null, and Llama's silence, mean all heads."""

Config = Mapping[str, Any]


class NoPipelineError(ValueError):
    """The transformer cannot compute what this config describes; the message says what."""


def refusal(source: Config, *, seq_len: int, lengths: Config) -> str:
    """Why a job (arguments as in `Workload`) cannot be a pipeline; empty where it can."""
    if is_drawn(lengths):
        return "samples of different lengths are padded and masked, which its layers do not know"
    try:
        shape_of(source, seq_len)
    except NoPipelineError as error:
        return str(error)
    return ""


def script_settings(workload: Workload, layout: Layout) -> dict[str, Any]:
    """Settings for the built-in training script; for a pipeline also the sizes of its layers.

    Raises:
        NoPipelineError: As `shape_of`.
    """
    settings = settings_of(workload, layout)
    if layout.pp > 1:
        settings["transformer"] = shape_of(workload.model, workload.seq_len)
    return settings


def attention_window(config: Config) -> int:
    """Tokens before it that a token attends to, as transformers reads a config; 0: all of them."""
    family = config["model_type"]
    if family.startswith("qwen") and not config.get("use_sliding_window", False):
        return 0
    if family not in _WINDOWS:
        return 0
    window = config.get("sliding_window", _WINDOWS[family])
    return window if type(window) is int else 0


class _Noting(dict[str, Any]):
    """A config that knows which key was read last, to name it where it cannot be used."""

    last = ""

    def __getitem__(self, key: str) -> Any:
        self.last = key
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.last = key
        return super().get(key, default)


def shape_of(source: Config, seq_len: int) -> dict[str, Any]:
    """The fields of `autotune.trial.scripts.transformer.Shape` for a model (`Workload.model`).

    Keys that its Hugging Face config leaves out are those of transformers' own config classes. A
    window of attention matters only to samples of more tokens.

    Raises:
        NoPipelineError: The transformer has no such architecture, activation, positions, ...; or
            a value is missing or malformed.
    """
    if "lora" in source:
        raise NoPipelineError("LoRA: the pipeline's transformer has no adapters")
    if "config" not in source:
        raise NoPipelineError(
            "a factory's model is one module, which autotune cannot cut into layers"
        )
    config = source["config"]
    family = config.get("model_type")
    if family not in FAMILIES:
        raise NoPipelineError(
            f"model_type {family}: the pipeline's transformer knows {', '.join(FAMILIES)}"
        )
    noting = _Noting(config)
    try:
        return _gpt2(noting) if family == "gpt2" else _rotary_family(noting, seq_len)
    except NoPipelineError:
        raise
    except KeyError as error:
        raise NoPipelineError(f"{family}: its config lacks {error.args[0]}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NoPipelineError(f"{family}: its config's {noting.last}: {error}") from error


def _gpt2(config: Config) -> dict[str, Any]:
    for key, plain in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("reorder_and_upcast_attn", False),
        ("add_cross_attention", False),
    ):
        if config.get(key, plain) is not plain:
            raise NoPipelineError(f"gpt2 with {key}={config[key]}: only {plain} is known")

    def size(key: str, also: str, default: int) -> int:
        return int(config.get(key, config.get(also, default)))

    hidden = size("n_embd", "hidden_size", 768)
    heads = size("n_head", "num_attention_heads", 12)
    return {
        "n_layers": size("n_layer", "num_hidden_layers", 12),
        "hidden": hidden,
        "ffn_hidden": int(config.get("n_inner") or 4 * hidden),
        "n_heads": heads,
        "n_kv_heads": heads,
        "head_dim": hidden // heads,
        "vocab": int(config.get("vocab_size", 50257)),
        "n_positions": size("n_positions", "max_position_embeddings", 1024),
        "norm": "layer",
        "norm_eps": float(config.get("layer_norm_epsilon", 1e-5)),
        "activation": _activation(config.get("activation_function", "gelu_new")),
        "gated_mlp": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "embedding_dropout": float(config.get("embd_pdrop", 0.1)),
        "attention_dropout": float(config.get("attn_pdrop", 0.1)),
        "residual_dropout": float(config.get("resid_pdrop", 0.1)),
        "init_std": float(config.get("initializer_range", 0.02)),
    }


def _rotary_family(config: Config, seq_len: int) -> dict[str, Any]:
    family, window = config["model_type"], attention_window(config)
    if 0 < window < seq_len:
        raise NoPipelineError(
            f"{family} attends to a window of {window} tokens (sliding_window), and samples have "
            f"{seq_len}: only whole samples are known"
        )
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    # qwen3 has a head size of its own; the others divide the hidden size unless told otherwise.
    head_dim = config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    kv_heads = config.get("num_key_value_heads", _KV_HEADS.get(family)) or heads
    has_bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    return {
        "n_layers": int(config["num_hidden_layers"]),
        "hidden": hidden,
        "ffn_hidden": int(config["intermediate_size"]),
        "n_heads": heads,
        "n_kv_heads": int(kv_heads),
        "head_dim": int(head_dim),
        "vocab": int(config["vocab_size"]),
        "n_positions": 0,
        "norm": "rms",
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "activation": _activation(config.get("hidden_act", "silu")),
        "gated_mlp": True,
        "qkv_bias": has_bias or family == "qwen2",
        "output_bias": has_bias,
        "mlp_bias": family == "llama" and bool(config.get("mlp_bias", False)),
        "qk_norm": family == "qwen3",
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "rotary": rotary_of(config),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "init_std": float(config.get("initializer_range", 0.02)),
    }


def rotary_of(config: Config) -> dict[str, Any]:
    """The settings of rotary positions, in the old spelling (`rope_scaling`) or the new one.

    Raises:
        NoPipelineError: They are of another kind, or of a part of each head.
    """
    rope = rope_settings(config)
    kind = rope["rope_type"]
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if kind not in _SCALED_BY or partial not in (None, 1.0):
        raise NoPipelineError(
            f"{config['model_type']} with rotary positions of type {kind} over a share of "
            f"{partial}: known are {', '.join(_SCALED_BY)}, over whole heads"
        )
    if kind == "llama3":
        rope.setdefault(_LONGEST, config.get("max_position_embeddings", 2048))
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    scaled = {key: rope[key] for key in _SCALED_BY[kind]}
    for key, value in scaled.items():
        if type(value) not in (int, float):
            raise NoPipelineError(f"rotary positions of type {kind}: {key} is {value!r}")
    return {"kind": kind, "theta": float(theta)} | scaled


def rope_settings(config: Config) -> dict[str, Any]:
    """What a config says of rotary positions, with their kind as `rope_type`."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    return {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}


def _activation(name: object) -> str:
    if name not in _ACTIVATIONS:
        raise NoPipelineError(f"activation {name}: known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[str(name)]


def size_named(module: Any, names: Sequence[str]) -> int:
    """A size by its name in a torch module, its config or one of its parts; 0: none says it."""
    for part in module.modules():  # itself first
        held = vars(part)
        for holder in (held, *map(held.get, ("config", "cfg", "args"))):
            values = holder if isinstance(holder, Mapping) else getattr(holder, "__dict__", {})
            for value in map(values.get, names):
                if type(value) is int and value > 0:
                    return value
    return 0
