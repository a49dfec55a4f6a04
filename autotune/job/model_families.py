"""Shapes by closed formula from the configs of the common Hugging Face architectures.

The formulas count the parameters that transformers builds for causal language modelling; a test
holds them to it for every preset. families.json says how the architectures differ. One that is not
there, or is there for what its loss and MLPs are alone, is built and counted instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.job.model_shape import LATENT_KEYS, ModelShape
from autotune.trial.transformer_shape import attention_window

_MOST = 2**31 - 1
_MOST_LAYERS = 100_000
"""A hundred times those of the deepest model; ten million take minutes to plan for."""
_NULL_IS_NONE = frozenset(
    {"q_lora_rank", "n_shared_experts", "sliding_window", "attention_chunk_size"}
)
"""Keys that turn something off by null; of any other, null stands for the default."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture, by a row of families.json; keys are those of its configs.

    The last five are held to what transformers and DeepSpeed do by tests, one of peft by another.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that transformers' config class has where a config does not say them."""
    qkv_bias: bool | str = False
    """Whether queries, keys and values have biases, or the key that says so; likewise the next."""
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    is_fused: bool = False
    """Whether matrices with the same input are one."""
    is_latent: bool = False
    """Whether attention is DeepSeek's latent one."""
    even_heads: bool = False
    """Whether the heads have to divide the hidden size also where the config has `head_dim`."""
    norms: str = ""
    """Weights of a layer besides those of its two norms, in words as of `_extra_norms`."""
    norms_switch: str = ""
    """Key that turns them on; empty: they are always there."""
    window: str = "sliding_window"
    """Key of the window of attention."""
    window_switch: str = ""
    """Key that turns the window on; empty: a window is on."""
    windows: str = "all"
    """Layers that have it where the config does not say, as of `_windowed`."""
    experts: str = ""
    """Key of the number of experts; empty: a dense model."""
    expert_ffn: str = ""
    """Key of the width of one expert."""
    expert_biases: bool = False
    """Whether the experts and their router have biases."""
    shared: str = ""
    """Key of the MLP beside the experts: its width, or how many experts it is as wide as."""
    shared_gate: bool = False
    """Whether that MLP has a gate of one number a token."""
    linear_router: bool = False
    """Whether the router is a linear layer."""
    adapts_experts: bool = False
    """Whether peft's all-linear adapts router and experts, in place of MLPs that all tokens pass
    (peft 0.21, utils/transformers_weight_conversion.py: _convert_peft_config_moe)."""
    dense: str = ""
    """Key by which some layers have no experts."""
    dense_ffn: str = "intermediate_size"
    """Key of the width of the MLP in those."""
    plain_loss: bool = False
    """Whether logits are the output head's, unscaled and uncapped."""
    plain_mlps: bool = False
    """Whether every layer has a module `mlp` of one tensor."""
    ulysses: bool = False
    """Whether it trains the same with its sequences split."""
    attention: Sequence[str] = ("eager", "sdpa", "flash_attention_2")
    """As of `model_probe.attention_of`."""
    autotp: bool = False
    """Whether DeepSpeed's AutoTP splits it. It refuses GPT-2 by name (`AutoTP.supported`), and
    what transformers 5 plans in a style that `TPPlanConverter.convert` does not know: packed
    experts, fused matrices, norms over all heads."""
    is_built: bool = False
    """Whether it is built and counted, as one that is not listed: its sizes are not known here."""


FAMILIES = {n: Family(**row) for n, row in table_beside(__file__, "families.json").items()}
"""model_type -> how its architecture differs from others."""


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config; of an unknown one nothing special is known."""
    return FAMILIES.get(config["model_type"], Family())


def has_closed_form(config: Mapping[str, Any]) -> bool:
    """Whether the formulas here cover the config."""
    is_known = config["model_type"] in FAMILIES and not family_of(config).is_built
    return is_known and not config.get("add_cross_attention")


def peft_widths(config: Mapping[str, Any], shape: ModelShape) -> tuple[int, int] | None:
    """Inputs and results of the matrices that peft adapts: of all, and of those a token passes.

    That is with `all-linear`; a rank of r trains r of each. None: the model has to be built.
    """
    if not has_closed_form(config) or config["model_type"] == "gpt2":
        return None
    family, hidden, ffn = family_of(config), shape.hidden, shape.ffn_hidden
    width, n_sparse = shape.attention_width, shape.n_expert_layers
    shared = shape.shared_expert_hidden
    found = 4 * hidden + 2 * (width + shape.n_kv_heads * width // shape.n_heads)
    if family.is_latent:
        nope, rope = shape.latent_nope_dim, shape.latent_rope_dim
        found = 3 * hidden + rope + 2 * (shape.latent_q_rank + shape.latent_kv_rank)
        found += shape.n_heads * (2 * nope + rope + 2 * shape.latent_value_dim)
    # Matrices with the same input are one: of queries, keys and values, and of an MLP.
    found = shape.n_layers * (found - (3 * hidden if family.is_fused else 0))
    if family.adapts_experts:
        # Gate and up projection of an expert are one matrix, of twice the rank.
        expert = n_sparse * (3 * hidden + 5 * ffn)
        found += n_sparse * (hidden + shape.n_experts)
        return found + shape.n_experts * expert, found + shape.experts_per_token * expert
    found += 3 * (shape.n_layers - n_sparse) * (hidden + (shape.dense_ffn_hidden or ffn))
    beside = 3 * (hidden + shared) if shared else 0
    beside += hidden + 1 if family.shared_gate else 0
    beside += hidden + shape.n_experts if family.linear_router else 0
    return found + n_sparse * beside, found + n_sparse * beside


_SAME_TEXT: Mapping[str, str] = table_beside(__file__, "names.json")["same_text"]
"""Family -> the family of `FAMILIES` that has the same text model."""
BESIDE_TEXT = {"vision_config": "vision", "audio_config": "audio"}
"""Key that configures a model beside the text model -> what that other model is for."""


def as_transformers_names_it(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The config with the family that transformers has for it, and of the text model alone.

    A model that sees or hears has a config of its text model inside, or beside (Qwen2-VL). One
    whose text family is none of the `FAMILIES` stays whole. Kimi-K2's code is DeepSeek-V3's.

    Raises:
        JobError: A config names no architecture; the error says `where` it came from.
    """
    family, found = config.get("model_type"), dict(config)
    if not isinstance(family, str):
        raise JobError.of("job.no_architecture", where=where, kind=family)
    if isinstance(text := config.get("text_config"), Mapping):
        tied = {k: v for k, v in found.items() if k == "tie_word_embeddings"}
        inside = {"model_type": f"{family}_text", **tied, **text}
        alone = as_transformers_names_it(inside, f"{where}: text_config")
        return alone if has_closed_form(alone) else found
    if family not in _SAME_TEXT:
        return found
    found = {k: v for k, v in config.items() if k != "auto_map" and k not in BESIDE_TEXT}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := found.get(key), Mapping) and "mrope_section" in rope:
            found[key] = {**rope, "rope_type": "default"}  # the sections of text are the same
    return {**found, "model_type": _SAME_TEXT[family]}


def has_plain_loss(config: Mapping[str, Any]) -> bool:
    """Whether the loss is cross entropy over the head's logits, and nothing is added to it.

    Some cap or scale the logits (Gemma 2, Cohere, Granite), and a mixture of experts may add the
    balance of its routers.
    """
    adds = any(map(config.get, ("output_router_logits", "final_logit_softcapping")))
    return family_of(config).plain_loss and not adds


def is_split_by_ulysses(config: Mapping[str, Any], seq_len: int) -> bool:
    """Whether sequence parallelism trains what the whole model does.

    DeepSpeed drops the mask that a window of attention needs, which matters for samples that are
    longer, and the balance of routers is that of whole sequences.
    """
    is_seen = 0 < attention_window(config) < seq_len
    return family_of(config).ulysses and not is_seen and not config.get("output_router_logits")


def shape_by_formula(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape of a config of one of the `FAMILIES`; errors say `where` it came from.

    Raises:
        JobError: A size is missing or cannot be.
    """
    family = family_of(config)
    keys = _Keys(config, family.defaults, where)
    return _gpt2(keys) if config["model_type"] == "gpt2" else _rotary(keys, family)


class _Keys:
    """Reads the sizes of a config and refuses, by file and key, what cannot be a size."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._defaults = defaults
        self._where = where

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, as it is written or by default; None: there is none."""
        value = self._config.get(key)
        if value is None and not (key in self._config and key in _NULL_IS_NONE):
            return self._defaults.get(key, default)
        return value

    def size(
        self, key: str, *, also: str = "", default: int | None = None, most: int = _MOST
    ) -> int:
        """A count from 1 to `most`; `also` is another spelling that transformers takes."""
        name = also if also and key not in self._config else key
        value = self.get(name, default)
        if value is None:
            raise JobError.of("job.no_default", where=self._where, key=key, config=self._config)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise JobError.of("job.no_size", where=self._where, name=name, value=value, most=most)
        return value

    def number(self, key: str, *, also: str = "") -> int:
        """A count that may be 0, and is where the config does not say."""
        name = also if also and key not in self._config else key
        return self.size(name) if self.get(name, 0) else 0

    def layers(self, key: str, kind: type = int) -> list[Any]:
        """Indices of layers, or an entry of a kind for each; none where the config says none."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(type(entry) is not kind for entry in value):
            raise JobError.of("job.no_layers", where=self._where, key=key, value=value)
        return value

    def experts(self, key: str) -> tuple[int, int]:
        """Experts of a layer, and those that a token takes."""
        also = {"num_experts": "num_local_experts", "num_local_experts": "num_experts"}
        experts = self.size(key, also=also.get(key, ""))
        per_token = self.size("num_experts_per_tok")
        if per_token > experts:
            where = self._where
            raise JobError.of("job.too_few_experts", where=where, n=per_token, experts=experts)
        return experts, per_token

    def flag(self, key: bool | str) -> bool:
        """A yes or no, or what a key says, which is no by default."""
        value = self.get(key, False) if isinstance(key, str) else key
        if not isinstance(value, bool):
            raise JobError(f"{self._where}: {key}: {value!r} is not true or false", "write either")
        return value

    def divides(self, part: str, n: int, whole: str, total: int) -> None:
        """Refuse a total that does not divide evenly."""
        if total % n:
            what = f"{whole} {total} is not divisible by {part} {n}"
            parts = f"{total} = {total // n} * {n} + {total % n}"
            facts = {"where": self._where, "what": what, "parts": parts}
            raise JobError.of("job.not_divisible", **facts, part=part, total=total)


def _gpt2(keys: _Keys) -> ModelShape:
    """GPT-2: learned positions, LayerNorm and linear layers with biases, one fused QKV."""
    layers = keys.size("n_layer", also="num_hidden_layers", most=_MOST_LAYERS)
    hidden = keys.size("n_embd", also="hidden_size")
    heads = keys.size("n_head", also="num_attention_heads")
    positions = keys.size("n_positions", also="max_position_embeddings")
    vocab = keys.size("vocab_size")
    ffn = keys.size("n_inner", default=4 * hidden)
    tied = keys.flag("tie_word_embeddings")
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


@dataclass(frozen=True, kw_only=True)
class _AttentionSizes:
    """Parameters of a layer's attention, without the layer's norms."""

    n_params: int
    widest: int
    """Elements of its largest matrix."""
    head_dim: int
    latent: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `ModelShape` that latent attention has."""


def _rotary(keys: _Keys, family: Family) -> ModelShape:
    """Rotary positions, RMSNorm, grouped-query attention and a gated MLP, or experts of it."""
    layers = keys.size("num_hidden_layers", most=_MOST_LAYERS)
    hidden = keys.size("hidden_size")
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    vocab = keys.size("vocab_size")
    tied = keys.flag("tie_word_embeddings")
    if family.even_heads:
        keys.divides("num_attention_heads", heads, "hidden_size", hidden)
    keys.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    attention = _latent(keys) if family.is_latent else _grouped(keys, family)
    ffn = keys.size(family.expert_ffn or "intermediate_size")
    dense: Sequence[int] = range(layers)
    dense_ffn = ffn
    sizes = [vocab * hidden, attention.widest]
    experts = taken = routed = 0
    of_experts: dict[str, Any] = {"n_experts": 0, "experts_per_token": 0}
    if family.experts:
        n_experts, per_token = keys.experts(family.experts)
        of_experts = {"n_experts": n_experts, "experts_per_token": per_token}
        dense = _dense_layers(keys, family, layers)
        dense_ffn = keys.size(family.dense_ffn) if dense else 0
        shared = keys.number(family.shared) if family.shared else 0
        shared *= ffn if family.shared == "n_shared_experts" else 1
        n_sparse = layers - len(dense)
        expert = 3 * hidden * ffn + (2 * ffn + hidden if family.expert_biases else 0)
        experts, taken = n_sparse * n_experts * expert, n_sparse * per_token * expert
        router = n_experts * hidden + (n_experts if family.expert_biases else 0)
        router += hidden if family.shared_gate else 0
        routed = n_sparse * (router + 3 * hidden * shared)
        sizes += [2 * n_experts * ffn * hidden, shared * hidden]
        is_first = [*dense] == [*range(len(dense))]
        of_experts |= {
            "n_dense_layers": len(dense),
            "dense_layers": () if is_first else tuple(dense),
            "dense_ffn_hidden": dense_ffn,
            "shared_expert_hidden": shared,
            "expert_biases": family.expert_biases,
        }
    mlp = 3 * hidden * dense_ffn
    mlp += 2 * dense_ffn + hidden if keys.flag(family.mlp_bias) else 0
    if dense:
        sizes += [(2 if family.is_fused else 1) * dense_ffn * hidden]
    norms = 0
    if family.norms and (not family.norms_switch or keys.flag(family.norms_switch)):
        norms = _extra_norms(family.norms, hidden, heads, kv_heads, attention.head_dim)
    rest = (1 if tied else 2) * vocab * hidden + hidden + len(dense) * mlp + routed
    rest += layers * (attention.n_params + 2 * hidden + norms)
    window, n_windowed = _windows(keys, family, layers)
    positions = keys.get("max_position_embeddings")
    return ModelShape(
        n_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn,
        n_heads=heads,
        n_kv_heads=kv_heads,
        vocab=vocab,
        tied_embeddings=tied,
        gated_mlp=True,
        n_params=rest + experts,
        n_params_active=rest + taken,
        largest_param=max(sizes),
        n_params_lookup=0 if tied else vocab * hidden,
        head_dim=attention.head_dim,
        window=window,
        n_windowed_layers=n_windowed,
        # It serves a remark alone, and refuses no model.
        configured_positions=positions if type(positions) is int and positions > 0 else 0,
        n_mtp_layers=keys.number("num_nextn_predict_layers", also="num_mtp_layers"),
        **attention.latent,
        **of_experts,
    )


def _extra_norms(norms: str, hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Weights of a layer besides those of the two norms that every model has."""
    sizes = {
        # Queries and keys of each head are normalised, by weights that the heads share; or those
        # of all heads together.
        "of_heads": 2 * head_dim,
        "over_heads": (heads + kv_heads) * head_dim,
        # Norms also behind attention and MLP.
        "behind": 2 * hidden,
        # A sink per head, which is no norm.
        "sinks": heads,
    }
    return sum(map(sizes.__getitem__, norms.split()))


def _grouped(keys: _Keys, family: Family) -> _AttentionSizes:
    """Attention with as many heads of keys and values as the config says."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", default=heads)
    if keys.get("head_dim") is None:
        keys.divides("num_attention_heads", heads, "hidden_size", hidden)
    head_dim = keys.size("head_dim", default=hidden // heads)
    q_width, kv_width = heads * head_dim, kv_heads * head_dim
    n_params = hidden * (q_width + 2 * kv_width) + q_width * hidden
    n_params += q_width + 2 * kv_width if keys.flag(family.qkv_bias) else 0
    n_params += hidden if keys.flag(family.output_bias) else 0
    widest = hidden * (q_width + 2 * kv_width if family.is_fused else q_width)
    return _AttentionSizes(n_params=n_params, widest=widest, head_dim=head_dim)


def _latent(keys: _Keys) -> _AttentionSizes:
    """DeepSeek's latent attention: low-rank queries, and keys and values, with norms between.

    Its heads are as wide as the mean of what is compared and what is summed, so that the products
    of both are those of ordinary heads of that width.

    Source: DeepSeek-AI, DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    q_rank = keys.number("q_lora_rank")
    kv_rank = keys.size("kv_lora_rank")
    nope, rope = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    value = keys.size("v_head_dim")
    query_up = (q_rank or hidden) * heads * (nope + rope)
    value_up = kv_rank * heads * (nope + value)
    out = heads * value * hidden
    n_params = query_up + value_up + out + hidden * (kv_rank + rope) + kv_rank
    n_params += hidden * q_rank + q_rank
    if keys.flag("attention_bias"):
        n_params += q_rank + kv_rank + rope + hidden
    return _AttentionSizes(
        n_params=n_params,
        widest=max(query_up, value_up, out, hidden * (kv_rank + rope), hidden * q_rank),
        head_dim=(nope + rope + value) // 2,
        latent={name: keys.number(key) for name, key in LATENT_KEYS.items()},
    )


def _windows(keys: _Keys, family: Family, layers: int) -> tuple[int, int]:
    """Tokens of the window of attention, and layers that have it.

    A chunk of Llama 4 counts as a window of its length: at most that is looked back.
    """
    window = keys.get(family.window)
    is_off = family.window_switch and not keys.get(family.window_switch)
    if type(window) is not int or window <= 0 or is_off:
        return 0, 0
    if kinds := keys.layers("layer_types", str):
        n_windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    else:
        n_windowed = sum(_windowed(keys, family.windows, layers))
    return (window, n_windowed) if n_windowed else (0, 0)


def _windowed(keys: _Keys, windows: str, layers: int) -> list[bool]:
    """Whether each layer has the window, as transformers has it where the config says nothing."""
    places = range(layers)
    if windows == "pattern":
        return [(i + 1) % keys.size("sliding_window_pattern", default=6) > 0 for i in places]
    if windows in ("rotary", "unrotated"):
        every = keys.size("no_rope_layer_interval", default=4)
        rotated = keys.layers("no_rope_layers") or [(i + 1) % every for i in places]
        return [bool(is_rotated) is (windows == "rotary") for is_rotated in rotated]
    if windows == "even":
        return [i % 2 == 0 for i in places]
    if windows == "all":
        return [True] * layers
    first = keys.number("max_window_layers")
    if windows == "late":
        return [i >= first for i in places]
    return [i % 2 == 0 and i < first for i in places]


def _dense_layers(keys: _Keys, family: Family, layers: int) -> Sequence[int]:
    if family.dense == "first_k_dense_replace":
        return range(min(layers, keys.number(family.dense)))
    if not family.dense:
        return range(0)
    if family.dense == "mlp_layer_types":
        kinds = keys.layers(family.dense, str) or ["dense"]
        return [i for i, kind in enumerate(kinds) if kind == "dense"]
    step, plain = keys.size(family.dense, default=1), {*keys.layers("mlp_only_layers")}
    sparse = keys.layers("moe_layers") or {*range(step - 1, layers, step)} - plain
    return [i for i in range(layers) if i not in sparse]
