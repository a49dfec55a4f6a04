"""The model of a table's row: its sizes, and what they leave open."""

import functools
import math
import re
from dataclasses import dataclass

from autotune.cost.cells import Cells, RowError
from autotune.cost.problem import routed_share
from autotune.job.model import load_model
from autotune.job.model_shape import ModelShape
from autotune.job.published import preset_spelled, unsaid_layers


@dataclass(frozen=True, kw_only=True)
class Family:
    """Sizes that models of one name share, by their public configurations."""

    spelled: str
    """A regular expression."""
    vocab: float
    ffn_ratio: float
    """Width of the MLP over the hidden size; it is rounded up to a multiple of 256."""
    gated: bool = True
    tied: bool = False
    head_dim: float | None = None
    """Size of a head where it is not the hidden size over the heads."""
    kv_heads: float | None = None
    """Key heads that all of them have; None: as many as there are heads, or it differs."""
    usual_head_dim: float | None = None
    """Size of a head of those whose heads are not told; None: by the table of GPT's sizes."""


_FAMILIES = (
    Family(spelled="internlm", vocab=103168, ffn_ratio=8 / 3, usual_head_dim=128),
    Family(
        spelled="llama.?3|llama.?4", vocab=128256, ffn_ratio=3.5, kv_heads=8, usual_head_dim=128
    ),
    Family(spelled="llama", vocab=32000, ffn_ratio=8 / 3, usual_head_dim=128),
    Family(spelled="mi[sx]tral", vocab=32000, ffn_ratio=3.5, kv_heads=8, usual_head_dim=128),
    Family(spelled="qwen.?3", vocab=151936, ffn_ratio=3, head_dim=128, usual_head_dim=128),
    Family(spelled="qwen", vocab=151936, ffn_ratio=5.4, usual_head_dim=128),
    Family(spelled="deepseek", vocab=102400, ffn_ratio=8 / 3, usual_head_dim=128),
    Family(spelled="gemma", vocab=256000, ffn_ratio=8, tied=True, usual_head_dim=256),
    Family(spelled="nemotron", vocab=256000, ffn_ratio=4, gated=False, usual_head_dim=128),
    Family(spelled="bloom", vocab=250880, ffn_ratio=4, gated=False, tied=True),
    Family(spelled="bert", vocab=30522, ffn_ratio=4, gated=False, tied=True),
    # Any other name is taken for a GPT.
    Family(spelled="", vocab=50304, ffn_ratio=4, gated=False, tied=True),
)

_HEADS_OF_GPT = {
    **{768.0: 12.0, 1024.0: 16.0, 1280.0: 20.0, 1536.0: 16.0, 1600.0: 25.0, 2048.0: 16.0},
    **{2560.0: 32.0, 4096.0: 32.0, 5120.0: 40.0, 6144.0: 48.0, 7168.0: 56.0, 8192.0: 64.0},
    **{9216.0: 72.0, 12288.0: 96.0, 14336.0: 112.0, 20480.0: 128.0, 25600.0: 160.0},
}
"""Hidden size -> heads. Sources: Radford et al., GPT-2 (2019), table 2, and its configurations;
Brown et al. (arXiv:2005.14165), table 2.1; Zhang et al., OPT (arXiv:2205.01068), table 1;
Narayanan et al. (arXiv:2104.04473), table 1; bigscience/bloom's configuration."""
_MAX_PARAMS = 1e15
_MIXTURE = re.compile(r"\b(\d{1,3})x\d+(?:\.\d+)?b", re.I)
"""Experts in a name such as Mixtral-8x7B."""


_MTP = re.compile(r"\bw(ith|/) ?(?P<out>o|out)? ?mtp\b", re.I)
"""What a row's notes say of layers that predict further tokens."""
_NVIDIA = re.compile(r"nemo(?!-automodel)|bridge", re.I)
"""Frameworks whose recipes train those layers of DeepSeek-V3, and split no expert over tensor
parallel ranks: NVIDIA-NeMo/Megatron-Bridge, recipes/deepseek/deepseek_v3.py (mtp_num_layers,
expert_tensor_parallel_size)."""
_LATENT = (
    *("latent_q_rank", "latent_kv_rank", "latent_nope_dim", "latent_rope_dim"),
    "latent_value_dim",
)


@dataclass(frozen=True, kw_only=True)
class _NamedModel:
    """The shipped model that a row names."""

    name: str
    shape: ModelShape

    @property
    def why(self) -> str:
        return f"as {self.name}"


def read_model(cells: Cells) -> dict[str, float]:
    """Columns of the model.

    A row that names a preset, in `model` or `model_name`, has its shape but for what its own
    columns say. Other blank sizes come from the family that the model's name tells, else from
    GPT. Whether the MLP has a gate and the embeddings are tied is not in such tables: the function
    takes the case, out of four, whose parameters come nearest to `params_b`; without it, the
    family's.

    Raises:
        RowError: A size is missing, or the sizes do not fit together.
    """
    preset = _preset(cells)
    columns = _of_family(cells) if preset is None else _of_preset(cells, preset)
    columns["learned_positions"] = float(not columns["gated_mlp"])
    n_layers, hidden = columns["n_layers"], columns["hidden"]
    is_gated, is_tied = columns["gated_mlp"] > 0, columns["tied_embeddings"] > 0
    if _count(columns, gated=is_gated, tied=is_tied) > _MAX_PARAMS:
        raise RowError(f"n_layers={n_layers:g} of hidden={hidden:g}: above 10^15 parameters")
    return columns


def _preset(cells: Cells) -> _NamedModel | None:
    """The preset that the row names; none where its layers are of another size."""
    for key in ("model", "model_name"):
        name = preset_spelled(cells.text(key))
        if unsaid := unsaid_layers(cells.text(key)):
            raise RowError(f"{key}={cells.text(key)}: its {unsaid} cannot be said by sizes")
        if name is None:
            continue
        shape = _shape(name)
        for column, size in (("hidden", shape.hidden), ("n_heads", shape.n_heads)):
            if not cells.is_blank(column) and cells.count(column, most=1e9) != size:
                cells.assume("model", cells.text(key), f"not {name}, whose {column} is {size}")
                return None
        return _NamedModel(name=name, shape=shape)
    return None


@functools.cache
def _shape(preset: str) -> ModelShape:
    return load_model(preset).shape


def _of_preset(cells: Cells, preset: _NamedModel) -> dict[str, float]:
    shape, why = preset.shape, preset.why
    sizes = {
        "n_layers": (shape.n_layers, 10_000),
        "hidden": (shape.hidden, 1_000_000),
        "n_heads": (shape.n_heads, 100_000),
        "n_kv_heads": (shape.n_kv_heads, 100_000),
        "ffn_hidden": (shape.ffn_hidden, 10_000_000),
        "vocab": (shape.vocab, 100_000_000),
    }
    columns = {
        key: _size(cells, key, float(size), preset, most=most)
        for key, (size, most) in sizes.items()
    }
    if columns["n_heads"] % columns["n_kv_heads"]:
        raise RowError(
            f"n_heads={columns['n_heads']:g} is no multiple of "
            f"n_kv_heads={columns['n_kv_heads']:g}"
        )
    head_dim = shape.attention_width / shape.n_heads
    if not shape.latent_kv_rank and not cells.is_blank("head_dim"):
        head_dim = cells.count("head_dim", most=100_000)
    columns |= {
        "seq_len": cells.count("seq_len", most=100_000_000),
        "head_dim": head_dim,
        "gated_mlp": float(shape.gated_mlp),
        "tied_embeddings": float(shape.tied_embeddings),
    }
    if shape.n_experts < 2:
        return columns | {"n_experts": 0.0, "experts_per_token": 0.0, "ep": 1.0}
    columns |= _divided(
        _size(cells, "n_experts", float(shape.n_experts), preset, most=100_000),
        _size(cells, "experts_per_token", float(shape.experts_per_token), preset, most=100_000),
        cells,
    )
    layers = int(columns["n_layers"])
    columns["n_dense_layers"] = float(sum(not shape.has_experts(i) for i in range(layers)))
    columns["dense_ffn_hidden"] = float(shape.dense_ffn_hidden)
    columns["shared_expert_hidden"] = float(shape.shared_expert_hidden)
    for key in ("n_dense_layers", "shared_expert_hidden"):
        if columns[key]:
            cells.assume(key, columns[key], why)
    columns |= _attention(cells, preset, layers)
    columns["n_mtp_layers"] = _n_mtp_layers(cells, preset)
    columns["routed_share"] = routed_share(load_model(preset.name))
    return columns


def _size(cells: Cells, key: str, known: float, preset: _NamedModel, *, most: float) -> float:
    """A size of the row, which counts even where the preset has another."""
    found = cells.count(key, known, preset.why, most=most)
    if found != known:
        cells.assume(key, found, f"{known:g} in {preset.name}")
    return found


def _attention(cells: Cells, preset: _NamedModel, layers: int) -> dict[str, float]:
    """Ranks and heads of latent attention, and the layers that have a window."""
    shape = preset.shape
    columns = {key: float(getattr(shape, key)) for key in _LATENT}
    if shape.latent_kv_rank:
        cells.assume("latent_kv_rank", shape.latent_kv_rank, preset.why)
    n_windowed = math.ceil(shape.n_windowed_layers * layers / shape.n_layers)
    if n_windowed:
        cells.assume("window", shape.window, f"of {n_windowed} layers, {preset.why}")
    return {
        **columns,
        "window": float(shape.window),
        "n_windowed_layers": float(n_windowed),
        "expert_biases": float(shape.expert_biases),
    }


def _n_mtp_layers(cells: Cells, preset: _NamedModel) -> float:
    """Layers that predict further tokens: as the row says, else as the framework's recipes."""
    if not cells.is_blank("n_mtp_layers"):
        is_none = cells.text("n_mtp_layers") in ("0", "0.0")
        return 0.0 if is_none else cells.count("n_mtp_layers", most=100)
    known = float(preset.shape.n_mtp_layers)
    if not known:
        return 0.0
    told = _MTP.search(cells.text("notes"))
    if told:
        return 0.0 if told["out"] else known
    if _NVIDIA.search(cells.text("framework")):
        cells.assume("n_mtp_layers", known, f"as recipes of {preset.name}")
        return known
    cells.assume("n_mtp_layers", 0)
    return 0.0


def _of_family(cells: Cells) -> dict[str, float]:
    name = cells.text("model_name").lower()
    family = next(family for family in _FAMILIES if re.search(family.spelled, name))
    if cells.is_blank("n_layers") and not cells.is_blank("model"):
        raise RowError(f"model={cells.text('model')!r} is no preset, and n_layers is blank")
    n_layers = cells.count("n_layers", most=10_000)
    hidden = cells.count("hidden", most=1_000_000)
    n_heads = _heads(cells, family, name, hidden)
    shared = family.kv_heads if family.kv_heads and n_heads % family.kv_heads == 0 else None
    whose = "as n_heads" if shared is None else "by the model's family"
    n_kv_heads = cells.count("n_kv_heads", shared or n_heads, whose, most=100_000)
    if n_heads % n_kv_heads:
        raise RowError(f"n_heads={n_heads:g} is no multiple of n_kv_heads={n_kv_heads:g}")
    why = "by the model's family"
    default_ffn = 256.0 * math.ceil(family.ffn_ratio * hidden / 256)
    columns = {
        "n_layers": n_layers,
        "hidden": hidden,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "seq_len": cells.count("seq_len", most=100_000_000),
        "ffn_hidden": cells.count("ffn_hidden", default_ffn, why, most=10_000_000),
        "vocab": cells.count("vocab", family.vocab, why, most=100_000_000),
        "head_dim": _head_dim(cells, family, hidden, n_heads),
        **_experts(cells),
    }
    gated, tied = _gate_and_tie(cells, family, columns)
    return {**columns, "gated_mlp": float(gated), "tied_embeddings": float(tied)}


def _heads(cells: Cells, family: Family, name: str, hidden: float) -> float:
    """Heads, which the size of one tells, or the model's name and its hidden size."""
    if not cells.is_blank("n_heads"):
        return cells.count("n_heads", most=100_000)
    size = family.usual_head_dim
    if not cells.is_blank("head_dim"):
        size, why = cells.count("head_dim", most=100_000), "hidden over head_dim"
    else:
        why = "by the model's name and hidden"
    heads = _HEADS_OF_GPT.get(hidden) if size is None else hidden / size
    if not name or heads is None or heads != int(heads):
        raise RowError("n_heads is blank, and hidden and model_name do not tell it")
    cells.assume("n_heads", heads, why)
    return heads


def _head_dim(cells: Cells, family: Family, hidden: float, n_heads: float) -> float:
    if not cells.is_blank("head_dim"):
        return cells.count("head_dim", most=100_000)
    if family.head_dim is not None:
        cells.assume("head_dim", family.head_dim, "by the model's family")
        return family.head_dim
    if hidden % n_heads:
        raise RowError(
            f"hidden={hidden:g} is no multiple of n_heads={n_heads:g}, and head_dim is not given"
        )
    return hidden / n_heads


def _experts(cells: Cells) -> dict[str, float]:
    """Such tables may say `n_experts` and `experts_per_token`; they must where ep is above one."""
    ep = 1.0 if cells.is_blank("ep") else cells.count("ep")
    named = _MIXTURE.search(cells.text("model_name"))
    if cells.is_blank("n_experts") and named is not None:
        cells.assume("n_experts", int(named[1]), "by the model's name")
        per_token = cells.count("experts_per_token", 2.0, "by the model's name", most=100_000)
        return _divided(float(named[1]), per_token, cells)
    if cells.is_blank("n_experts"):
        if ep > 1:
            raise RowError(f"ep={ep:g}, and n_experts is not given")
        return {"n_experts": 0.0, "experts_per_token": 0.0, "ep": 1.0}
    n_experts = cells.count("n_experts", most=100_000)
    per_token = cells.count("experts_per_token", min(2.0, n_experts), most=100_000)
    return _divided(n_experts, per_token, cells)


def _divided(n_experts: float, per_token: float, cells: Cells) -> dict[str, float]:
    """Columns of the experts and of how they are split over the ranks."""
    ep = 1.0 if cells.is_blank("ep") else cells.count("ep")
    if n_experts % ep:
        raise RowError(f"n_experts={n_experts:g} is no multiple of ep={ep:g}")
    if per_token > n_experts:
        raise RowError(f"experts_per_token={per_token:g} is more than n_experts={n_experts:g}")
    columns = {"n_experts": n_experts, "experts_per_token": per_token, "ep": ep}
    if not cells.is_blank("etp"):
        columns["expert_tp"] = cells.count("etp")
    elif ep > 1 and _NVIDIA.search(cells.text("framework")):
        cells.assume("etp", 1, "as recipes have it")
        columns["expert_tp"] = 1.0
    return columns


def _gate_and_tie(cells: Cells, family: Family, sizes: dict[str, float]) -> tuple[bool, bool]:
    if cells.is_blank("params_b"):
        cells.assume("gated_mlp", int(family.gated), "by the model's family")
        cells.assume("tied_embeddings", int(family.tied), "by the model's family")
        return family.gated, family.tied
    wanted = cells.number("params_b") * 1e9
    if wanted > _MAX_PARAMS:
        raise RowError(f"params_b={cells.text('params_b')}: above 10^15 parameters")
    cases = [(gated, tied) for gated in (False, True) for tied in (False, True)]
    # The family wins a tie, and what its parameters explain to a hundredth.
    cases.sort(key=lambda case: case != (family.gated, family.tied))

    def miss(case: tuple[bool, bool]) -> float:
        count = _count(sizes, gated=case[0], tied=case[1])
        return max(0.01, abs(math.log(count / wanted)))

    gated, tied = min(cases, key=miss)
    cells.assume("gated_mlp", int(gated), "by params_b")
    cells.assume("tied_embeddings", int(tied), "by params_b")
    return gated, tied


def _count(sizes: dict[str, float], *, gated: bool, tied: bool) -> float:
    """Parameters: 2 h (a + k) + (2 or 3) h f per layer, and one or two embeddings."""
    width = (sizes["n_heads"] + sizes["n_kv_heads"]) * sizes["head_dim"]
    experts = max(1.0, sizes["n_experts"])
    layer = 2 * sizes["hidden"] * width
    layer += (3 if gated else 2) * sizes["hidden"] * sizes["ffn_hidden"] * experts
    return sizes["n_layers"] * layer + (1 if tied else 2) * sizes["hidden"] * sizes["vocab"]
