"""Knobs of a Megatron layout, and candidates as rows of columns and back."""

from collections.abc import Mapping, Sequence

import numpy as np

from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron.rules import Counts, LayoutTask, Rows
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Knob

RECOMPUTE = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE, "full": Recompute.FULL}
_BLOCK = "block_"
_HIGHEST = 2**31 - 1


def _degree(name: str, text: str, *, is_always_shown: bool = False) -> Knob:
    return Knob(
        name=name,
        default=1,
        minimum=1,
        maximum=_HIGHEST,
        is_always_shown=is_always_shown,
        help=text,
    )


def _switch(name: str, text: str) -> Knob:
    return Knob(name=name, default=False, help=text)


_ENTRIES = (
    _degree("tp", "tensor parallel degree", is_always_shown=True),
    _degree("pp", "pipeline parallel degree", is_always_shown=True),
    _degree("vp", "interleaved model chunks of a pipeline rank"),
    _switch(
        "ends_as_layers",
        "whether embedding and loss count as a layer each where stages are cut",
    ),
    _degree("cp", "context parallel degree"),
    _degree("ep", "expert parallel degree"),
    _switch("sequence_parallel", "whether norms are split over the tensor parallel ranks"),
    _degree("micro_batch", "samples per rank and forward pass", is_always_shown=True),
    _switch("distributed_optimizer", "whether optimizer states are sharded"),
    Knob(
        name="recompute",
        default="none",
        choices=tuple(RECOMPUTE),
        pattern=r"block_[1-9]\d{0,8}",
        help="none, selective, full, or block_N: N layers of each chunk",
    ),
)
KNOBS: Catalogue = {knob.name: knob for knob in _ENTRIES}
"""Knobs in the order in which they are shown."""
_PLAIN = tuple(name for name in KNOBS if name != "recompute")


def knobs_of(row: Mapping[str, int]) -> dict[str, KnobValue]:
    """The candidate of a row of columns."""
    found: dict[str, KnobValue] = {
        name: bool(row[name]) if KNOBS[name].kind == "bool" else row[name] for name in _PLAIN
    }
    found["recompute"] = next(name for name, kind in RECOMPUTE.items() if kind == row["recompute"])
    if row["recompute_layers"]:
        found["recompute"] = f"{_BLOCK}{row['recompute_layers']}"
    return found


def columns_of(task: LayoutTask, candidates: Sequence[Candidate]) -> dict[str, Counts]:
    """Candidates, legal or not, as columns, in their order."""
    kinds = [str(candidate["recompute"]) for candidate in candidates]
    columns = {name: [int(candidate[name]) for candidate in candidates] for name in _PLAIN}
    columns["recompute"] = [int(RECOMPUTE.get(kind, Recompute.FULL)) for kind in kinds]
    columns["recompute_layers"] = [
        int(kind.removeprefix(_BLOCK)) if kind.startswith(_BLOCK) else 0 for kind in kinds
    ]
    columns["dp"] = [candidate.dp for candidate in candidates]
    columns["grad_accum"] = [candidate.grad_accum for candidate in candidates]
    return {name: np.array(values, dtype=np.int64) for name, values in columns.items()}


def rows_of(task: LayoutTask, candidates: Sequence[Candidate]) -> Rows:
    """Candidates, legal or not, as rows that rules judge, in their order."""
    return Rows(task=task, columns=columns_of(task, candidates))
