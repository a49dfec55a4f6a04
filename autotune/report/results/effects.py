"""Changes of the best against the baseline, and the effect of each change alone.

A change was measured alone where two candidates of the record differ in that one setting, from the
baseline's value to the best's. Where no such pair ran, nothing is claimed: a share of the whole
gain would be a guess.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.contract import KnobValue
from autotune.report.results.ratios import Basis, Ratio, ratio_of, telling_runs
from autotune.report.story import Story
from autotune.search.confirm import Comparison
from autotune.search.history import CandidateTrials, History
from autotune.space.candidate import format_value
from autotune.space.knobs import settings_of


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two candidates that differ in one setting."""

    before: int
    """Trial with the baseline's value."""
    after: int
    """Trial with the best's value."""
    ratio: Ratio
    """Samples/s of `after` over `before`."""
    is_interleaved: bool
    """Whether both ran in the last final comparison, round by round."""
    is_proven: bool
    """Whether they are told apart; apart from that comparison by both intervals, as ties are."""
    memory_bytes: int | None
    """Peak of `after` less that of `before`; None where a meter said nothing."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One knob that the best sets otherwise than the baseline."""

    knob: str
    before: KnobValue | None
    """Value in the baseline; None where the knob does not act."""
    after: KnobValue | None
    """Value in the best; None where the knob does not act."""
    help: str
    pairs: tuple[Pair, ...]
    """Pairs that measured it alone, the most telling first; empty where none did."""

    @property
    def spelled(self) -> tuple[str, str]:
        before, after = (
            "does not act" if value is None else format_value(value)
            for value in (self.before, self.after)
        )
        return before, after


def changes_of(story: Story) -> list[Change]:
    """The knobs that the best sets otherwise than the baseline; empty without both."""
    best, baseline = story.best_row, story.baseline_row
    if best is None or baseline is None:
        return []
    question = ("changes", best.trial, baseline.trial)
    return story.history.once(question, lambda: _changes(story, best, baseline))


def _changes(story: Story, best: CandidateTrials, baseline: CandidateTrials) -> list[Change]:
    settings = {row.trial: settings_of(row.candidate, story.context) for row in story.rows}
    ends, knobs = {best.trial, baseline.trial}, story.context.knobs
    after, before = settings[best.trial], settings[baseline.trial]
    found = []
    for name in knobs:
        values = before.get(name), after.get(name)
        chosen = baseline.candidate.get(name), best.candidate.get(name)
        # The same value, written where the engine's default differs, is no change.
        if values[0] == values[1] or chosen[0] == chosen[1]:
            continue
        alike = _alike(story.rows, settings, name, *values)
        pairs = [_pair(one, other, story.history, story.comparison) for one, other in alike]
        # The final comparison's first, then those that hold the best or the baseline.
        pairs.sort(key=lambda p: (not p.is_interleaved, -len({p.before, p.after} & ends), p.after))
        about = knobs[name].help
        change = Change(
            knob=name, before=chosen[0], after=chosen[1], help=about, pairs=tuple(pairs)
        )
        found.append(change)
    return found


def _alike(
    rows: Sequence[CandidateTrials],
    settings: Mapping[int, Mapping[str, KnobValue]],
    name: str,
    before: KnobValue | None,
    after: KnobValue | None,
) -> Iterator[tuple[CandidateTrials, CandidateTrials]]:
    """Pairs of measured candidates that differ in this one setting, by its two values."""
    sides: dict[
        frozenset[tuple[str, KnobValue]], tuple[list[CandidateTrials], list[CandidateTrials]]
    ] = {}
    for row in rows:
        chosen = settings[row.trial]
        if row.figure is not None and chosen.get(name) in (before, after):
            rest = frozenset((knob, value) for knob, value in chosen.items() if knob != name)
            sides.setdefault(rest, ([], []))[chosen.get(name) == after].append(row)
    for befores, afters in sides.values():
        yield from itertools.product(befores, afters)


def _pair(
    before: CandidateTrials, after: CandidateTrials, history: History, verdict: Comparison | None
) -> Pair:
    figures = [row.figure for row in (after, before) if row.figure]
    peaks = [figure.peak_memory_bytes for figure in figures]
    of, over = after.candidate.hash, before.candidate.hash
    gain = None
    if verdict is not None and {of, over} <= set(verdict.figures):
        gain = verdict.race.gain(of=of, over=over)  # judged as the gain in the headline is
    if verdict is not None and gain is not None:
        n_runs = verdict.figures[of].n_runs, verdict.figures[over].n_runs
        ratio = Ratio(**vars(gain), basis=Basis.RUNS, n_runs=n_runs)
    else:
        ratio = ratio_of(
            telling_runs(after),
            telling_runs(before),
            spreads=(history.spread, history.spread),
        )
    is_apart = not figures[0].overlaps(figures[1])
    return Pair(
        before=before.trial,
        after=after.trial,
        ratio=ratio,
        is_interleaved=gain is not None,
        is_proven=ratio.is_told_apart
        and (gain is not None or not figures[0].overlaps(figures[1])),
        memory_bytes=None if None in peaks else (peaks[0] or 0) - (peaks[1] or 0),
    )
