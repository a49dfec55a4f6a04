"""The lattice: the legal candidates of a job, of whatever engine, in columns."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.base.units import format_count
from autotune.contract import KnobValue
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.space.candidate import Candidate, format_value
from autotune.space.grid import grid_rows
from autotune.space.judged import Verdicts
from autotune.space.knob import Context
from autotune.space.knobs import canonical, settings_of
from autotune.space.rows import MANY, CandidateRows
from autotune.space.rule import Violation, nothing_legal
from autotune.space.space_file import Space
from autotune.space.table import Table, table_of

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
        for name in self.context.knobs:
            if (used := self.table.used(name)) - {None}:
                found[name] = {value for value in used if value is not None}
                found[name] |= self._left_unsaid(name, self.candidates[self._holder(name)])
        return {
            name: tuple(sorted(values, key=_sort_key))
            for name, values in found.items()
            if len(values) > 1
        }

    @cached_property
    def table(self) -> Table:
        """The candidates' knobs in columns."""
        if isinstance(self.candidates, CandidateRows):
            return self.candidates.table
        return table_of([candidate.values for candidate in self.candidates])

    def _holder(self, name: str) -> int:
        """The first candidate in which a knob acts."""
        codes, levels = self.table.codes.get(name), self.table.levels[name]
        if codes is None:
            return 0
        acts = np.array([value is not None for value in levels])
        return int(np.argmax(acts[codes]))

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
        names = [name for name in self.table.levels if name not in self.values]
        used = {name: self.table.used(name) - {None} for name in names}
        return {name: value for name in names for value in used[name] if value is not None}

    def nearest(
        self,
        values: Mapping[str, KnobValue],
        closed: Collection[str] = frozenset(),
        among: NDArray[np.bool_] | None = None,
    ) -> Candidate | None:
        """The candidate nearest to a proposal; None if every one is closed.

        The distance adds up, over the knobs: for `int` knobs the difference of the logarithms
        (for `float` knobs, of the values) as a share of the lattice's span (what lies beyond
        counts as its edge), for others 0 or 1, and 1 where the knob acts in only one of the two.
        The first in order wins a tie.

        Args:
            values: Values of any knobs; the others are at their defaults.
            closed: Hashes of candidates that are not wanted.
            among: By candidate, whether it is wanted; None: all are.
        """
        order = np.argsort(self.distances(values), kind="stable")
        for index in order if among is None else order[among[order]]:
            candidate = self.candidates[int(index)]
            if candidate.hash not in closed:
                return candidate
        return None

    def places(self, hashes: Collection[str], known: Iterable[Candidate] = ()) -> list[int]:
        """Places of the candidates with some hashes; those that are not in the lattice have none.

        Of a large lattice it is fast where the candidates behind the hashes are `known`.
        """
        if isinstance(self.candidates, CandidateRows) and len(self.candidates) > MANY:
            by_hash = {candidate.hash: candidate for candidate in known}
            if all(one in by_hash for one in hashes):
                found = [self.candidates.find(by_hash[one]) for one in hashes]
                return [place for place in found if place is not None]
        place_of = self._place_of
        return [place_of[one] for one in hashes if one in place_of]

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """Hash of a candidate -> its place; takes a second for a hundred thousand."""
        return {candidate.hash: place for place, candidate in enumerate(self.candidates)}

    def distances(self, values: Mapping[str, KnobValue]) -> NDArray[np.float64]:
        """Distance of every candidate to a proposal, as `nearest` defines it."""
        point = canonical(values, self.context)
        total = np.zeros(len(self.candidates))
        for name in self.context.knobs:
            if not self.table.used(name) - {None}:
                continue
            gaps = self._gaps(name, point)
            codes = self.table.codes.get(name)
            total += gaps[0] if codes is None else gaps[codes]
        return total

    def _gaps(self, name: str, point: Mapping[str, KnobValue]) -> NDArray[np.float64]:
        """Distance of each of a knob's values to a proposal."""
        levels, used = self.table.levels[name], self.table.used(name)
        column = np.array([self._coordinate(name, value) for value in levels])
        acts = ~np.isnan(column)
        if name not in point:
            return np.asarray(acts, np.float64)
        at = self._coordinate(name, point[name])
        if self.context.knobs[name].kind in _ORDERED:
            known = [self._coordinate(name, value) for value in used if value is not None]
            low, high = min(known), max(known)
            gap = np.abs(column - min(max(at, low), high)) / ((high - low) or 1.0)
        else:
            gap = (column != at).astype(np.float64)
        return np.asarray(np.where(acts, gap, 1.0))

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


def lattice_of(job: Job, engine: Engine, *, for_plan: bool = False) -> Lattice:
    """The legal candidates of a job: of its space, or those that its engine lays out.

    What a search leaves to spaces, such as fp8, is laid out `for_plan` alone.

    Raises:
        JobError: The space is not valid, or too large.
        RenderError: A template or the base configuration does not render.
        NothingFeasibleError: The rules refuse every candidate; the hint names the nearest change.
    """
    laid_out = engine.layouts(for_plan=for_plan)
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
        counted = format_count(len(rows), "candidate")
        said = f"space {space.name}: none of its {counted} is legal for this job"
        settings = settings_of(closest, engine.context)
        raise nothing_legal(
            f"{said}; refused most by",
            counts,
            {name: format_value(value) for name, value in settings.items()},
            engine.judge(closest),
        )
    return Lattice(
        candidates=rows.take(legal),
        context=engine.context,
        grid_size=len(rows),
        refused=dict(counts.most_common()),
        examples=examples,
    )


def _examples(
    rows: CandidateRows, judged: Verdicts, engine: Engine
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
