"""The grid of a space in columns: every combination of its values, canonical, each once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Context, Knob
from autotune.space.rows import CandidateRows
from autotune.space.space_file import Domain, Space
from autotune.space.table import Indices, Table, Watched, answers

MOST_COMBINATIONS = 5_000_000
"""Combinations of values at a time: with their columns about a gigabyte."""
_PRUNED_FROM = 20_000
"""Combinations from which on, whenever they doubled, those that mean the same run are dropped."""


def grid_rows(space: Space, context: Context) -> CandidateRows:
    """Every candidate of a space for a job, before the rules.

    Raises:
        JobError: The space has more than `MOST_COMBINATIONS` combinations of values.
    """
    chosen, names = Table(n=1, levels={}, codes={}), list(space.domains)
    # What a space varies, it also decides where its `when` does not try it.
    decided = {*names} - {*context.settled}
    context = replace(context, base={n: v for n, v in context.base.items() if n not in decided})
    most = _PRUNED_FROM
    for place, (name, domain) in enumerate(space.domains.items(), start=1):
        chosen = _crossed(chosen, name, domain, space, context)
        if chosen.n > most:
            chosen = chosen.take(_distinct_so_far(chosen, names[place:], space, context))
            most = max(_PRUNED_FROM, 2 * chosen.n)
    table = _canonical(chosen, context)
    return CandidateRows(
        table=table.take(_firsts(table)), world=context.world, global_batch=context.global_batch
    )


def has_candidate(space: Space, context: Context, candidate: Candidate) -> bool:
    """Whether a space has a candidate, without its whole grid."""
    wanted = candidate.values
    domains = {
        name: Domain(values=(wanted[name],), when=domain.when)
        if wanted.get(name) in domain.values
        else domain
        for name, domain in space.domains.items()
    }
    return grid_rows(replace(space, domains=domains), context).find(candidate) is not None


def _crossed(chosen: Table, name: str, domain: Domain, space: Space, context: Context) -> Table:
    """Every combination with every value of one more knob, where that can act."""

    def ask(row: int) -> tuple[bool, set[str]]:
        watched = Watched(chosen, row, context.base)
        return _is_tried(context.knobs, name, domain, watched), watched.read

    tried = answers(chosen, ask).of(float) > 0
    n_values = len(domain.values)
    repeats = np.where(tried, n_values, 1)
    total = int(repeats.sum())
    if total > MOST_COMBINATIONS:
        sizes = " x ".join(f"{name} {len(d.values)}" for name, d in space.domains.items())
        raise JobError.of("space.too_many", space=space, most=MOST_COMBINATIONS, sizes=sizes)
    parents = np.repeat(np.arange(chosen.n), repeats)
    starts = np.cumsum(repeats) - repeats
    places = np.arange(total) - starts[parents]
    codes = np.where(tried[parents], places, n_values).astype(np.int16)
    return chosen.take(parents).with_column(name, (*domain.values, None), codes)


def _is_tried(
    catalogue: Catalogue, name: str, domain: Domain, chosen: Mapping[str, KnobValue]
) -> bool:
    """Whether to try a knob's values, given those chosen and the base configuration's."""
    return all(
        chosen.get(other, catalogue[other].default_for(chosen)) in allowed
        for other, allowed in (*catalogue[name].when.items(), *domain.when)
    )


def _distinct_so_far(
    chosen: Table, later: Sequence[str], space: Space, context: Context
) -> Indices:
    """The first of each kind of row that no knob still to come can tell apart.

    Two rows are of a kind if they have the same canonical form, as far as that is settled, and the
    same values of the knobs that decide whether others are tried.
    """
    deciding = {
        other
        for name in later
        for other in (
            *context.knobs[name].when,
            *(other for other, _ in space.domains[name].when),
            *(other for other, _ in context.knobs[name].default_when),
        )
    }
    open_ = set(later)
    settled = Table(n=chosen.n, levels={}, codes={})
    for name, knob in context.knobs.items():
        settled = _settled(settled, name, knob, chosen, context.base)
        if {other for other, _ in knob.default_when} & open_:
            open_.add(name)
    kinds = Table(n=chosen.n, levels={}, codes={})
    for name, knob in context.knobs.items():
        read: set[str] = set()
        folded = _folded(settled, name, knob, context, read)
        if name in open_ or read & open_:
            open_.add(name)
        else:
            settled = folded
            kinds = kinds.with_column(
                f"{name} settled", folded.levels[name], folded.codes.get(name)
            )
        if name in chosen.codes and name in open_ | deciding:
            kinds = kinds.with_column(name, chosen.levels[name], chosen.codes[name])
    return _firsts(kinds)


def _canonical(chosen: Table, context: Context) -> Table:
    """The canonical form of every row; see `autotune.space.knobs.canonical`."""
    settled = Table(n=chosen.n, levels={}, codes={})
    for name, knob in context.knobs.items():
        settled = _settled(settled, name, knob, chosen, context.base)
    for name, knob in context.knobs.items():
        settled = _folded(settled, name, knob, context, set())
    return settled


def _settled(
    settled: Table, name: str, knob: Knob, chosen: Table, base: Mapping[str, KnobValue]
) -> Table:
    """The chosen value, else the base configuration's, else the default."""
    named, codes = chosen.levels.get(name, (None,)), chosen.codes.get(name)
    if None not in named:
        return settled.with_column(name, named, codes)
    if name in base:
        levels: tuple[KnobValue, ...] = (base[name],)
        otherwise: Indices = np.zeros(settled.n, np.intp)
    else:

        def ask(row: int) -> tuple[KnobValue, set[str]]:
            watched = Watched(settled, row)
            return knob.default_for(watched), watched.read

        found = answers(settled, ask)
        levels, otherwise = found.distinct, found.which
    if codes is None:
        return settled.with_column(name, levels, otherwise.astype(np.int16))
    is_open = codes == named.index(None)
    values = [value for value in named if value is not None]
    merged = (*values, *(value for value in levels if value not in values))
    places = np.array([merged.index(value) for value in levels], np.int16)
    return settled.with_column(name, merged, np.where(is_open, places[otherwise], codes))


def _folded(settled: Table, name: str, knob: Knob, context: Context, read: set[str]) -> Table:
    """The one value that stands for all that mean the same; None where the knob does not act.

    The names of the knobs that decided it are added to `read`.
    """

    def ask(row: int) -> tuple[KnobValue | None, set[str]]:
        watched = Watched(settled, row)
        acts = knob.is_active(watched, context)
        value = knob.fold(watched[name], watched, context) if acts else None
        read.update(watched.read)
        return value, watched.read

    found = answers(settled, ask)
    return settled.with_column(name, found.distinct, found.which.astype(np.int16))


def _firsts(table: Table) -> Indices:
    key, _ = table.keys(table.codes)
    return np.sort(np.unique(key, return_index=True)[1])
