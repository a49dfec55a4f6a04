"""The answer of a search: one value from the loop to the page, and JSON only in `study.json`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from autotune.base.plugins import load_plugin
from autotune.contract import CONFIG_DIR, METER_SLACK, ROUNDING, KnobValue, Origin, Outcome
from autotune.record.facts import (
    PassedOver,
    context_of,
    objective_of,
    read_fact,
    said_origin_of,
)
from autotune.record.guard import GuardVerdict
from autotune.record.study import Recorded, Study
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class _StandingFigures:
    trial: int
    """Number of the trial whose files stand for it."""
    samples_per_s: float
    samples_per_s_low: float
    """Lower end of the 95% prediction interval: where a re-run would be."""
    samples_per_s_high: float
    peak_memory_bytes: int | None
    n_runs: int
    """Fresh sets of processes behind the figure."""
    n_disturbed: int = 0
    """Runs among these that something else on the machine disturbed."""


@dataclass(frozen=True, kw_only=True)
class Standing(_StandingFigures):
    """A candidate with its figure: the final comparison's where it took part, else one trial's."""

    candidate: Candidate
    config: Path
    """The trial's configuration file."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        figures = {each.name: getattr(self, each.name) for each in fields(_StandingFigures)}
        named = {"trial": self.trial, "candidate": dict(self.candidate.values)}
        return {**named, **figures, "ds_config": str(self.config)}


@dataclass(frozen=True, kw_only=True)
class Drifted:
    """A candidate that is better than the best and not handed out: the guard fails it."""

    standing: Standing
    guard: GuardVerdict

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**self.standing.to_dict(), "guard": self.guard.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Gain of the best over the baseline, as a ratio of samples/s."""

    ratio: float
    low: float
    """Lower end of the 95% interval, from the interleaved runs of the final comparison."""
    high: float

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a search found nothing, and how to mend that."""

    message: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class _AnswerHead:
    counts: Mapping[Outcome, int]
    """Ended trials by outcome."""
    rule: str = ""
    """How the best one of the front was chosen; empty without one."""
    stop_reason: str
    interrupted: bool
    origin: Origin = Origin.MEASURED
    """Origin of the figures."""
    problem: Problem | None = None
    """Why there is no best one, where the search failed."""
    passed_over: tuple[PassedOver, ...] = ()
    """Candidates that the baseline was to be and is not; the first is what was asked for."""


@dataclass(frozen=True, kw_only=True)
class SearchAnswer(_AnswerHead):
    """The answer of a search."""

    study: Study
    interrupted: bool = False
    baseline: Standing | None = None
    best: Standing | None = None
    guard: GuardVerdict | None = None
    """What the convergence guard says of the best; None: there is no best, or the guard is off."""
    drifted: Drifted | None = None
    """What would be the best if the guard did not fail it; None: nothing."""
    ties: tuple[Standing, ...] = ()
    """Candidates that are not told apart from the best, the confirmed ones first; only where the
    objective is samples/s."""
    speedup: Speedup | None = None
    """None if no baseline ran or nothing was confirmed."""
    front: tuple[Standing, ...] | None = None
    """The Pareto front, fastest first; None for an objective without one."""
    objective: str = "samples_per_s"
    """Name of what `best` was chosen by."""

    @property
    def has_proven_gain(self) -> bool:
        """Whether the final comparison shows that the best is better than the baseline.

        It is faster, or takes less memory where memory was asked for.
        """
        best, baseline = self.best, self.baseline
        if self.speedup is None or best is None or baseline is None:
            return False
        if best.candidate == baseline.candidate:
            return False
        if self.speedup.low > 1:
            return True
        peaks = best.peak_memory_bytes, baseline.peak_memory_bytes
        if self.objective == "samples_per_s" or peaks[0] is None or peaks[1] is None:
            return False
        return peaks[0] * (1 + METER_SLACK) < peaks[1]

    @property
    def handed_out(self) -> Standing | None:
        """The one that is exported: the best where it is proven to be better than the baseline.

        Without a baseline there is only the best.
        """
        is_best = self.has_proven_gain or self.baseline is None
        return self.best if is_best or self.best is None else self.baseline

    @property
    def has_gain_to_explain(self) -> bool:
        """Whether trials were run here, and another candidate than the baseline is the best."""
        ran = self.origin is Origin.MEASURED and not self.interrupted
        if not ran or self.best is None or self.baseline is None:
            return False
        return self.best.candidate != self.baseline.candidate

    @property
    def is_substitute(self) -> bool:
        """Whether the baseline is another than was asked for, since the platform ended that."""
        return self.baseline is not None and any(p.by_platform for p in self.passed_over)

    @property
    def table(self) -> Path:
        """The study's table."""
        return self.study.table_file

    @property
    def export(self) -> Path | None:
        """Folder of the files that are handed out; None: there are none."""
        has_files = self.best is not None and self.origin is Origin.MEASURED
        return self.study.best_folder if has_files else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what `search --json` prints and `study.json` keeps.

        Returns:
            `study`, `counts` by outcome, `baseline` and `best` (null where there is none),
            `ties`, `proven_gain` (whether the best is proven to be better than the baseline),
            `handed_out` (the trial whose files `paths.export` holds: without a proven gain that
            of the baseline; null: nothing is), `speedup` with its 95% interval `speedup_low` to
            `speedup_high` (null if no baseline was compared), `guard` (what the convergence guard
            says of `best`: `verdict`, `why`, `tolerance`, `deviation` in `step`, the `losses` and
            `baseline_losses` of each step; null where it is off), `drifted` (what was better and
            is not handed out since the guard fails it, with its own `guard`; null: nothing was),
            `passed_over` (what the baseline was to be and is not, the first choice first:
            `candidate`, its `trial`, `why`, and whether the platform is to blame: `by_platform`),
            `substitute_baseline` (whether one of those is), `stop_reason`, `origin` (of the
            figures: see `Origin`), `problem` (null, or `message` and `fix`), `interrupted`,
            `paths`; with the Pareto objective also `front`, fastest first, and `rule`, which says
            how `best` was chosen of it.
        """
        speedup, problem = self.speedup, self.problem
        front = {}
        if self.front is not None:
            front = {"front": [point.to_dict() for point in self.front], "rule": self.rule}
        return {
            "study": self.study.name,
            "counts": {outcome.value: count for outcome, count in self.counts.items()},
            "baseline": self.baseline and self.baseline.to_dict(),
            "best": self.best and self.best.to_dict(),
            "ties": [tie.to_dict() for tie in self.ties],
            "proven_gain": self.has_proven_gain,
            "handed_out": self.handed_out and self.handed_out.trial,
            "speedup": speedup and speedup.ratio,
            "speedup_low": speedup and speedup.low,
            "speedup_high": speedup and speedup.high,
            "guard": self.guard and self.guard.to_dict(),
            "drifted": self.drifted and self.drifted.to_dict(),
            "passed_over": [vars(passed) for passed in self.passed_over],
            "substitute_baseline": self.is_substitute,
            "stop_reason": str(self.stop_reason),
            "origin": self.origin.value,
            "problem": problem and vars(problem),
            "interrupted": self.interrupted,
            "paths": {
                "table": str(self.table),
                "export": None if self.export is None else str(self.export),
            },
            **front,
        }


def config_of(study: Study, trial: int, engine: str) -> Path:
    """The configuration file of a trial of an engine."""
    name: str = load_plugin("engine", engine).config_file
    return study.trial_folder(trial) / CONFIG_DIR / name


def answer_of(facts: Mapping[str, Any], study: Study, recorded: Recorded) -> SearchAnswer | None:
    """The answer of the last search, by `study.json`; None: there is none, or it is damaged.

    It is damaged where its figures cannot be, or are none of the record's.

    Its files are named as they lie now: a study may have been moved since, or set aside, and its
    old place may be another study's.
    """
    kept, context = read_fact(_StoredAnswer, facts.get("answer")), context_of(facts)
    if kept is None or context is None or not _can_be(kept, facts, recorded):
        return None
    ratios = (kept.speedup, kept.speedup_low, kept.speedup_high)
    ratio, low, high = ratios
    speedup = None
    if ratio is not None and low is not None and high is not None:
        speedup = Speedup(ratio=ratio, low=low, high=high)
    if ratios != (None, None, None) and not (speedup and kept.best and kept.baseline):
        return None

    def standing(its: _StoredStanding) -> Standing:
        known = {each.name for each in fields(_StandingFigures)} | {"candidate"}
        figures = {name: value for name, value in vars(its).items() if name in known}
        values = figures.pop("candidate")
        candidate = Candidate.of(values, world=context.world, global_batch=context.global_batch)
        config = config_of(study, its.trial, context.engine)
        return Standing(candidate=candidate, config=config, **figures)

    ending = {each.name: getattr(kept, each.name) for each in fields(_AnswerHead)}
    return SearchAnswer(
        **ending,
        study=study,
        baseline=None if kept.baseline is None else standing(kept.baseline),
        best=None if kept.best is None else standing(kept.best),
        guard=kept.guard,
        drifted=None
        if kept.drifted is None
        else Drifted(standing=standing(kept.drifted), guard=kept.drifted.guard),
        ties=tuple(map(standing, kept.ties)),
        speedup=speedup,
        front=tuple(map(standing, kept.front)) or None,
        objective=objective_of(facts).name,
    )


@dataclass(frozen=True, kw_only=True)
class _StoredStanding(_StandingFigures):
    candidate: dict[str, KnobValue]
    ds_config: str


@dataclass(frozen=True, kw_only=True)
class _StoredDrifted(_StoredStanding):
    guard: GuardVerdict


@dataclass(frozen=True, kw_only=True)
class _StoredAnswer(_AnswerHead):
    """As `SearchAnswer.to_dict` writes it; what is found anew is left out."""

    baseline: _StoredStanding | None
    best: _StoredStanding | None
    ties: list[_StoredStanding]
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    guard: GuardVerdict | None = None
    drifted: _StoredDrifted | None = None
    substitute_baseline: bool = False
    front: list[_StoredStanding] = field(default_factory=list)


_MOST_TRIALS = 10**6


def _can_be(kept: _StoredAnswer, facts: Mapping[str, Any], recorded: Recorded) -> bool:
    """Whether an answer's figures can be, and are those of the record as far as it is whole."""
    said = said_origin_of(facts)
    if said is not None and kept.origin is not said:
        return False
    if not all(0 <= count <= _MOST_TRIALS for count in kept.counts.values()):
        return False
    standings = (kept.baseline, kept.best, kept.drifted, *kept.ties, *kept.front)
    named = [each for each in standings if each is not None]
    runs = [_runs_of(its, recorded) for its in named]
    if not all(map(_is_figure, named)) or None in runs:
        return False
    if any(its and not _is_of(standing, its) for standing, its in zip(named, runs, strict=True)):
        return False
    ratio, low, high = kept.speedup, kept.speedup_low, kept.speedup_high
    if ratio is None or low is None or high is None:
        return True
    return 0 < low <= ratio <= high < math.inf


def _is_figure(its: _StoredStanding) -> bool:
    low, rate, high = its.samples_per_s_low, its.samples_per_s, its.samples_per_s_high
    peak = its.peak_memory_bytes
    return (
        0 < low <= rate <= high < math.inf
        and 0 <= its.n_disturbed <= its.n_runs <= _MOST_TRIALS
        and its.n_runs > 0
        and 0 <= its.trial < _MOST_TRIALS
        and (peak is None or peak > 0)
    )


def _runs_of(
    its: _StoredStanding, recorded: Recorded
) -> Sequence[tuple[float, int | None]] | None:
    """Samples/s and peak of each run of a standing's candidate.

    Returns:
        Empty where the record is not whole, None where its trial ran another candidate.
    """
    trials = {t.spec.identity.number: t for t in recorded.trials}
    stands_for_it = trials.get(its.trial)
    if stands_for_it is None:
        return ()
    identity = stands_for_it.spec.identity
    if identity.knobs != its.candidate:
        return None
    own = [t for t in recorded.trials if t.spec.identity.candidate_hash == identity.candidate_hash]
    results = [t.result for t in own if t.result is not None]
    if recorded.unreadable or len(results) < len(own):
        return ()
    return [(r.samples_per_s, r.peak_memory_bytes) for r in results if r.samples_per_s is not None]


def _is_of(its: _StoredStanding, runs: Sequence[tuple[float, int | None]]) -> bool:
    """Whether a figure is a mean of some of these runs, and its peak that of one."""
    rates = [rate for rate, _ in runs]
    least, most = min(rates) * (1 - ROUNDING), max(rates) * (1 + ROUNDING)
    is_mean = least <= its.samples_per_s <= most
    return is_mean and its.peak_memory_bytes in [peak for _, peak in runs]
