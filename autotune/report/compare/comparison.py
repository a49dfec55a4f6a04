"""Several studies beside each other: outcomes, bests, gains, and the candidates that they share.

Studies ran at different times, so drift of the machine between them is in no interval here; only
the final comparison of one study interleaves what it compares.
"""

import json
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.base.templates import tell
from autotune.contract import Origin, Outcome, TrialResult
from autotune.record.answer import Speedup
from autotune.record.study import Study, flags_of
from autotune.report.parts import Part, tell_parts
from autotune.report.results.ratios import Basis, Ratio, ratio_of, ratio_of_gains, telling_runs
from autotune.report.story import Story, reduced_counts
from autotune.report.verdict import verdict_of
from autotune.search.history import CandidateTrials
from autotune.space.candidate import format_value
from autotune.space.knobs import describe_candidate


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """The best of a study, by accelerator and by money."""

    run: str
    """Key of the study."""
    device_name: str
    world: int
    """Accelerators."""
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    price_per_hour: float | None
    """Price of one accelerator; None: nobody said."""

    def per_accelerator(self, samples_per_s: float) -> float:
        return samples_per_s / self.world

    def per_money(self, samples_per_s: float) -> float:
        """Samples for one of the price's money, at such a rate; a price is known."""
        assert self.price_per_hour is not None
        return 3600.0 * samples_per_s / (self.world * self.price_per_hour)

    def as_dict(self) -> dict[str, Any]:
        rate, is_priced = self.samples_per_s, self.price_per_hour is not None
        return {
            **asdict(self),
            "samples_per_s_per_accelerator": self.per_accelerator(rate),
            "samples_per_money": self.per_money(rate) if is_priced else None,
        }


Measure = Callable[[KindFigures, float], float]
"""A figure of a kind at some samples/s, the more the better."""


def leads_of(kinds: Sequence[KindFigures]) -> list[dict[str, Any]]:
    """Which kind is best per accelerator, and for the same money where all prices are known."""
    is_priced = all(kind.price_per_hour is not None for kind in kinds)
    measures = [KindFigures.per_accelerator, KindFigures.per_money][: 1 + is_priced]
    return [_lead(kinds, one) for one in measures] if kinds else []


def best_kinds(kinds: Sequence[KindFigures]) -> dict[str, str | None]:
    """Key of the study that does most per accelerator, and for the same money; None: unknown."""
    bests = [lead["best"].run for lead in leads_of(kinds)]
    return dict(zip(("speed", "money"), (*bests, None, None), strict=False))


def _lead(kinds: Sequence[KindFigures], of: Measure) -> dict[str, Any]:
    """Which kind is best by a figure, by how much, and whether its interval is above 1.

    A kind is a device and the number of them. The errors of two studies add up in squares, as of
    any ratio of independent figures.
    """
    bests: dict[tuple[str, int], KindFigures] = {}
    ordered = sorted(kinds, key=lambda kind: of(kind, kind.samples_per_s), reverse=True)
    for kind in ordered:  # of several studies of a kind, the best stands for it
        bests.setdefault((kind.device_name, kind.world), kind)
    best, second = list(bests.values())[:2]
    ratio = of(best, best.samples_per_s) / of(second, second.samples_per_s)
    error = math.hypot(
        math.log(best.samples_per_s / best.samples_per_s_low),
        math.log(second.samples_per_s_high / second.samples_per_s),
    )
    return {
        "best": best,
        "second": second,
        "ratio": ratio,
        "is_proven": ratio > math.exp(error),
    }


MAX_RUNS = 26
"""More would make no table that people read."""

_JOB = ("model", "finetune", "seq_len", "lengths", "global_batch", "precision")
"""Columns of the table, and keys of the job, without which samples/s are not of the same work."""
_EMPTY = {"finetune": "every weight"}
"""Meaning of an empty column, where that is known."""
_PLACE = ("world", "origin", "accelerator", "device_name", "memory_limit_bytes")
_NO_VALUE = format_value(None)
"""A knob that does not act, or that is none of the study's engine."""
_BESIDES_THE_TABLE = (
    *("optimizer", "objective", "objective_floor", "head_room", "baseline", "base_config"),
    *("templates", "lengths"),
)
"""Keys of the job that change what a trial runs or what `best` means, and that no column tells
fully: two histograms are one word there."""
_SIDES = ("first", "other")
_CANDIDATES = {
    **dict.fromkeys(("settings", "candidate_hash", "first", "other"), "string"),
    **dict.fromkeys(("first_trial", "other_trial"), "Int64"),
    **dict.fromkeys(("first_samples_per_s", "other_samples_per_s"), "float64"),
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "float64"),
    "interval_from": "string",
    **dict.fromkeys(("first_runs", "other_runs"), "Int64"),
    **dict.fromkeys(("first_peak_memory_bytes", "other_peak_memory_bytes"), "Int64"),
    "same_config": "boolean",
}
"""Columns of the table of shared candidates, and their types."""


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """Several studies beside each other."""

    stories: Mapping[str, Story]
    """The studies by their names here, as of `names_of`; columns are named by these."""
    outcomes: Mapping[str, Mapping[str, int]]
    """Ended trials by study and outcome."""
    bests: Sequence[Mapping[str, Any]]
    """By study: its best with its interval, and the gain over its own baseline."""
    knobs: Mapping[str, Mapping[str, str]]
    """Knobs that the bests set differently, with their values, by study."""
    candidates: Sequence[Mapping[str, Any]]
    """The same candidate of the same job in the first study and in another: the ratio of the
    other's samples/s to the first's, and its 95% interval. `interval_from` is `runs` (both
    studies ran something more than once) or `assumed` (one did not: `autotune.record.spread`)."""
    verdicts: Sequence["Verdict"]
    """Bests of the further studies, each against the first one's."""
    fastest: str
    """The study whose best is proven faster than each other's; empty: none is known to be."""
    kinds: Sequence[KindFigures]
    """The bests of studies of one work on different kinds or numbers of accelerators; empty: they
    are none."""
    warnings: Sequence[str]
    """Differences besides the candidates."""

    @property
    def shared_knobs(self) -> dict[str, list[str]]:
        """Knobs that act in every study -> their value in each."""
        by_knob = {
            knob: [values[knob] for values in self.knobs.values()]
            for knob in next(iter(self.knobs.values()), {})
        }
        return {knob: values for knob, values in by_knob.items() if _NO_VALUE not in values}

    @property
    def own_knobs(self) -> list[tuple[str, str]]:
        """Study and what its best sets of knobs that do not act in all, as `knob=value ...`."""
        shared = self.shared_knobs
        sets = {
            name: " ".join(
                f"{knob}={value}"
                for knob, value in values.items()
                if value != _NO_VALUE and knob not in shared
            )
            for name, values in self.knobs.items()
        }
        return [(name, settings) for name, settings in sets.items() if settings]

    @property
    def table(self) -> pd.DataFrame:
        return pd.DataFrame(self.candidates, columns=[*_CANDIDATES]).astype(_CANDIDATES)

    def parts(self) -> list[Part]:
        return tell_parts("compare", self.values)

    @property
    def values(self) -> dict[str, Any]:
        """What the templates tell of."""
        return {
            "comparison": self,
            "names": list(self.stories),
            "folders": [(name, str(story.folder)) for name, story in self.stories.items()],
            "leads": leads_of(self.kinds),
            "use": flags_of(best.folder) if (best := self.stories.get(self.fastest)) else "",
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "studies": {name: str(story.folder) for name, story in self.stories.items()},
            "warnings": list(self.warnings),
            "outcomes": self.outcomes,
            "bests": self.bests,
            "knobs": self.knobs,
            "candidates": self.candidates,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "fastest": self.fastest or None,
            "kinds": [kind.as_dict() for kind in self.kinds],
            "best_kinds": best_kinds(self.kinds),
        }


@dataclass(frozen=True, kw_only=True)
class Verdict(ABC):
    """How the best of a study does against the first one's."""

    name: str
    first: str

    @property
    @abstractmethod
    def facts(self) -> dict[str, str]:
        """`headline`, `words` and perhaps a `tone`."""

    @property
    def sentence(self) -> str:
        facts = self.facts
        return f"{facts['headline']}. {facts['words']}"

    def as_dict(self) -> dict[str, Any]:
        names, drift = ("faster", "ratio", "low", "high"), getattr(self, "drift", None)
        figures = {name: getattr(self, name, None) or None for name in names}
        about = {"study": self.name, "over": self.first, "text": self.sentence}
        return {**about, **figures, "baseline_ratio": drift and drift.ratio}


@dataclass(frozen=True, kw_only=True)
class Against(Verdict, Speedup):
    """A ratio with its 95% interval."""

    sides: tuple[Story, Story]
    """The first one and the other."""
    measured: Sequence["_Measured"]
    """Runs behind the ratio: of the best of each, and of the baselines that they are beside."""
    is_beside_baseline: bool = False
    """Whether each best counts beside the baseline of its own study, which both ran."""
    drift: Speedup | None = None
    """Speed of that baseline in the study over that in the first one, where they differ."""
    shares_baseline: bool = True
    """Whether the machine is known to have been as fast both times; else neither is faster."""

    @property
    def faster(self) -> str:
        """The faster one; empty: no difference is proven."""
        if not self.shares_baseline:
            return ""
        return self.name if self.low > 1 else self.first if self.high < 1 else ""

    @property
    def once(self) -> list[str]:
        """Those of the two that ran nothing twice: how much their runs differ is assumed."""
        names = zip((self.first, self.name), self.measured, strict=False)
        return [name for name, (tried, _) in names if not tried.spread.knows_repeats]

    @property
    def decides(self) -> bool:
        """Whether the faster one is the one to use."""
        is_alike = len({story.context.world for story in self.sides}) == 1
        asked = {(s.facts.origin, s.objective.wish.name) for s in self.sides}
        is_by_speed = asked == {(Origin.MEASURED, "samples_per_s")}
        return bool(self.faster) and is_alike and is_by_speed and not self.once

    @property
    def facts(self) -> dict[str, str]:
        ratio, low, high, slower = self.ratio, self.low, self.high, self.first
        if self.faster == self.first:
            ratio, low, high, slower = 1 / ratio, 1 / high, 1 / low, self.name
        runs = {id(run): run for _, some in self.measured for run in some}.values()
        values = {
            "verdict": self,
            "ratio": ratio,
            "ends": (low, high),
            "slower": slower,
            "is_same": len({_identity(tried) for tried, _ in self.measured[:2]}) == 1,
            "n_runs": len(runs),
            "n_disturbed": sum(bool(run.disturbed) for run in runs),
        }
        return dict(tell("against", values))


@dataclass(frozen=True, kw_only=True)
class Uncompared(Verdict):
    """No ratio, and why."""

    differing: Sequence[str]
    """What of the job differs, so that samples/s are not of the same work."""
    without: Mapping[str, Story]
    """Those of the two that have no best."""

    @property
    def facts(self) -> dict[str, str]:
        tellings = {name: verdict_of(story) for name, story in self.without.items()}
        return dict(tell("uncompared", {"verdict": self, "tellings": tellings}))


def compare(stories: Mapping[str, Story]) -> StudyComparison:
    """Compare two studies or more, by their names; ratios are over the first one."""
    first, *others = stories
    shared = [row for name in others for row in _shared(first, name, stories)]
    candidates = sorted(shared, key=lambda row: (row["other"], -row["first_samples_per_s"]))
    differences = dict(_differences(stories))
    verdicts = [_verdict(first, name, stories) for name in others]
    n_other = sum(not row["same_config"] for row in candidates)
    other_configs = tell("other_configs", {"n_other": n_other, "n": len(candidates)})
    return StudyComparison(
        stories=stories,
        kinds=_kinds(stories, differences),
        outcomes=_outcomes(stories),
        bests=[_best(name, story) for name, story in stories.items()],
        knobs=_knobs(stories),
        candidates=candidates,
        verdicts=verdicts,
        fastest=_fastest(verdicts, stories),
        warnings=[*differences.values(), *(text for _, text in other_configs)],
    )


def _fastest(verdicts: Sequence[Verdict], stories: Mapping[str, Story]) -> str:
    """The study whose best is proven faster than each other's; empty: there is none."""
    ratios = {one.name: one.ratio for one in verdicts if isinstance(one, Against)}
    leader = max(stories, key=lambda name: ratios.get(name, 1.0))
    pairs = (_verdict(leader, name, stories) for name in stories if name != leader)
    proven = (isinstance(one, Against) and one.decides and one.faster for one in pairs)
    return leader if all(name == leader for name in proven) else ""


def names_of(folders: Sequence[Path]) -> list[str]:
    """What studies are called: a folder's name, with folders above it where two have the same."""
    names = [folder.name for folder in folders]
    for depth in range(2, max(len(folder.parts) for folder in folders) + 1):
        twice = {name for name in names if names.count(name) > 1}
        if not twice:
            break
        names = [
            str(Path(*folder.parts[-depth:])) if name in twice else name
            for name, folder in zip(names, folders, strict=True)
        ]
    return names


def _outcomes(stories: Mapping[str, Story]) -> dict[str, dict[str, int]]:
    counts = {name: story.history.counts for name, story in stories.items()}
    seen = [outcome for outcome in Outcome if any(c.get(outcome) for c in counts.values())]
    return {
        name: {outcome.value: count.get(outcome, 0) for outcome in seen}
        for name, count in counts.items()
    }


def _best(name: str, story: Story) -> dict[str, Any]:
    answer, leading = story.answer, story.leading_row
    best = story.best or (leading and leading.figure)
    speedup = None if story.is_both else answer and answer.speedup  # none over itself
    figures = ("trial", "samples_per_s", "samples_per_s_low", "samples_per_s_high", "n_runs")
    return {
        "run": name,
        "study": story.study,
        "is_final": story.best is not None,
        "is_baseline": story.is_both,
        "proven_gain": answer is not None and answer.has_proven_gain,
        **{figure: getattr(best, figure, None) for figure in (*figures, "peak_memory_bytes")},
        "speedup": speedup and speedup.ratio,
        "speedup_low": speedup and speedup.low,
        "speedup_high": speedup and speedup.high,
        "substitute_baseline": answer is not None and answer.is_substitute,
    }


def _knobs(stories: Mapping[str, Story]) -> dict[str, dict[str, str]]:
    settings = {
        name: row.candidate.values for name, story in stories.items() if (row := story.best_row)
    }
    order = dict.fromkeys(knob for story in stories.values() for knob in story.context.knobs)
    knobs = [
        knob for knob in order if len({format_value(s.get(knob)) for s in settings.values()}) > 1
    ]
    return {
        name: {knob: format_value(s.get(knob)) for knob in knobs} for name, s in settings.items()
    }


def _shared(first: str, other: str, stories: Mapping[str, Story]) -> Iterable[dict[str, Any]]:
    """The candidates that both measured for the same job, one row each."""
    twins = {_identity(tried): tried for tried in stories[other].rows}
    read_files = Study(stories[first].folder.parent, first).read_files
    for tried in stories[first].rows:
        twin = twins.get(_identity(tried))
        if twin is None:
            continue
        runs = telling_runs(tried), telling_runs(twin)
        if not all(runs):
            continue
        ratio = ratio_of(runs[1], runs[0], spreads=(twin.spread, tried.spread))
        cells: dict[str, Any] = {
            "settings": describe_candidate(tried.candidate, stories[first].context),
            "candidate_hash": tried.candidate.hash,
            "ratio": ratio.ratio,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "interval_from": ratio.basis.value,
            "same_config": read_files(tried.trials[0]) == read_files(twin.trials[0]),
        }
        sides = zip(_SIDES, (first, other), (tried, twin), runs, strict=True)
        for side, name, one, results in sides:
            # The runs that the ratio is made of: the two figures give the ratio.
            rate = statistics.geometric_mean(r.samples_per_s or 0.0 for r in results)
            peaks = [r.peak_memory_bytes for r in results if r.peak_memory_bytes is not None]
            cells |= {
                side: name,
                f"{side}_trial": one.trial,
                f"{side}_runs": len(results),
                f"{side}_samples_per_s": rate,
                f"{side}_peak_memory_bytes": max(peaks, default=None),
            }
        yield {name: cells[name] for name in _CANDIDATES}


def _verdict(first: str, other: str, stories: Mapping[str, Story]) -> Verdict:
    """How the best of a study does against the first one's.

    Studies on the same devices ran at different times, and a machine is not always as fast. So
    each best counts beside the baseline of its own study, where both have the same one; where they
    have not, neither is called faster.
    """
    before, after = stories[first], stories[other]
    sides = {first: before, other: after}
    measured = {name: _measured(story.best_row) for name, story in sides.items()}
    bests = [best for best in measured.values() if best is not None]
    differing = [one["title"] for one in _differing(sides) if one["is_of_job"]]
    if len(bests) < 2 or differing:
        without = {name: sides[name] for name, best in measured.items() if best is None}
        return Uncompared(name=other, first=first, differing=differing, without=without)
    ratio: Speedup = _over(bests[1], bests[0])
    drift, is_beside, shares_baseline = None, False, True
    is_one_engine = before.facts.engine == after.facts.engine
    places = [(_seen(story, "device_name"), story.context.world) for story in (before, after)]
    if is_one_engine and places[0] == places[1]:
        first_base, base = (_measured(story.baseline_row) for story in (before, after))
        shares_baseline = is_beside = bool(
            first_base and base and _identity(first_base[0]) == _identity(base[0])
        )
        if first_base and base and shares_baseline:
            ratio = ratio_of_gains(
                _gain(after, bests[1], base), _gain(before, bests[0], first_base)
            )
            bests += [first_base, base]
            between = _over(base, first_base)
            drift = between if between.is_told_apart else None
    return Against(
        **{name: getattr(ratio, name) for name in ("ratio", "low", "high")},
        name=other,
        first=first,
        sides=(before, after),
        measured=bests,
        is_beside_baseline=is_beside,
        drift=drift,
        shares_baseline=shares_baseline,
    )


_Measured = tuple[CandidateTrials, list[TrialResult]]
"""A candidate and the runs behind its figure."""


def _measured(row: CandidateTrials | None) -> _Measured | None:
    """A row's candidate with the runs that its figure rests on; None: there is none."""
    runs = [] if row is None else telling_runs(row)
    return (row, runs) if row and runs else None


def _gain(story: Story, best: _Measured, baseline: _Measured) -> Speedup:
    """The gain of a study's best, no surer than its report has it, nor than its runs differ."""
    by_runs = _over(best, baseline)
    gain = None if story.answer is None or story.is_both else story.answer.speedup
    if gain is None:
        return by_runs
    half_width = max(math.log(one.high / one.ratio) for one in (gain, by_runs))
    return Speedup.around(math.log(gain.ratio), half_width)


def _over(after_best: _Measured, before_best: _Measured) -> Ratio:
    """The speed of one over that of another; exactly 1 for the same candidate of one study."""
    if after_best[0] is before_best[0]:
        n_runs = len(after_best[1])
        return Ratio(ratio=1.0, low=1.0, high=1.0, basis=Basis.RUNS, n_runs=(n_runs, n_runs))
    return ratio_of(
        after_best[1], before_best[1], spreads=(after_best[0].spread, before_best[0].spread)
    )


def _identity(tried: CandidateTrials) -> str:
    """Key that is equal for equal work: the candidate and the job's part of it."""
    spec = tried.trials[0].spec
    work = (spec.workload.model, spec.workload.seq_len, spec.workload.lengths)
    return json.dumps(
        [spec.identity.candidate_hash, *work, spec.workload.precision], sort_keys=True
    )


def _kinds(stories: Mapping[str, Story], differences: Mapping[str, str]) -> list[KindFigures]:
    """The bests by kind and number of accelerators, where only these differ.

    Studies without a best are left out; two at least have one.
    """
    keys = differences.keys()
    if not keys & {"device_name", "world"} or keys & {*_JOB}:
        return []
    rates = ("samples_per_s", "samples_per_s_low", "samples_per_s_high")
    found = [
        KindFigures(
            run=name,
            device_name=environment.device_name,
            world=story.context.world,
            price_per_hour=story.price_per_hour,
            **{rate: getattr(best, rate) for rate in rates},
        )
        for name, story in stories.items()
        if (best := story.best) is not None and (environment := story.facts.environment)
    ]
    return found if len({(kind.device_name, kind.world) for kind in found}) > 1 else []


def _differences(stories: Mapping[str, Story]) -> Iterator[tuple[str, str]]:
    """What differs, by its key, and in words."""
    for name, story in stories.items():
        values = {
            "name": name,
            "origin": _seen(story, "origin") or Origin.MEASURED.value,
            "is_substitute": story.answer is not None and story.answer.is_substitute,
            "reduced": reduced_counts(story.history),
        }
        yield from ((f"{name} {about}", text) for about, text in tell("compared_study", values))
    yield from tell("differences", {"differences": [*_differing(stories)]})


def _differing(stories: Mapping[str, Story]) -> Iterator[dict[str, Any]]:
    """Columns of the table, and keys of the job, that are not alike in all studies."""
    columns = dict.fromkeys(str(c) for story in stories.values() for c in story.frame.columns)
    versions = [column for column in columns if column.startswith("version.")]
    engines = {name: story.facts.engine for name, story in stories.items()}
    if len(set(engines.values())) > 1:
        yield {"key": "engine", "title": "engine", "seen": engines, "is_of_job": False}
        # Each has packages of its own, which the other does without.
        versions = [c for c in versions if all(_seen(story, c) for story in stories.values())]
    listed = set()
    for column in (*_JOB, *_PLACE, *versions):
        seen = {name: _seen(story, column) for name, story in stories.items()}
        if len(set(seen.values())) > 1:
            listed.add(column)
            yield {
                "key": column,
                "title": column.removeprefix("version."),
                "seen": {k: value or _EMPTY.get(column, "unknown") for k, value in seen.items()},
                "is_of_job": column in _JOB,
            }
    known = [story.job for story in stories.values() if story.job is not None]
    for key in (key for key in _BESIDES_THE_TABLE if key not in listed):
        if len({json.dumps(job.get(key), sort_keys=True, default=str) for job in known}) > 1:
            yield {"key": key, "title": key, "seen": {}, "is_of_job": key in _JOB}


def _seen(story: Story, column: str) -> str:
    if column not in story.frame.columns:  # a package of another engine
        return ""
    return "/".join(sorted({str(value) for value in story.frame[column].dropna()}))
