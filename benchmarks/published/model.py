"""The model of a published row: a preset however it is spelled, or sizes that its name tells."""

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

from autotune.cost.cells import RowError
from autotune.cost.row_model import count_params
from autotune.job.model import load_model
from autotune.job.model_shape import ModelShape
from autotune.job.published import unsaid_layers

from .cells import PublishedCells
from .names import preset_spelled


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
_MIXTURE = re.compile(r"\b(\d{1,3})x\d+(?:\.\d+)?b", re.I)
"""Experts in a name such as Mixtral-8x7B."""


_MTP = re.compile(r"\bw(ith|/) ?(?P<out>o|out)? ?mtp\b", re.I)
"""What a row's notes say of layers that predict further tokens."""
_NVIDIA = re.compile(r"nemo(?!-automodel)|bridge", re.I)
"""Frameworks whose recipes train those layers of DeepSeek-V3, and split no expert over tensor
parallel ranks: NVIDIA-NeMo/Megatron-Bridge, recipes/deepseek/deepseek_v3.py (mtp_num_layers,
expert_tensor_parallel_size)."""
_LADDER = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-2-13b", "qwen2.5-32b")
_LADDER += ("llama-3.1-70b", "llama-3.1-405b")
"""Presets whose widths stand for those of a dense model where a row has nothing but parameters."""
_HEAD_DIMS = (128, 96, 80, 64, *range(100, 161), *range(65, 100))
"""Sizes of a head, the usual ones first, where neither the row nor its model's name tells it."""
_MAX_PARAMS = 1e15
_SIZES = ("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab", "head_dim")
_SIZES += ("n_experts", "experts_per_token", "ep", "etp")


def model_cells(cells: PublishedCells) -> dict[str, str]:
    """Cells of the model, as `autotune` spells them.

    A row that names a preset, in `model` or `model_name`, has its shape but for what its own
    columns say. Other blank sizes come from the family that the model's name tells, else from
    GPT. Whether the MLP has a gate and the embeddings are tied is not in such tables: it is the
    case, out of four, whose parameters come nearest to `params_b`; without it, the family's.

    Raises:
        RowError: A size is missing, or the sizes do not fit together.
    """
    found: dict[str, str] = dict.fromkeys(("model", *_SIZES), "")
    for key in _SIZES:
        # Zero experts are none: such tables write 0, 1 or nothing for a dense model.
        is_none = key in ("n_experts", "experts_per_token") and cells.text(key) in ("0", "0.0")
        if not cells.is_blank(key) and not is_none:
            found[key] = _text(cells.count(key))
    preset = _preset(cells)
    found |= _of_family(cells, found) if preset is None else _of_preset(cells, preset)
    if not found["etp"] and found["ep"] not in ("", "1") and _is_nvidia(cells):
        cells.assume("etp", 1, "as recipes have it")
        found["etp"] = "1"
    return found


def _text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _is_nvidia(cells: PublishedCells) -> bool:
    return _NVIDIA.search(cells.text("framework")) is not None


def _preset(cells: PublishedCells) -> str | None:
    """The preset that the row names; none where its layers are of another size."""
    for key in ("model", "model_name"):
        if unsaid := unsaid_layers(cells.text(key)):
            raise RowError(f"{key}={cells.text(key)}: its {unsaid} cannot be said by sizes")
        name = preset_spelled(cells.text(key))
        if name is None:
            continue
        for column in ("hidden", "n_heads"):
            size = getattr(preset_shape(name), column)
            if not cells.is_blank(column) and cells.count(column) != size:
                cells.assume("model", cells.text(key), f"not {name}, whose {column} is {size}")
                return None
        return name
    return None


@functools.cache
def preset_shape(preset: str) -> ModelShape:
    """Sizes of a preset."""
    return load_model(preset).shape


def _of_preset(cells: PublishedCells, preset: str) -> dict[str, str]:
    found = {"model": preset}
    known = float(preset_shape(preset).n_mtp_layers)
    if cells.text("n_mtp_layers") in ("0", "0.0"):
        return {**found, "n_mtp_layers": "0"}
    if not cells.is_blank("n_mtp_layers"):
        return {**found, "n_mtp_layers": _text(cells.count("n_mtp_layers", most=100))}
    if not known:
        return found
    told = _MTP.search(cells.text("notes"))
    if told:
        return {**found, "n_mtp_layers": "0" if told["out"] else _text(known)}
    if _is_nvidia(cells):
        cells.assume("n_mtp_layers", known, f"as recipes of {preset}")
        return {**found, "n_mtp_layers": _text(known)}
    cells.assume("n_mtp_layers", 0)
    return {**found, "n_mtp_layers": "0"}


def _of_family(cells: PublishedCells, own: dict[str, str]) -> dict[str, str]:
    name = cells.text("model_name").lower()
    family = next(family for family in _FAMILIES if re.search(family.spelled, name))
    if cells.is_blank("n_layers") or cells.is_blank("hidden"):
        return _of_params(cells)
    found: dict[str, str] = {}

    def size(key: str, usual: float, why: str) -> float:
        if own[key]:
            return float(own[key])
        cells.assume(key, usual, why)
        found[key] = _text(usual)
        return usual

    hidden = float(own["hidden"])
    n_heads = float(own["n_heads"]) if own["n_heads"] else _heads(cells, family, name, hidden)
    found["n_heads"] = _text(n_heads)
    shared = family.kv_heads if family.kv_heads and n_heads % family.kv_heads == 0 else None
    why = "by the model's family"
    sizes: dict[str, Any] = {
        "n_layers": float(own["n_layers"]),
        "hidden": hidden,
        "n_heads": n_heads,
        "n_kv_heads": size(
            "n_kv_heads", shared or n_heads, "as n_heads" if shared is None else why
        ),
        "ffn_hidden": size("ffn_hidden", 256.0 * math.ceil(family.ffn_ratio * hidden / 256), why),
        "vocab": size("vocab", family.vocab, why),
        "n_experts": _experts(cells, own, found),
    }
    if own["head_dim"] or hidden % n_heads == 0:
        usual = hidden / n_heads if family.head_dim is None else family.head_dim
        sizes["head_dim"] = float(own["head_dim"] or usual)
        if family.head_dim is not None:
            size("head_dim", family.head_dim, why)
    else:
        sizes["head_dim"] = size("head_dim", float(round(hidden / n_heads)), "hidden over n_heads")
    if {cells.text("gated_mlp"), cells.text("tied_embeddings")} <= {"yes", "no"}:
        return found
    gated, tied = _gate_and_tie(cells, family, sizes)
    words = {True: "yes", False: "no"}
    return {**found, "gated_mlp": words[gated], "tied_embeddings": words[tied]}


def _of_params(cells: PublishedCells) -> dict[str, str]:
    """Sizes of a dense model of which nothing but `params_b` is known."""
    key = "n_layers" if cells.is_blank("n_layers") else "hidden"
    is_mixture = re.search(r"moe|expert|\d+x\d", cells.text("model_name"), re.I)
    if cells.is_blank("params_b") or is_mixture or not cells.is_blank("n_experts"):
        raise RowError(f"{key} is blank, and the model's name tells no preset")
    wanted = cells.number("params_b") * 1e9
    if not 3e8 < wanted < 2e12:
        raise RowError(f"{key} is blank, and params_b={cells.text('params_b')} tells no sizes")

    def miss(name: str) -> float:
        return abs(math.log(load_model(name).shape.n_params / wanted))

    near = min(_LADDER, key=miss)
    shape = preset_shape(near)
    layers = max(1, round(shape.n_layers * wanted / shape.n_params))
    cells.assume("n_layers", layers, f"of the width of {near}, by params_b")
    sizes = {key: "" for key in _SIZES if key not in ("ep", "etp")}
    return {**sizes, "model": near, "n_layers": str(layers)}


def _heads(cells: PublishedCells, family: Family, name: str, hidden: float) -> float:
    """Heads, which the size of one tells, or the model's name and its hidden size."""
    size, why = family.usual_head_dim, "by the model's name and hidden"
    if not cells.is_blank("head_dim"):
        size, why = cells.count("head_dim", most=100_000), "hidden over head_dim"
    heads = _HEADS_OF_GPT.get(hidden) if size is None else hidden / size
    if heads is None or heads != int(heads):
        tp = 1.0 if cells.is_blank("tp") else cells.count("tp")
        sizes = (size for size in _HEAD_DIMS if hidden % size == 0 and hidden / size % tp == 0)
        usual = next(sizes, None)
        if usual is None:
            raise RowError("n_heads is blank, and hidden and model_name do not tell it")
        heads, why = hidden / usual, f"heads of {usual}"
    cells.assume("n_heads", heads, why)
    return heads


def _experts(cells: PublishedCells, own: dict[str, str], found: dict[str, str]) -> float:
    """Experts: such tables may say `n_experts`, or a name such as Mixtral-8x7B does."""
    named = _MIXTURE.search(cells.text("model_name"))
    if not own["n_experts"] and named is not None and int(named[1]) > 1:
        cells.assume("n_experts", int(named[1]), "by the model's name")
        found["n_experts"] = named[1]
        if not own["experts_per_token"]:
            cells.assume("experts_per_token", 2, "by the model's name")
            found["experts_per_token"] = "2"
    count = float(own["n_experts"] or found.get("n_experts", 0))
    if count > 1 and not own["experts_per_token"] and "experts_per_token" not in found:
        found["experts_per_token"] = _text(min(2.0, count))
        cells.assume("experts_per_token", min(2.0, count))
    return count


def _gate_and_tie(
    cells: PublishedCells, family: Family, sizes: dict[str, Any]
) -> tuple[bool, bool]:
    if cells.is_blank("params_b"):
        cells.assume("gated_mlp", int(family.gated), "by the model's family")
        cells.assume("tied_embeddings", int(family.tied), "by the model's family")
        return family.gated, family.tied
    wanted = cells.number("params_b") * 1e9
    if wanted > _MAX_PARAMS:
        raise RowError(f"params_b={cells.text('params_b')}: above 10^15 parameters")
    cases = [(gated, tied) for gated in (False, True) for tied in (False, True)]
    # The family wins a tie, and what its parameters explain to a hundredth.
    cases.sort(key=lambda case: (case[0] != family.gated, case[1] != family.tied))

    def miss(case: tuple[bool, bool]) -> float:
        count = count_params({**sizes, "gated_mlp": case[0], "tied_embeddings": case[1]})
        return max(0.01, abs(math.log(count / wanted)))

    gated, tied = min(cases, key=miss)
    cells.assume("gated_mlp", int(gated), "by params_b")
    cells.assume("tied_embeddings", int(tied), "by params_b")
    return gated, tied
