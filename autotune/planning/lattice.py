"""The lattice: the legal candidates of a job, of whatever engine, in columns."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.contract import KnobValue
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.grid import grid_rows
from autotune.space.judged import Judged
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.space.rows import Rows
from autotune.space.rule import Violation, nothing_legal
from autotune.space.space_file import Space

_ORDERED = ("int", "float")


@dataclass(frozen=True, kw_only=True, eq=False)
class Lattice:
    """The legal candidates, and why the others are not."""

    candidates: Sequence[Candidate]
    """In the order of the grid, or of the engine's layouts; those are made as they are asked for.
    """
    context: Context
    grid_size: int
    """Candidates before the rules."""
    refused: Mapping[str, int]
    """Rule -> candidates that it refuses, most first; a candidate may break several rules."""
    examples: Mapping[str, tuple[Candidate, Violation]]
    """Rule -> one candidate that it refuses, and what it says."""
    is_laid_out: bool = False
    """Whether the engine laid the candidates out itself; else they are those of a space."""

    @cached_property
    def values(self) -> dict[str, tuple[KnobValue, ...]]:
        """Knob -> its values over the lattice, sorted; knobs that never vary are left out."""
        found: dict[str, set[KnobValue]] = {}
        holders: dict[str, Candidate] = {}
        for candidate in self.candidates:
            for name, value in candidate.knobs:
                found.setdefault(name, set()).add(value)
                holders.setdefault(name, candidate)
        for name, candidate in holders.items():
            found[name] |= self._left_unsaid(name, candidate)
        return {
            name: tuple(sorted(found[name], key=_sort_key))
            for name in self.context.knobs
            if len(found.get(name, ())) > 1
        }

    def _left_unsaid(self, name: str, candidate: Candidate) -> set[KnobValue]:
        """The default of a knob that acts at other values alone: no candidate has it by name."""
        values = candidate.values
        default = self.context.knobs[name].default_for(values)
        acts = name in canonical({**values, name: default}, self.context)
        return set() if acts else {default}

    @cached_property
    def constants(self) -> dict[str, KnobValue]:
        """Knob -> its one value, for those that never vary.

        A knob that a proposal does not name counts at its default, which the lattice may not have.
        """
        return {
            name: value
            for candidate in self.candidates
            for name, value in candidate.knobs
            if name not in self.values
        }

    def nearest(
        self, values: Mapping[str, KnobValue], closed: Collection[str] = frozenset()
    ) -> Candidate | None:
        """The candidate nearest to a proposal; None if every one is closed.

        The distance adds up, over the knobs: for `int` knobs the difference of the logarithms
        (for `float` knobs, of the values) as a share of the lattice's span (what lies beyond
        counts as its edge), for others 0 or 1, and 1 where the knob acts in only one of the two.
        The first in order wins a tie.

        Args:
            values: Values of any knobs; the others are at their defaults.
            closed: Hashes of candidates that are not wanted.
        """
        distances = self.distances(values)
        for index in np.argsort(distances, kind="stable"):
            candidate = self.candidates[int(index)]
            if candidate.hash not in closed:
                return candidate
        return None

    def distances(self, values: Mapping[str, KnobValue]) -> NDArray[np.float64]:
        """Distance of every candidate to a proposal, as `nearest` defines it."""
        point = canonical(values, self.context)
        total = np.zeros(len(self.candidates))
        for name, column in self._columns.items():
            acts = ~np.isnan(column)
            if name not in point:
                total += acts
                continue
            at = self._coordinate(name, point[name])
            if self.context.knobs[name].kind in _ORDERED:
                low, high = float(np.nanmin(column)), float(np.nanmax(column))
                gap = np.abs(column - min(max(at, low), high)) / ((high - low) or 1.0)
            else:
                gap = (column != at).astype(np.float64)
            total += np.where(acts, gap, 1.0)
        return total

    @cached_property
    def _columns(self) -> dict[str, NDArray[np.float64]]:
        """Knob -> coordinates, a number per candidate; NaN where the knob does not act."""
        names = {name for candidate in self.candidates for name in candidate.values}
        return {
            name: np.array([self._coordinate(name, c.get(name)) for c in self.candidates])
            for name in self.context.knobs
            if name in names
        }

    def _coordinate(self, name: str, value: KnobValue | None) -> float:
        kind = self.context.knobs[name].kind
        if value is None:
            return float("nan")
        if kind == "int":
            return float(np.log2(int(value) + 1))
        if kind == "float":
            return float(value)
        return float(self._codes.setdefault((name, value), len(self._codes)))

    @cached_property
    def _codes(self) -> dict[tuple[str, KnobValue], int]:
        """A number of its own for every value of a choice."""
        return {}


def lattice_of(job: Job, engine: Engine) -> Lattice:
    """The legal candidates of a job: of its space, or those that its engine lays out.

    Raises:
        JobError: The space is not valid, or too large.
        RenderError: A template or the base configuration does not render.
        NothingFeasibleError: The rules refuse every candidate; the hint names the nearest change.
    """
    laid_out = engine.layouts()
    if laid_out is None:
        return build_lattice(engine.space, engine)
    return Lattice(
        candidates=laid_out,
        context=engine.context,
        grid_size=len(laid_out),
        refused={},
        examples={},
        is_laid_out=True,
    )


def build_lattice(space: Space, engine: Engine) -> Lattice:
    """Judge every candidate of a space.

    Raises:
        JobError: The space is too large.
        RenderError: A template or the base configuration does not render.
        NothingFeasibleError: The rules refuse every candidate; the hint names the nearest change.
    """
    rows = grid_rows(space, engine.context)
    judged = engine.judge_all(rows)
    total = judged.total
    examples = _examples(rows, judged, engine)
    counts = Counter({rule: int((judged.broken[rule] > 0).sum()) for rule in examples})
    legal = np.flatnonzero(total == 0)
    if len(rows) and not len(legal):
        closest = rows[int(np.argmin(total))]
        said = f"space {space.name}: none of its {len(rows)} candidates is legal for this job"
        raise nothing_legal(
            f"{said}; refused most by", counts, str(closest), engine.judge(closest)
        )
    return Lattice(
        candidates=rows.take(legal),
        context=engine.context,
        grid_size=len(rows),
        refused=dict(counts.most_common()),
        examples=examples,
    )


def _examples(
    rows: Rows, judged: Judged, engine: Engine
) -> dict[str, tuple[Candidate, Violation]]:
    """Rule -> the first candidate that it refuses, and what it says."""
    firsts = {int(np.argmax(counts > 0)) for counts in judged.broken.values()}
    examples: dict[str, tuple[Candidate, Violation]] = {}
    for row in sorted(firsts):
        for violation in engine.judge(rows[row]):
            examples.setdefault(violation.rule, (rows[row], violation))
    return examples


def _sort_key(value: KnobValue) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (float(value), "")
