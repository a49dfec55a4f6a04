"""Knobs of a Megatron layout, a row each of `knobs.json`, and candidates as columns and back.

The knobs of the lattice stand in every candidate. The others act off their default alone: there
they are in a candidate, and what the lattice lays out has none of them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron import choices
from autotune.engines.megatron.choices import LAYOUTS, RECOMPUTED, Values
from autotune.engines.megatron.layout_task import Counts, LayoutRows, LayoutTask
from autotune.engines.megatron.stages import (
    balanced_layers,
    even_layers,
    layers_in,
    stages_of,
    work_of,
)
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Context, Knob, Knobs
from autotune.space.knob_rows import read_knobs
from autotune.space.rows import CandidateRows
from autotune.space.table import Table, table_of

RECOMPUTE = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE, "full": Recompute.FULL}
_BLOCK = "block_"
SHARE = 1_000_000
"""A share stands in a column of whole numbers in millionths."""


def _has_stages_and_replicas(values: Knobs, context: Context) -> bool:
    pp = int(values["pp"])
    return pp > 1 and context.world > pp * int(values["tp"]) * int(values["cp"])


def _same_stages(value: KnobValue, values: Knobs, at: Context) -> KnobValue:
    """A written layout by its name, where it is that of a name."""
    stages = stages_of(str(value)) if value not in ("even", "balanced") else None
    pp, vp, n_mtp_layers = int(values["pp"]), int(values["vp"]), at.model.n_mtp_layers
    if stages is None or len(stages) != pp * vp:
        return value
    if "".join(stages)[-n_mtp_layers - 1 :] != f"{'m' * n_mtp_layers}L":
        return value
    counts, n_layers = layers_in(stages), at.model.n_layers
    if n_layers % (pp * vp) == 0 and counts == even_layers(n_layers, pp, vp):
        return "even"
    is_balanced = counts == balanced_layers(work_of(at.model, at.seq_len), pp, vp)
    return "balanced" if is_balanced else value


def in_order(modules: KnobValue, *_: object) -> str:
    """Modules that are joined by `+`, each once, in the order of the alphabet."""
    return "+".join(sorted({*str(modules).split("+")}))


_FILE = Path(__file__).with_name("knobs.json")
_NAMED = (choices, sys.modules[__name__])
LATTICE_KNOBS: Catalogue = read_knobs(_FILE, Knob, *_NAMED, section="lattice")
"""Those whose values the lattice lays out."""
MORE_KNOBS: Catalogue = read_knobs(_FILE, Knob, *_NAMED, section="more", acts_off_default=True)
"""Those that a space names."""
KNOBS: Catalogue = {**LATTICE_KNOBS, **MORE_KNOBS}
"""Knobs in the order in which they are shown."""
_PLAIN = tuple(name for name in LATTICE_KNOBS if name != "recompute")


def knobs_of(row: Mapping[str, int]) -> dict[str, KnobValue]:
    """The candidate of a row of columns."""
    found: dict[str, KnobValue] = {
        name: bool(row[name]) if KNOBS[name].kind == "bool" else row[name] for name in _PLAIN
    }
    found["recompute"] = next(name for name, kind in RECOMPUTE.items() if kind == row["recompute"])
    if row["recompute_layers"]:
        found["recompute"] = f"{_BLOCK}{row['recompute_layers']}"
    more = {name: value_of(knob, row[name]) for name, knob in MORE_KNOBS.items() if row[name]}
    return {**found, **more}


_VALUES = {"stages": LAYOUTS, "recompute_modules": Values(*RECOMPUTED)}
"""Knob -> the numbers of its values, where they are too many to list."""


def code_of(knob: Knob, value: KnobValue) -> int:
    """Number of a value in its knob's column; 0: the default."""
    if (values := _VALUES.get(knob.name)) is not None:
        return values.number(in_order(value) if values is not LAYOUTS else str(value))
    if knob.choices:
        return knob.choices.index(value)
    if knob.kind == "bool":
        return int(value != knob.default)
    return round(SHARE * float(value)) if knob.kind == "float" else int(value)


def value_of(knob: Knob, code: int) -> KnobValue:
    """The value of a number in its knob's column."""
    if (values := _VALUES.get(knob.name)) is not None:
        return values.text(code)
    if knob.choices:
        return knob.choices[code]
    if knob.kind == "bool":
        return bool(knob.default) != bool(code)
    return code / SHARE if knob.kind == "float" else code


def columns_of(candidates: Sequence[Candidate]) -> dict[str, Counts]:
    """Candidates, legal or not, as columns, in their order."""
    if isinstance(candidates, CandidateRows):
        table = candidates.table
        world = np.full(len(candidates), candidates.world, np.int64)
        batch = np.full(len(candidates), candidates.global_batch, np.int64)
    else:
        table = table_of([candidate.values for candidate in candidates])
        world = np.array([candidate.world for candidate in candidates], np.int64)
        batch = np.array([candidate.global_batch for candidate in candidates], np.int64)
    columns = {name: _column(table, KNOBS[name], int) for name in _PLAIN}
    recompute = KNOBS["recompute"]
    columns["recompute"] = _column(table, recompute, _recompute_kind)
    columns["recompute_layers"] = _column(table, recompute, _recompute_layers)
    for name, knob in MORE_KNOBS.items():
        columns[name] = _column(table, knob, partial(code_of, knob))
    columns["dp"] = np.maximum(1, world // (columns["tp"] * columns["pp"] * columns["cp"]))
    per_step = columns["micro_batch"] * columns["dp"]
    columns["grad_accum"] = np.maximum(1, batch // per_step)
    return columns


def _column(table: Table, knob: Knob, number: Callable[[KnobValue], int]) -> Counts:
    """A number per row of a knob's value; where it does not act, that of its default."""
    levels, codes = table.levels.get(knob.name, (None,)), table.codes.get(knob.name)
    numbers = np.array([number(knob.default if v is None else v) for v in levels], np.int64)
    found: Counts = np.full(table.n, numbers[0]) if codes is None else numbers[codes]
    return found


def _recompute_kind(value: KnobValue) -> int:
    return int(RECOMPUTE.get(str(value), Recompute.FULL))


def _recompute_layers(value: KnobValue) -> int:
    text = str(value)
    return int(text.removeprefix(_BLOCK)) if text.startswith(_BLOCK) else 0


def rows_of(task: LayoutTask, candidates: Sequence[Candidate]) -> LayoutRows:
    """Candidates, legal or not, as rows that rules judge, in their order."""
    return LayoutRows(task=task, columns=columns_of(candidates))


def at_default(count: int) -> dict[str, Counts]:
    """Columns of so many layouts in which none of `MORE_KNOBS` is off its default."""
    zeros = np.broadcast_to(np.int64(0), (count,))
    return dict.fromkeys(MORE_KNOBS, zeros)
