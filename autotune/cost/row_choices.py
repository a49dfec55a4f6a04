"""Words of a table's row for its kernels, loss, attention and optimizer, as columns of `Plans`.

The words are in `row_words.json`.
"""

import re
from collections.abc import Mapping

from autotune.base.data import table_beside
from autotune.cost.cells import Cells
from autotune.cost.traits import RECOMPUTED_MODULES, SCALINGS, Traits

WORDS = table_beside(__file__, "row_words.json")
_Words = Mapping[str, Mapping[str, float]]
CHOICES: Mapping[str, _Words] = {**WORDS["choices"], "scaling": SCALINGS}
"""Column -> word -> columns of `Plans`."""
_FUSED_LOGIT_BYTES = float(CHOICES["loss"]["fused"]["logit_bytes"])
_MEGATRON_LOGIT_BYTES = 6.0
"""What Megatron's own loss holds, which has no chunks."""
_CHUNK_TOKENS = float(CHOICES["loss"]["chunked"]["loss_chunk_tokens"])
"""Tokens of a chunk where a row does not say."""
_ATTENTION_SPEED: Mapping[str, tuple[float, float]] = WORDS["attention_speed"]
"""Word -> its speed, before Hopper and from then on."""
MOMENT_BYTES: Mapping[str, float] = WORDS["moment_bytes"]
"""Optimizer -> bytes per parameter of what it keeps beside the master copy."""
_ADAM_BYTES = 8.0
_EIGHT_BIT_BYTES = 2.0

SETTINGS: Mapping[str, tuple[float, float]] = WORDS["settings"]
"""Columns of `Plans` that a table may have under the same name, with the numbers that they take.
They come before what the framework usually does."""


def choice_columns(
    cells: Cells, columns: Mapping[str, float], *, is_hopper: bool, traits: Traits
) -> dict[str, float]:
    """Columns that the cells `scaling`, `kernels`, `loss`, `attention` and `optimizer` change.

    `columns` are those of the row without them; `is_hopper` says whether its device has fp8.

    Raises:
        RowError: A word is not known.
    """
    found = {
        **_word(cells, "scaling"),
        **_word(cells, "kernels"),
        **_loss(cells, traits),
        **_word(cells, "attention"),
    }
    if (kernel := cells.text("attention")) in _ATTENTION_SPEED:
        found["attention_speed"] = _ATTENTION_SPEED[kernel][is_hopper]
    if not cells.is_blank("optimizer"):
        moments = MOMENT_BYTES[cells.choice("optimizer", MOMENT_BYTES, "")]
        usual = columns.get("optimizer_bytes", 12.0)
        # Where all is in 16 bits, Adam's moments are half as large and there is no master copy.
        adam = min(_ADAM_BYTES, usual)
        if moments > _EIGHT_BIT_BYTES:
            moments *= adam / _ADAM_BYTES
        found["optimizer_bytes"] = usual - adam + moments
    return found


def setting_columns(cells: Cells) -> dict[str, float]:
    """Columns of `SETTINGS` that the row has.

    Raises:
        RowError: A cell is no number within its bounds.
    """
    found = {name: cells.within(name, *bounds) for name, bounds in SETTINGS.items()}
    return {name: value for name, value in found.items() if value is not None}


def fewest_logit_bytes(
    cells: Cells, taken: float, traits: Traits, columns: Mapping[str, float]
) -> float:
    """Bytes per logit that a run holds at least, where it is predicted with `taken`.

    Fewer where the row does not say how the loss is computed: it may be compiled or fused, and
    outside of Megatron it may come in chunks, of which one is there at a time.
    """
    fewest = _FUSED_LOGIT_BYTES
    if traits.eager_logit_bytes > _MEGATRON_LOGIT_BYTES:
        tokens = columns["micro_batch"] * columns["seq_len"]
        fewest = min(fewest, traits.eager_logit_bytes * _CHUNK_TOKENS / tokens)
    if not cells.is_blank("loss") or taken <= fewest:
        return taken
    cells.assume("loss", "not fused", "fused or in chunks at the low end of memory")
    return fewest


def recomputed_modules(cells: Cells) -> dict[str, float]:
    """Columns of the modules that a `recompute` cell lists: `selective: [mla_up_proj, mlp]`.

    Empty where it lists none: `selective` alone is the attention's core.

    Raises:
        RowError: A list has something else.
    """
    listed = re.fullmatch(r"selective: \[(.+)\]", cells.text("recompute"))
    if listed is None:
        return {}
    named = {name.strip() for name in listed[1].split(",")}
    if unknown := named - set(RECOMPUTED_MODULES):
        raise cells.wrong(
            "recompute",
            f"has {', '.join(sorted(unknown))}, which is none of {', '.join(RECOMPUTED_MODULES)}",
        )
    return {column: float(module in named) for module, column in RECOMPUTED_MODULES.items()}


def _word(cells: Cells, key: str) -> dict[str, float]:
    if cells.is_blank(key):
        return {}
    return dict(CHOICES[key][cells.choice(key, CHOICES[key], "")])


def _loss(cells: Cells, traits: Traits) -> dict[str, float]:
    chunk = re.fullmatch(r"chunked (\d{1,9})", cells.text("loss"))
    if chunk or cells.text("loss") == "chunked":
        tokens = max(1.0, float(chunk[1])) if chunk else _CHUNK_TOKENS
        return {"loss_chunk_tokens": tokens, **traits.chunked_loss}
    found = _word(cells, "loss")
    if cells.text("loss") == "eager":
        found["logit_bytes"] = traits.eager_logit_bytes
    return found
