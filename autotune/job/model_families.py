"""Shapes by closed formula from the configs of the common Hugging Face architectures.

The formulas count the parameters that transformers builds for causal language modelling; a test
holds them to it for every preset. An architecture that is not here is built and counted instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.base.errors import JobError
from autotune.job.model_shape import ModelShape
from autotune.trial.transformer_shape import attention_window

_MOST = 2**31 - 1
_MOST_LAYERS = 100_000
"""A hundred times those of the deepest model; ten million take minutes to plan for."""


def has_closed_form(config: Mapping[str, Any]) -> bool:
    """Whether the formulas here cover the config."""
    return config["model_type"] in FAMILIES and not config.get("add_cross_attention")


def as_transformers_names_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the family that transformers has for it, and of the text model alone.

    Kimi-K2's code, which lies beside its weights, is DeepSeek-V3's. Llama 4's language model has a
    config of its own inside that of the model that sees pictures.
    """
    if config["model_type"] == "llama4" and isinstance(config.get("text_config"), Mapping):
        return {"model_type": "llama4_text", **config["text_config"]}
    renamed = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    code = {"auto_map"} if renamed != config["model_type"] else set()
    found = {key: value for key, value in config.items() if key not in code}
    return {**found, "model_type": renamed}


_PLAIN_LOSS = frozenset(
    {"gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "olmo2"}
    | {"qwen2_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "minimax_m2"}
)
"""Architectures whose logits are their output head's, unscaled and uncapped; a test holds them to
it."""


def has_plain_loss(config: Mapping[str, Any]) -> bool:
    """Whether the loss is cross entropy over the head's logits, and nothing is added to it.

    Some cap or scale the logits (Gemma 2, Cohere, Granite), and a mixture of experts may add the
    balance of its routers.
    """
    return config["model_type"] in _PLAIN_LOSS and not config.get("output_router_logits")


_PLAIN_MLPS = frozenset({"gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3", "olmo2"})
"""Architectures with a module `mlp` of one tensor in every layer; a test holds them to it."""


def has_plain_mlps(config: Mapping[str, Any]) -> bool:
    """Whether every MLP can be computed over chunks of tokens by itself."""
    return config["model_type"] in _PLAIN_MLPS


_SPLIT_BY_ULYSSES = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3", "olmo2"})
"""Architectures that train the same with their sequences split; a test holds them to it."""


def is_split_by_ulysses(config: Mapping[str, Any], seq_len: int) -> bool:
    """Whether sequence parallelism trains what the whole model does.

    DeepSpeed drops the mask that a window of attention needs, which matters for samples that are
    longer, and the balance of routers is that of whole sequences.
    """
    kind = config["model_type"]
    is_seen = 0 < attention_window(config) < seq_len
    return kind in _SPLIT_BY_ULYSSES and not is_seen and not config.get("output_router_logits")


class _Keys:
    """Reads the sizes of a config and refuses, by file and key, what cannot be a size."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def size(
        self, key: str, *, also: str = "", default: int | None = None, most: int = _MOST
    ) -> int:
        """A count from 1 to `most`; `also` is another spelling that transformers takes."""
        name = also if also and key not in self._config else key
        value = self._config.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise JobError(f"{self._where}: {key} is missing", f"a {self._family} config needs it")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise JobError(
                f"{self._where}: {name}: {value!r} is not a size",
                f"it is a whole number from 1 to {most}",
            )
        return value

    def has(self, key: str) -> bool:
        """Whether the config says anything under a key."""
        return self._config.get(key) is not None

    def number(self, key: str, *, also: str = "", default: int) -> int:
        """A count that may be 0."""
        name = also if also and key not in self._config else key
        return 0 if self._config.get(name) == 0 else self.size(key, also=also, default=default)

    def layers(self, key: str) -> set[int]:
        """Indices of layers; none where the config says none."""
        value = self._config.get(key)
        if value is None:
            return set()
        if not isinstance(value, list) or any(type(index) is not int for index in value):
            raise JobError(
                f"{self._where}: {key}: {value!r} is no list of layers",
                "it holds their indices, the first is 0",
            )
        return set(value)

    def check_experts(self, experts: int, per_token: int) -> None:
        """Refuse more experts for a token than there are."""
        if per_token > experts:
            raise JobError(
                f"{self._where}: num_experts_per_tok {per_token} is more than the {experts} "
                "experts",
                f"choose 1 to {experts}",
            )

    def flag(self, key: str, *, default: bool) -> bool:
        """A yes or no."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise JobError(f"{self._where}: {key}: {value!r} is not true or false", "write either")
        return value

    def divides(self, part: str, n: int, whole: str, total: int) -> None:
        """Refuse a total that does not divide evenly."""
        if total % n:
            raise JobError(
                f"{self._where}: {whole} {total} is not divisible by {part} {n}: "
                f"{total} = {total // n} * {n} + {total % n}",
                f"choose a {part} that divides {total}",
            )

    @property
    def _family(self) -> str:
        return str(self._config["model_type"])


def _gpt2(config: Mapping[str, Any], where: str) -> ModelShape:
    """GPT-2: learned positions, LayerNorm and linear layers with biases, one fused QKV."""
    keys = _Keys(config, where)
    layers = keys.size("n_layer", also="num_hidden_layers", most=_MOST_LAYERS)
    hidden = keys.size("n_embd", also="hidden_size")
    heads = keys.size("n_head", also="num_attention_heads")
    positions = keys.size("n_positions", also="max_position_embeddings")
    vocab = keys.size("vocab_size")
    ffn = keys.size("n_inner", default=4 * hidden)
    tied = keys.flag("tie_word_embeddings", default=True)
    keys.divides("n_head", heads, "n_embd", hidden)

    norms = 2 * 2 * hidden
    attention = 3 * hidden * (hidden + 1) + hidden * (hidden + 1)
    mlp = ffn * (hidden + 1) + hidden * (ffn + 1)
    head = 0 if tied else vocab * hidden
    n_params = (
        (vocab + positions) * hidden + layers * (norms + attention + mlp) + 2 * hidden + head
    )
    return ModelShape(
        n_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn,
        n_heads=heads,
        n_kv_heads=heads,
        vocab=vocab,
        max_seq_len=positions,
        tied_embeddings=tied,
        gated_mlp=False,
        n_experts=0,
        experts_per_token=0,
        n_params=n_params,
        n_params_active=n_params,
        largest_param=hidden * max(vocab, positions, 3 * hidden, ffn),
        n_params_lookup=(positions + (0 if tied else vocab)) * hidden,
    )


def _llama(config: Mapping[str, Any], where: str) -> ModelShape:
    keys = _Keys(config, where)
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    keys.divides("num_attention_heads", heads, "hidden_size", hidden)
    return _biased(config, where, mlp_bias=keys.flag("mlp_bias", default=False))


def _biased(config: Mapping[str, Any], where: str, **more: Any) -> ModelShape:
    """A rotary model whose config says whether its attention has biases."""
    has_bias = _Keys(config, where).flag("attention_bias", default=False)
    return _rotary(config, where, qkv_bias=has_bias, output_bias=has_bias, **more)


def _qwen3(config: Mapping[str, Any], where: str) -> ModelShape:
    """Qwen 3: each head's queries and keys are normalised, by weights that the heads share."""
    head_dim = _Keys(config, where).size("head_dim", default=128)
    return _biased(config, where, head_dim=head_dim, more_norms=2 * head_dim)


def _gemma2(config: Mapping[str, Any], where: str) -> ModelShape:
    """Gemma 2: norms also behind attention and MLP; embeddings are tied unless it says else."""
    keys = _Keys(config, where)
    return _biased(
        config,
        where,
        head_dim=keys.size("head_dim", default=256),
        more_norms=2 * keys.size("hidden_size"),
        is_tied=True,
    )


def _olmo2(config: Mapping[str, Any], where: str) -> ModelShape:
    """OLMo 2: queries and keys are normalised over all heads together."""
    keys = _Keys(config, where)
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    head_dim = _quotient(keys)
    return _biased(config, where, head_dim=head_dim, more_norms=(heads + kv_heads) * head_dim)


def _phi3(config: Mapping[str, Any], where: str) -> ModelShape:
    """Phi 3 and 4: queries, keys and values in one matrix, gate and up projection in another."""
    return _rotary(config, where, is_fused=True)


def _quotient(keys: _Keys) -> int:
    return keys.size("hidden_size") // keys.size("num_attention_heads")


@dataclass(frozen=True, kw_only=True)
class _AttentionSizes:
    """Parameters of a layer's attention, without the layer's norms."""

    n_params: int
    widest: int
    """Elements of its largest matrix."""
    head_dim: int
    latent: Mapping[str, Any]
    """Fields of `ModelShape` that latent attention has."""


@dataclass(frozen=True, kw_only=True)
class _Mixture:
    """The experts of a layer, and which layers have none."""

    n_experts: int
    per_token: int
    ffn: int
    """Width of one expert."""
    shared: int = 0
    """Width of the MLP beside them."""
    dense_layers: tuple[int, ...] = ()
    dense_ffn: int = 0
    router_extra: int = 0
    """Parameters of a layer's router beside its matrix."""
    expert_biases: bool = False


def _rotary(
    config: Mapping[str, Any],
    where: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    ffn: int | None = None,
    head_dim: int | None = None,
    more_norms: int = 0,
    is_fused: bool = False,
    is_tied: bool = False,
    attention: _AttentionSizes | None = None,
    mixture: _Mixture | None = None,
) -> ModelShape:
    """Rotary positions, RMSNorm, grouped-query attention and a gated MLP, or experts of it.

    Args:
        config: Contents of config.json.
        where: Where it came from.
        qkv_bias: Whether queries, keys and values have biases.
        output_bias: Whether attention's output has one.
        mlp_bias: Whether the MLP has some.
        ffn: Width of an MLP; as `intermediate_size` by default.
        head_dim: Width of a head; as the config says by default.
        more_norms: Weights of a layer's norms besides the two of every model.
        is_fused: Whether matrices with the same input are one.
        is_tied: Whether embeddings are tied where the config does not say.
        attention: Attention that is not grouped queries.
        mixture: Experts; None for a dense model.
    """
    keys = _Keys(config, where)
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    hidden = keys.size("hidden_size")
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    vocab = keys.size("vocab_size")
    tied = keys.flag("tie_word_embeddings", default=is_tied)
    keys.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if attention is None:
        attention = _grouped(
            keys, head_dim=head_dim, qkv_bias=qkv_bias, output_bias=output_bias, is_fused=is_fused
        )
    n_dense = layers
    experts = taken = routed = 0
    sizes = [vocab * hidden, attention.widest]
    if mixture is not None:
        n_dense = len(mixture.dense_layers)
        ffn, expert = mixture.ffn, 3 * hidden * mixture.ffn
        expert += 2 * mixture.ffn + hidden if mixture.expert_biases else 0
        experts = (layers - n_dense) * mixture.n_experts * expert
        taken = (layers - n_dense) * mixture.per_token * expert
        router = mixture.n_experts * hidden + mixture.router_extra
        routed = (layers - n_dense) * (router + 3 * hidden * mixture.shared)
        sizes += [2 * mixture.n_experts * mixture.ffn * hidden, mixture.shared * hidden]
    ffn = ffn or keys.size("intermediate_size")
    mlp_width = mixture.dense_ffn if mixture is not None else ffn
    mlp = 3 * hidden * mlp_width + (2 * mlp_width + hidden if mlp_bias else 0)
    if n_dense:
        sizes += [(2 if is_fused else 1) * mlp_width * hidden]
    rest = (1 if tied else 2) * vocab * hidden + hidden + n_dense * mlp + routed
    rest += layers * (attention.n_params + 2 * hidden + more_norms)
    window, n_windowed = _windows(config, layers)
    return ModelShape(
        n_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn,
        n_heads=heads,
        n_kv_heads=kv_heads,
        vocab=vocab,
        max_seq_len=None,
        tied_embeddings=tied,
        gated_mlp=True,
        n_experts=mixture.n_experts if mixture else 0,
        experts_per_token=mixture.per_token if mixture else 0,
        n_params=rest + experts,
        n_params_active=rest + taken,
        largest_param=max(sizes),
        n_params_lookup=0 if tied else vocab * hidden,
        head_dim=attention.head_dim,
        window=window,
        n_windowed_layers=n_windowed,
        **attention.latent,
        **(_expert_fields(mixture) if mixture else {}),
        n_mtp_layers=_n_mtp_layers(keys),
    )


def _grouped(
    keys: _Keys, *, head_dim: int | None, qkv_bias: bool, output_bias: bool, is_fused: bool
) -> _AttentionSizes:
    """Attention with as many heads of keys and values as the config says."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    if head_dim is None and not keys.has("head_dim"):
        keys.divides("num_attention_heads", heads, "hidden_size", hidden)
    head_dim = head_dim or keys.size("head_dim", default=hidden // heads)
    q_width, kv_width = heads * head_dim, kv_heads * head_dim
    n_params = hidden * (q_width + 2 * kv_width) + q_width * hidden
    n_params += (q_width + 2 * kv_width if qkv_bias else 0) + (hidden if output_bias else 0)
    widest = hidden * (q_width + 2 * kv_width if is_fused else q_width)
    return _AttentionSizes(n_params=n_params, widest=widest, head_dim=head_dim, latent={})


def _latent(keys: _Keys) -> _AttentionSizes:
    """DeepSeek's latent attention: low-rank queries, and keys and values, with norms between.

    Its heads are as wide as the mean of what is compared and what is summed, so that the products
    of both are those of ordinary heads of that width.

    Source: DeepSeek-AI, DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    q_rank = keys.size("q_lora_rank") if keys.has("q_lora_rank") else 0
    kv_rank = keys.size("kv_lora_rank")
    nope, rope = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    value = keys.size("v_head_dim")
    query_up = (q_rank or hidden) * heads * (nope + rope)
    value_up = kv_rank * heads * (nope + value)
    out = heads * value * hidden
    n_params = query_up + value_up + out + hidden * (kv_rank + rope) + kv_rank
    n_params += hidden * q_rank + q_rank
    if keys.flag("attention_bias", default=False):
        n_params += q_rank + kv_rank + rope + hidden
    return _AttentionSizes(
        n_params=n_params,
        widest=max(query_up, value_up, out, hidden * (kv_rank + rope), hidden * q_rank),
        head_dim=(nope + rope + value) // 2,
        latent={
            "latent_q_rank": q_rank,
            "latent_kv_rank": kv_rank,
            "latent_nope_dim": nope,
            "latent_rope_dim": rope,
            "latent_value_dim": value,
        },
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Tokens of the window of attention, and layers that have it.

    A chunk of Llama 4 counts as a window of its length: at most that is looked back.
    """
    family = config["model_type"]
    key = "attention_chunk_size" if family == "llama4_text" else "sliding_window"
    window = config.get(key, _WINDOW_BY_DEFAULT.get(family))
    is_off = family.startswith("qwen") and not config.get("use_sliding_window", False)
    if type(window) is not int or window <= 0 or is_off:
        return 0, 0
    kinds = config.get("layer_types") or _kinds_of_layers(config, layers)
    n_windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    return (window, n_windowed) if n_windowed else (0, 0)


_WINDOW_BY_DEFAULT = {
    **{"mistral": 4096, "gemma2": 4096, "gpt_oss": 128, "llama4_text": 8192},
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), 4096),
}
"""Tokens of the window where a config does not say: transformers' config classes."""


def _kinds_of_layers(config: Mapping[str, Any], layers: int) -> list[str]:
    """A word for each layer, as transformers has it where the config says none."""
    family = config["model_type"]
    if family == "llama4_text":
        every = config.get("no_rope_layer_interval", 4)
        default = [int((layer + 1) % every != 0) for layer in range(layers)]
        is_cut = [bool(has_rope) for has_rope in config.get("no_rope_layers") or default]
    elif family in ("gemma2", "gpt_oss"):
        is_cut = [layer % 2 == 0 for layer in range(layers)]
    elif family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)
        is_cut = [layer >= first for layer in range(layers)]
    elif family == "qwen2_moe":
        before = config.get("max_window_layers", 28)
        is_cut = [layer % 2 == 0 and layer < before for layer in range(layers)]
    else:
        is_cut = [True] * layers
    return ["sliding_attention" if cut else "full_attention" for cut in is_cut]


def _expert_fields(mixture: _Mixture) -> dict[str, Any]:
    dense = mixture.dense_layers
    is_first = dense == tuple(range(len(dense)))
    return {
        "n_dense_layers": len(dense),
        "dense_layers": () if is_first else dense,
        "dense_ffn_hidden": mixture.dense_ffn if dense else 0,
        "shared_expert_hidden": mixture.shared,
        "expert_biases": mixture.expert_biases,
    }


def _n_mtp_layers(keys: _Keys) -> int:
    return keys.number("num_nextn_predict_layers", also="num_mtp_layers", default=0)


def _experts(keys: _Keys, key: str, *, also: str = "") -> tuple[int, int]:
    """Experts of a layer, and those that a token takes."""
    experts, per_token = keys.size(key, also=also), keys.size("num_experts_per_tok")
    keys.check_experts(experts, per_token)
    return experts, per_token


def _sparse(keys: _Keys) -> tuple[int, ...]:
    """Layers of Qwen's mixtures that have no experts."""
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    step = keys.size("decoder_sparse_step", default=1)
    plain = keys.layers("mlp_only_layers")
    return tuple(i for i in range(layers) if i in plain or (i + 1) % step)


def _first(keys: _Keys) -> tuple[int, ...]:
    """The dense first layers of DeepSeek's and GLM's mixtures."""
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    return tuple(range(min(layers, keys.number("first_k_dense_replace", default=0))))


def _mixtral(config: Mapping[str, Any], where: str) -> ModelShape:
    """Mixtral: transformers 5 keeps a layer's experts in two tensors of three dimensions."""
    keys = _Keys(config, where)
    experts, per_token = _experts(keys, "num_local_experts", also="num_experts")
    ffn = keys.size("intermediate_size")
    return _rotary(
        config, where, mixture=_Mixture(n_experts=experts, per_token=per_token, ffn=ffn)
    )


def _qwen_mixture(keys: _Keys, **more: Any) -> _Mixture:
    experts, per_token = _experts(keys, "num_experts", also="num_local_experts")
    dense = _sparse(keys)
    return _Mixture(
        n_experts=experts,
        per_token=per_token,
        ffn=keys.size("moe_intermediate_size"),
        dense_layers=dense,
        dense_ffn=keys.size("intermediate_size") if dense else 0,
        **more,
    )


def _qwen2_moe(config: Mapping[str, Any], where: str) -> ModelShape:
    """Qwen 2 with experts, and a shared one behind a gate of one number a token."""
    keys = _Keys(config, where)
    shared = keys.size("shared_expert_intermediate_size", default=5632)
    mixture = _qwen_mixture(keys, shared=shared, router_extra=keys.size("hidden_size"))
    has_bias = keys.flag("qkv_bias", default=True)
    return _rotary(config, where, qkv_bias=has_bias, head_dim=_quotient(keys), mixture=mixture)


def _qwen3_moe(config: Mapping[str, Any], where: str) -> ModelShape:
    """Qwen 3 with experts."""
    keys = _Keys(config, where)
    head_dim = keys.size("head_dim", default=_quotient(keys))
    mixture = _qwen_mixture(keys)
    return _biased(config, where, head_dim=head_dim, more_norms=2 * head_dim, mixture=mixture)


def _deepseek(config: Mapping[str, Any], where: str, **defaults: int) -> ModelShape:
    """DeepSeek-V2 and V3: latent attention, shared experts beside the others, dense layers."""
    keys = _Keys({**_LATENT_BY_DEFAULT, **defaults, **config}, where)
    return _rotary(config, where, attention=_latent(keys), mixture=_shared_experts_of_width(keys))


_LATENT_BY_DEFAULT = {
    **{"q_lora_rank": 1536, "kv_lora_rank": 512},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}


def _shared_experts_of_width(keys: _Keys) -> _Mixture:
    """Experts as DeepSeek's configs say them; the shared ones are one MLP, as wide as they all."""
    experts, per_token = _experts(keys, "n_routed_experts")
    ffn = keys.size("moe_intermediate_size")
    dense = _first(keys)
    return _Mixture(
        n_experts=experts,
        per_token=per_token,
        ffn=ffn,
        shared=keys.number("n_shared_experts", default=0) * ffn,
        dense_layers=dense,
        dense_ffn=keys.size("intermediate_size") if dense else 0,
    )


def _glm4_moe(config: Mapping[str, Any], where: str) -> ModelShape:
    """GLM-4.5: experts like DeepSeek's beside grouped queries; the output has no bias."""
    keys = _Keys({"n_shared_experts": 1, "first_k_dense_replace": 1, **config}, where)
    head_dim = keys.size("head_dim", default=_quotient(keys))
    return _rotary(
        config,
        where,
        qkv_bias=keys.flag("attention_bias", default=False),
        head_dim=head_dim,
        more_norms=2 * head_dim if keys.flag("use_qk_norm", default=False) else 0,
        mixture=_shared_experts_of_width(keys),
    )


def _gpt_oss(config: Mapping[str, Any], where: str) -> ModelShape:
    """GPT-OSS: biases everywhere, a sink per head, windows in every other layer."""
    keys = _Keys(config, where)
    experts, per_token = _experts(keys, "num_local_experts", also="num_experts")
    has_bias = keys.flag("attention_bias", default=True)
    return _rotary(
        config,
        where,
        qkv_bias=has_bias,
        output_bias=has_bias,
        head_dim=keys.size("head_dim", default=64),
        more_norms=keys.size("num_attention_heads"),  # the sinks
        mixture=_Mixture(
            n_experts=experts,
            per_token=per_token,
            ffn=keys.size("intermediate_size"),
            router_extra=experts,
            expert_biases=True,
        ),
    )


def _llama4(config: Mapping[str, Any], where: str) -> ModelShape:
    """Llama 4's language model: one shared expert, and maybe a dense layer between the others."""
    keys = _Keys(config, where)
    experts, per_token = _experts(keys, "num_local_experts", also="num_experts")
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    step = keys.size("interleave_moe_layer_step", default=1)
    sparse = (
        keys.layers("moe_layers") if keys.has("moe_layers") else {*range(step - 1, layers, step)}
    )
    dense = tuple(i for i in range(layers) if i not in sparse)
    ffn = keys.size("intermediate_size")
    mixture = _Mixture(
        n_experts=experts,
        per_token=per_token,
        ffn=ffn,
        shared=ffn,
        dense_layers=dense,
        dense_ffn=keys.size("intermediate_size_mlp", default=16384) if dense else 0,
    )
    return _biased(config, where, head_dim=keys.size("head_dim", default=128), mixture=mixture)


def _minimax_m2(config: Mapping[str, Any], where: str) -> ModelShape:
    """MiniMax-M2: queries and keys are normalised over all heads together."""
    keys = _Keys(config, where)
    experts, per_token = _experts(keys, "num_local_experts", also="num_experts")
    heads = keys.size("num_attention_heads")
    head_dim = keys.size("head_dim", default=128)
    return _rotary(
        config,
        where,
        head_dim=head_dim,
        more_norms=(heads + keys.size("num_key_value_heads", default=8)) * head_dim,
        mixture=_Mixture(
            n_experts=experts, per_token=per_token, ffn=keys.size("intermediate_size")
        ),
    )


FAMILIES: dict[str, Callable[[Mapping[str, Any], str], ModelShape]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _rotary,
    "qwen2": partial(_rotary, qkv_bias=True),
    "mixtral": _mixtral,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": partial(_deepseek, n_shared_experts=2),
    "deepseek_v3": partial(_deepseek, n_shared_experts=1, first_k_dense_replace=3),
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "gemma2": _gemma2,
    "olmo2": _olmo2,
    "phi3": _phi3,
}
"""model_type -> shape of a config, given where the config came from; raises JobError."""

SPLIT_BY_AUTOTP = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma2"})
"""Those of them that DeepSpeed's AutoTP splits. It refuses GPT-2 by name (`AutoTP.supported`), and
what transformers 5 plans in a style that `TPPlanConverter.convert` does not know: packed experts,
fused matrices, norms over all heads."""
