"""Shapes by closed formula from the configs of the common Hugging Face architectures.

The formulas count the parameters that transformers builds for causal language modelling; a test
holds them to it for every preset. An architecture that is not here is built and counted instead.
"""

from collections.abc import Callable, Mapping
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
    is_plain = not config.get("add_cross_attention")
    # Layers of experts with plain ones between them are counted by building them.
    is_even = not config.get("mlp_only_layers") and config.get("decoder_sparse_step", 1) == 1
    return config["model_type"] in FAMILIES and is_plain and is_even


_PLAIN_LOSS = frozenset(
    {"gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "olmo2"}
)
"""Architectures whose logits are their output head's, unscaled and uncapped; a test holds them to
it."""


def has_plain_loss(config: Mapping[str, Any]) -> bool:
    """Whether the loss is cross entropy over the head's logits, and nothing is added to it.

    Some cap or scale the logits (Gemma 2, Cohere, Granite), and a mixture of experts may add the
    balance of its routers.
    """
    return config["model_type"] in _PLAIN_LOSS and not config.get("output_router_logits")


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


def _qwen3_moe(config: Mapping[str, Any], where: str) -> ModelShape:
    """Qwen 3 with experts in every layer, kept in two tensors of three dimensions."""
    keys = _Keys(config, where)
    experts, per_token = keys.size("num_experts"), keys.size("num_experts_per_tok")
    _check_experts(experts, per_token, where)
    head_dim = keys.size("head_dim", default=_quotient(keys))
    return _biased(
        config,
        where,
        head_dim=head_dim,
        more_norms=2 * head_dim,
        ffn=keys.size("moe_intermediate_size"),
        experts=experts,
        per_token=per_token,
    )


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


def _check_experts(experts: int, per_token: int, where: str) -> None:
    if per_token > experts:
        raise JobError(
            f"{where}: num_experts_per_tok {per_token} is more than the {experts} experts",
            f"choose 1 to {experts}",
        )


def _mixtral(config: Mapping[str, Any], where: str) -> ModelShape:
    """Mixtral: transformers 5 keeps a layer's experts in two tensors of three dimensions."""
    keys = _Keys(config, where)
    experts = keys.size("num_local_experts", also="num_experts")
    per_token = keys.size("num_experts_per_tok")
    _check_experts(experts, per_token, where)
    return _rotary(config, where, experts=experts, per_token=per_token)


def _rotary(
    config: Mapping[str, Any],
    where: str,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    experts: int = 0,
    per_token: int = 0,
    ffn: int | None = None,
    head_dim: int | None = None,
    more_norms: int = 0,
    is_fused: bool = False,
    is_tied: bool = False,
) -> ModelShape:
    """Rotary positions, RMSNorm, grouped-query attention and a gated MLP, or experts of it.

    Args:
        config: Contents of config.json.
        where: Where it came from.
        qkv_bias: Whether queries, keys and values have biases.
        output_bias: Whether attention's output has one.
        mlp_bias: Whether the MLP has some.
        experts: Experts of a layer; 0 for a dense model.
        per_token: Experts that a token takes.
        ffn: Width of an MLP; as `intermediate_size` by default.
        head_dim: Width of a head; as the config says by default.
        more_norms: Weights of a layer's norms besides the two of every model.
        is_fused: Whether matrices with the same input are one.
        is_tied: Whether embeddings are tied where the config does not say.
    """
    keys = _Keys(config, where)
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    hidden = keys.size("hidden_size")
    ffn = ffn or keys.size("intermediate_size")
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    vocab = keys.size("vocab_size")
    tied = keys.flag("tie_word_embeddings", default=is_tied)
    if head_dim is None and config.get("head_dim") is None:
        keys.divides("num_attention_heads", heads, "hidden_size", hidden)
    keys.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    head_dim = head_dim or keys.size("head_dim", default=hidden // heads)

    q_width, kv_width = heads * head_dim, kv_heads * head_dim
    attention = hidden * (q_width + 2 * kv_width) + q_width * hidden
    attention += (q_width + 2 * kv_width if qkv_bias else 0) + (hidden if output_bias else 0)
    mlp = 3 * hidden * ffn + (2 * ffn + hidden if mlp_bias else 0)
    router = experts * hidden
    layer = attention + 2 * hidden + more_norms + router
    rest = (1 if tied else 2) * vocab * hidden + hidden + layers * layer
    wide = max(q_width, 2 * experts * ffn if experts else ffn)
    if is_fused:
        wide = max(q_width + 2 * kv_width, 2 * ffn)
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
        n_experts=experts,
        experts_per_token=per_token,
        n_params=rest + layers * mlp * max(1, experts),
        n_params_active=rest + layers * mlp * max(1, per_token),
        largest_param=hidden * max(vocab, wide),
        n_params_lookup=0 if tied else vocab * hidden,
        head_dim=head_dim,
    )


FAMILIES: dict[str, Callable[[Mapping[str, Any], str], ModelShape]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _rotary,
    "qwen2": partial(_rotary, qkv_bias=True),
    "mixtral": _mixtral,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "olmo2": _olmo2,
    "phi3": _phi3,
}
"""model_type -> shape of a config, given where the config came from; raises JobError."""

SPLIT_BY_AUTOTP = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma2"})
"""Those of them that DeepSpeed's AutoTP splits. It refuses GPT-2 by name (`AutoTP.supported`), and
what transformers 5 plans in a style that `TPPlanConverter.convert` does not know: packed experts,
fused matrices, norms over all heads."""
