"""The lattice: the candidates of a job, of whatever engine; rules judge each when it is wanted."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import NothingFeasibleError
from autotune.base.flags import flag
from autotune.base.units import format_count
from autotune.contract import KnobValue
from autotune.engines.base import Engine
from autotune.space.candidate import Candidate, format_value
from autotune.space.grid import grid_rows
from autotune.space.knob import Context
from autotune.space.knobs import canonical, settings_of
from autotune.space.rows import MANY, CandidateRows
from autotune.space.rule import Violation, nothing_legal
from autotune.space.space_file import Space
from autotune.space.table import Indices, Table, table_of

MOST_COUNTED = 1_000
"""Up to so many candidates all are judged at once, in less than a second."""
_MOST_IN_VAIN = 20_000
"""Candidates that are judged for the first legal one."""
_ORDERED = ("int", "float")


@dataclass(frozen=True, kw_only=True, eq=False)
class Lattice:
    """The candidates that no rule has refused yet, and why others are refused."""

    candidates: Sequence[Candidate]
    """In the order of the grid, or of the engine's layouts; those are made as they are asked for.
    """
    context: Context
    grid_size: int
    """Candidates before the rules."""
    refused: Counter[str] = field(default_factory=Counter)
    """Rule -> candidates that it refuses of those judged; one may break several rules."""
    examples: dict[str, tuple[Candidate, Violation]] = field(default_factory=dict)
    """Rule -> one candidate that it refuses, and what it says."""
    judge: Callable[[Candidate], Sequence[Violation]] | None = None
    """Asks the rules of a candidate; None: all candidates are known to be legal."""
    is_laid_out: bool = False
    """Whether the engine laid the candidates out itself; else they are those of a space."""
    _verdicts: dict[int, bool] = field(default_factory=dict)
    """Place of a candidate that was judged -> whether it is legal."""

    @property
    def is_counted(self) -> bool:
        """Whether all candidates are known to be legal."""
        return self.judge is None

    @property
    def n_judged(self) -> int:
        return len(self.candidates) if self.judge is None else len(self._verdicts)

    def is_legal(self, place: int) -> bool:
        """Whether the rules allow the candidate at a place; each is judged once.

        Raises:
            RenderError: A template or the base configuration does not render.
        """
        if self.judge is None:
            return True
        if place not in self._verdicts:
            candidate = self.candidates[place]
            violations = self.judge(candidate)
            self._verdicts[place] = not violations
            self.refused.update({violation.rule for violation in violations})
            for violation in violations:
                self.examples.setdefault(violation.rule, (candidate, violation))
        return self._verdicts[place]

    def first_legal(self, places: Iterable[int]) -> int | None:
        """The first of some places whose candidate is legal; None: none is."""
        return next((int(place) for place in places if self.is_legal(int(place))), None)

    @property
    def n_left(self) -> int:
        """Candidates that no rule has refused yet."""
        return len(self.candidates) - len(self.refused_places)

    @property
    def refused_places(self) -> list[int]:
        """Places of the candidates that were judged, and are not legal."""
        return [place for place, is_legal in self._verdicts.items() if not is_legal]

    def without_refused(self) -> tuple[Self, Indices]:
        """The lattice without the candidates that were refused, and the places of the others."""
        is_left = np.ones(len(self.candidates), np.bool_)
        is_left[self.refused_places] = False
        left = np.flatnonzero(is_left)
        assert isinstance(self.candidates, CandidateRows), "all others are judged"
        verdicts = {
            place: True for place, old in enumerate(left.tolist()) if old in self._verdicts
        }
        found = replace(
            self,
            candidates=self.candidates.take(left),
            refused=self.refused.copy(),
            examples=dict(self.examples),
            _verdicts=verdicts,
        )
        return found, left

    def counted(self) -> Self:
        """The lattice with every candidate judged, one by one."""
        if self.judge is None:
            return self
        for place in range(len(self.candidates)):
            self.is_legal(place)
        return replace(self.without_refused()[0], judge=None, _verdicts={})

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
        """The legal candidate nearest to a proposal; None if every one is closed.

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
            if candidate.hash not in closed and self.is_legal(int(index)):
                return candidate
        return None

    def places(
        self, hashes: Collection[str], known: Iterable[Candidate] = ()
    ) -> Mapping[str, int]:
        """Places of the candidates with some hashes; those that are not in the lattice have none.

        Of a large lattice it is fast where the candidates behind the hashes are `known`.
        """
        if isinstance(self.candidates, CandidateRows) and len(self.candidates) > MANY:
            by_hash = {candidate.hash: candidate for candidate in known}
            if by_hash.keys() >= set(hashes):
                for one in by_hash.keys() - self._found.keys():
                    self._found[one] = self.candidates.find(by_hash[one])
                found = {one: self._found[one] for one in hashes}
                return {one: place for one, place in found.items() if place is not None}
        place_of = self._place_of
        return {one: place_of[one] for one in hashes if one in place_of}

    @cached_property
    def _found(self) -> dict[str, int | None]:
        return {}

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


def lattice_of(engine: Engine) -> Lattice:
    """The candidates of an engine's job: of its space, or those that its engine lays out.

    Raises:
        JobError: The space is not valid, or too large.
        RenderError: A template or the base configuration does not render.
        NothingFeasibleError: The rules refuse every candidate; the hint names the nearest change.
    """
    try:
        laid_out = engine.layouts()
        return build_lattice(engine.space, engine) if laid_out is None else laid(laid_out, engine)
    except NothingFeasibleError as error:
        ways = even_shares(engine.context)
        ways += engine.splits_sequences() if ways else ()
        raise NothingFeasibleError(error.message, "; or ".join([error.hint, *ways])) from error


def even_shares(context: Context) -> list[str]:
    """The nearest batches that the world divides, and worlds that divide the global batch.

    They are flags in words, worlds of whole nodes alone; empty where the world divides the batch.
    """
    world, batch, per_node = context.world, context.global_batch, context.n_devices
    if batch % world == 0:
        return []
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    if 0 < per_node < world:
        divisors = [n for n in divisors if n % per_node == 0]
    worlds = [n for n in divisors if n < world][-1:] + [n for n in divisors if n > world][:1]
    batches = [n for n in (batch // world * world, batch // world * world + world) if n]
    return [
        f"give {flag(name)} {' or '.join(map(str, numbers))}"
        for name, numbers in (("global_batch", batches), ("world", worlds))
        if numbers
    ]


def laid(layouts: Sequence[Candidate], engine: Engine) -> Lattice:
    """The lattice of an engine's own layouts, which are legal."""
    return Lattice(
        candidates=layouts, context=engine.context, grid_size=len(layouts), is_laid_out=True
    )


def build_lattice(space: Space, engine: Engine, *, most_counted: int = MOST_COUNTED) -> Lattice:
    """The candidates of a space without those that the rules refuse by a few knobs alone.

    Args:
        space: The space.
        engine: Judges its candidates.
        most_counted: Up to so many that are left, all are judged.

    Raises:
        JobError: The space is too large.
        RenderError: A template or the base configuration does not render.
        NothingFeasibleError: The rules refuse every candidate; the hint names the nearest change.
    """
    rows = grid_rows(space, engine.context)
    counts: Counter[str] = Counter()
    examples: dict[str, tuple[Candidate, Violation]] = {}
    broken = np.zeros(len(rows), np.intp)
    is_large = len(rows) > MOST_COUNTED
    refused = engine.refused_rows(rows) if is_large else None
    for rule, those in (refused or {}).items():
        broken += those
        if n_refused := int(those.sum()):
            counts[rule] += n_refused
            first = rows[int(np.argmax(those))]
            examples[rule] = next((first, v) for v in engine.judge(first) if v.rule == rule)
    if is_large and refused is None:
        for knobs, rules in engine.decided_by.items():
            broken += _broken(rows, engine, knobs, rules, counts, examples)
    lattice = Lattice(
        candidates=rows.take(np.flatnonzero(broken == 0)),
        context=engine.context,
        grid_size=len(rows),
        judge=engine.judge if refused is None else None,
        refused=counts,
        examples=examples,
    )
    n_left = len(lattice.candidates)
    if n_left <= most_counted:
        found = lattice.counted()
        if len(found.candidates):
            return found
    else:
        drawn = np.random.default_rng(0).permutation(n_left)[:_MOST_IN_VAIN]
        if lattice.first_legal(drawn) is not None:
            return lattice
    raise _nothing(space, engine, rows, broken, lattice)


def _broken(
    rows: CandidateRows,
    engine: Engine,
    knobs: tuple[str, ...],
    rules: Collection[str],
    counts: Counter[str],
    examples: dict[str, tuple[Candidate, Violation]],
) -> Indices:
    """How many rules that follow from some knobs alone each candidate breaks.

    What they refuse is added to `counts` and `examples`.
    """
    kinds = rows.answers(lambda candidate: tuple(map(candidate.get, knobs)))
    groups, firsts, sizes = np.unique(kinds.which, return_index=True, return_counts=True)
    n_broken = np.zeros(len(kinds.distinct), np.intp)
    for group, first, size in zip(groups, firsts.tolist(), sizes.tolist(), strict=True):
        found = [v for v in engine.judge(rows[first]) if v.rule in rules]
        n_broken[group] = len(found)
        for rule in {violation.rule for violation in found}:
            counts[rule] += size
        for violation in found:
            examples.setdefault(violation.rule, (rows[first], violation))
    return n_broken[kinds.which]


def _nothing(
    space: Space, engine: Engine, rows: CandidateRows, broken: Indices, lattice: Lattice
) -> NothingFeasibleError:
    """The error where no candidate that was judged is legal; it shows the nearest."""
    n_alone = lattice.n_judged
    judged = [lattice.candidates[place] for place in lattice.refused_places[:MOST_COUNTED]]
    closest = min(judged, key=lambda one: len(engine.judge(one)), default=None)
    if closest is None:
        closest = rows[int(np.argmin(broken))]
    is_all = n_alone == len(lattice.candidates)
    of_them = "" if is_all else f"{n_alone} judged of "
    counted = f"{of_them}its {format_count(len(rows), 'candidate')}"
    settings = settings_of(closest, engine.context)
    return nothing_legal(
        f"space {space.name}: none of {counted} is legal for this job; refused most by",
        lattice.refused,
        {name: format_value(value) for name, value in settings.items()},
        engine.judge(closest),
    )


def _sort_key(value: KnobValue) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (float(value), "")
