"""The model of a table's row: a model that it names, or its sizes."""

import functools
import math
from collections.abc import Mapping

from autotune.base.errors import AutotuneError
from autotune.cost.cells import Cells, RowError
from autotune.cost.problem import embedding_params, group_columns, shape_columns
from autotune.cost.row_choices import WORDS
from autotune.job.model import FACTORY, Model, load_model
from autotune.job.model_shape import ModelShape

_MOST: Mapping[str, float] = WORDS["most"]
"""Column -> more than anybody builds."""
_MAX_SEQ_LEN = 1e8
_MAX_PARAMS = 1e15
_VOCAB = 50304.0
"""GPT-2's, padded."""


def read_model(cells: Cells, *, builds_mtp: bool) -> dict[str, float]:
    """Columns of the model.

    The column `model` names one as `--model` does; it has its shape but for what the row's own
    columns say. Without it the sizes stand in the row.

    Args:
        cells: The row.
        builds_mtp: Whether the framework builds layers that predict further tokens.

    Raises:
        RowError: A size is missing, or the sizes do not fit together.
    """
    columns = _of_sizes(cells) if cells.is_blank("model") else _of_model(cells, builds_mtp)
    if columns["n_heads"] % columns["n_kv_heads"]:
        raise RowError(
            f"n_heads={columns['n_heads']:g} is no multiple of "
            f"n_kv_heads={columns['n_kv_heads']:g}"
        )
    columns["seq_len"] = cells.count("seq_len", most=_MAX_SEQ_LEN)
    columns["learned_positions"] = float(not columns["gated_mlp"])
    if count_params(columns) > _MAX_PARAMS:
        raise RowError(
            f"n_layers={columns['n_layers']:g} of hidden={columns['hidden']:g}: above 10^15 "
            "parameters"
        )
    return columns


def layer_params(sizes: Mapping[str, float]) -> float:
    """Parameters of a layer: 2 h (a + k) + (2 or 3) h f per expert."""
    hidden, heads = sizes["hidden"], sizes["n_heads"] + sizes["n_kv_heads"]
    matrices = (2.0 + sizes["gated_mlp"]) * max(1.0, sizes["n_experts"])
    return 2.0 * hidden * heads * sizes["head_dim"] + matrices * hidden * sizes["ffn_hidden"]


def count_params(sizes: Mapping[str, float]) -> float:
    """Parameters of the layers and the embeddings."""
    return sizes["n_layers"] * layer_params(sizes) + embedding_params(sizes)


@functools.cache
def _named(text: str) -> Model:
    if FACTORY.fullmatch(text) and "/" not in text:
        raise RowError(f"model={text!r}: code is not run for a table; name a preset or a config")
    try:
        model = load_model(text)
    except AutotuneError as error:
        raise RowError(f"{error.message}; {error.hint}") from None
    if model.shape.unsaid:
        raise RowError(f"model={text!r}: its {model.shape.unsaid} cannot be said by sizes")
    return model


def _of_model(cells: Cells, builds_mtp: bool) -> dict[str, float]:
    model = _named(cells.text("model"))
    shape, why = model.shape, f"as {model.name}"
    for key, size in (("hidden", shape.hidden), ("n_heads", shape.n_heads)):
        if not cells.is_blank(key) and cells.count(key) != size:
            raise RowError(
                f"{key}={cells.text(key)}: {model.name} has {size}; leave `model` blank and give "
                "all sizes of another one"
            )
    columns = {
        key: _size(cells, model, key, float(getattr(shape, key)))
        for key in ("n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab")
    }
    columns |= _of_layers(cells, shape, int(columns["n_layers"]), why)
    if not shape.latent_kv_rank and not cells.is_blank("head_dim"):
        columns["head_dim"] = cells.count("head_dim", most=_MOST["head_dim"])
    if shape.n_experts < 2:
        columns |= {"n_experts": 0.0, "experts_per_token": 0.0, "ep": 1.0}
    else:
        n_experts = _size(cells, model, "n_experts", float(shape.n_experts))
        per_token = _size(cells, model, "experts_per_token", float(shape.experts_per_token))
        columns |= _spread(cells, n_experts, per_token)
    n_mtp_layers = float(shape.n_mtp_layers) if builds_mtp else 0.0
    if shape.n_mtp_layers and cells.is_blank("n_mtp_layers"):
        cells.assume("n_mtp_layers", n_mtp_layers, why if builds_mtp else "")
    return {**columns, "n_mtp_layers": n_mtp_layers, **group_columns(model)}


def _size(cells: Cells, model: Model, key: str, known: float) -> float:
    """A size of the row, which counts even where the model has another."""
    found = cells.count(key, known, f"as {model.name}", most=_MOST[key])
    if found != known:
        cells.assume(key, found, f"{known:g} in {model.name}")
    return found


def _of_layers(cells: Cells, shape: ModelShape, layers: int, why: str) -> dict[str, float]:
    """What no size says: dense and windowed layers, shared experts, latent attention."""
    n_windowed = math.ceil(shape.n_windowed_layers * layers / shape.n_layers)
    n_dense = sum(not shape.has_experts(i) for i in range(layers)) if shape.n_experts > 1 else 0
    columns = shape_columns(shape)
    columns |= {"n_dense_layers": float(n_dense), "n_windowed_layers": float(n_windowed)}
    for key in ("n_dense_layers", "shared_expert_hidden", "latent_kv_rank"):
        if columns[key]:
            cells.assume(key, columns[key], why)
    if n_windowed:
        cells.assume("window", shape.window, f"of {n_windowed} layers, {why}")
    return columns


def _of_sizes(cells: Cells) -> dict[str, float]:
    n_layers = cells.count("n_layers", most=_MOST["n_layers"])
    hidden = cells.count("hidden", most=_MOST["hidden"])
    n_heads = cells.count("n_heads", most=_MOST["n_heads"])
    gated = cells.choice("gated_mlp", ("yes", "no"), "yes") == "yes"
    if cells.is_blank("head_dim") and hidden % n_heads:
        raise RowError(
            f"hidden={hidden:g} is no multiple of n_heads={n_heads:g}, and head_dim is not given"
        )
    usual_ffn = 256.0 * math.ceil(8 / 3 * hidden / 256) if gated else 4.0 * hidden
    return {
        "n_layers": n_layers,
        "hidden": hidden,
        "n_heads": n_heads,
        "n_kv_heads": cells.count("n_kv_heads", n_heads, "as n_heads", most=_MOST["n_kv_heads"]),
        "ffn_hidden": cells.count("ffn_hidden", usual_ffn, most=_MOST["ffn_hidden"]),
        "vocab": cells.count("vocab", _VOCAB, most=_MOST["vocab"]),
        "head_dim": (
            hidden / n_heads
            if cells.is_blank("head_dim")
            else cells.count("head_dim", most=_MOST["head_dim"])
        ),
        "gated_mlp": float(gated),
        "tied_embeddings": float(cells.choice("tied_embeddings", ("yes", "no"), "no") == "yes"),
        **_experts(cells),
    }


def _experts(cells: Cells) -> dict[str, float]:
    """Experts of a row without a named model; 0 or blank for a dense one."""
    n_experts = cells.within("n_experts", 0, _MOST["n_experts"]) or 0.0
    if n_experts < 2:
        if not cells.is_blank("ep") and cells.count("ep") > 1:
            raise RowError(f"ep={cells.text('ep')}, and n_experts is not given")
        return {"n_experts": 0.0, "experts_per_token": 0.0, "ep": 1.0}
    n_experts = cells.count("n_experts", most=_MOST["n_experts"])
    per_token = cells.count("experts_per_token", 2.0, most=_MOST["experts_per_token"])
    return _spread(cells, n_experts, per_token)


def _spread(cells: Cells, n_experts: float, per_token: float) -> dict[str, float]:
    ep = 1.0 if cells.is_blank("ep") else cells.count("ep")
    if n_experts % ep:
        raise RowError(f"n_experts={n_experts:g} is no multiple of ep={ep:g}")
    if per_token > n_experts:
        raise RowError(f"experts_per_token={per_token:g} is more than n_experts={n_experts:g}")
    columns = {"n_experts": n_experts, "experts_per_token": per_token, "ep": ep}
    if not cells.is_blank("etp"):
        columns["expert_tp"] = cells.count("etp")
    return columns
