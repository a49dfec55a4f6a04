"""The verdict on a study, told once: every view prints, draws or lists these facts."""

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.clock import date_of
from autotune.base.templates import Fact, tell
from autotune.base.units import format_amount, says_nothing
from autotune.contract import Origin, Outcome, Phase, Role, TrialResult
from autotune.devices.hardware import Environment
from autotune.engines.base import known_releases
from autotune.engines.launches.line import in_short
from autotune.record.bottleneck import bottleneck
from autotune.record.gate import read_gate
from autotune.record.soak import describe_soak, read_soak
from autotune.record.spread import is_figure, outdone
from autotune.record.study import Study, Trial, flags_of, results
from autotune.record.tried import warning
from autotune.report.results.effects import changes_of
from autotune.report.results.ratios import telling_runs
from autotune.report.story import Story, outcome_counts, reduced_counts
from autotune.search.history import CandidateTrials
from autotune.space.candidate import Candidate
from autotune.space.knobs import choices_of, describe_candidate, describe_difference
from autotune.trial.statistics import SHOWN_BEYOND_MEDIAN, share_beyond_median

_PASSED_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Telling:
    """The facts of a study in words."""

    about: Mapping[str, str]
    """`place`, `job`, and where they are known `origin`, `command` and `banner`."""
    headline: str
    words: str
    """The sentence or two under it."""
    tone: str
    """`good` or `bad`; empty: neither."""
    facts: Sequence[Fact]
    """The verdict, fact by fact."""
    notes: Sequence[Fact]
    """How sure it is, what it rests on, and where everything is."""
    doubts: Sequence[Fact]
    """What else to know before it is believed, in a line each."""
    cost: Sequence[Fact]
    """Time and price of the search."""
    next_step: Mapping[str, str]
    """A `command`, and what it is `about`; empty: there is none."""

    @property
    def title(self) -> str:
        """Model, devices and releases, and whether the figures were measured; may be empty."""
        return ": ".join(filter(None, (self.about.get("origin"), self.about.get("place"))))


def verdict_of(story: Story) -> Telling:
    """Tell a story's verdict."""
    values = _values(story)
    head = dict(tell("headline", values))
    if story.facts.origin is Origin.SIMULATED:  # also where the sentence is read alone
        head["headline"] = f"Simulated: {head['headline']}"
    next_step = dict(tell("use", values))
    values |= {
        "headline": head["headline"],
        "words": head["words"],
        "command": next_step.get("command"),
    }
    return Telling(
        about=dict(tell("place", values)),
        headline=head["headline"],
        words=head["words"],
        tone=head.get("tone", ""),
        facts=tell("verdict", values),
        notes=tell("notes", values),
        doubts=tell("doubts", values),
        cost=tell("cost", values),
        next_step=next_step,
    )


def details_of(story: Story, importance: Mapping[str, float] | None) -> list[Fact]:
    """Tell the figures behind the verdict.

    Args:
        story: A study.
        importance: Share by knob; None: too little is known.
    """
    phased = [result for result in results(story.history.trials) if result.phases_s]
    spent_s = {p: sum(result.phases_s.get(p, 0.0) for result in phased) for p in Phase}
    whole_s = sum(spent_s.values()) or 1.0
    is_told = story.answer is not None and bool(story.answer.front)
    front = [] if is_told else story.front
    return tell(
        "details",
        {
            "changes": changes_of(story),
            "front": front,
            "importance": importance,
            "bounds": [*_bounds(story)],
            "phases": {p.value: s / whole_s for p, s in spent_s.items()} if phased else {},
            "n_phased": len(phased),
        },
    )


_OF_STORY = ("answer", "best", "baseline", "best_row", "is_both", "running")


def _values(story: Story) -> dict[str, Any]:
    """What the templates tell of."""
    answer, best, baseline = story.answer, story.best, story.baseline
    gain = None if answer is None else answer.speedup
    specs = [trial.spec for trial in story.history.trials]
    workload = specs[-1].workload if specs else None
    compared = None if story.running is None else story.running.comparison
    spread = story.history.spread
    best_row, baseline_row = story.best_row, story.baseline_row
    best_trial = None if best is None else story.trial(best.trial)
    change = ""
    if best is not None and baseline is not None:
        change = "-"
        if best_row is not None and baseline_row is not None:
            change = describe_difference(best_row.candidate, baseline_row.candidate, story.context)
    page = Study(story.folder.parent, story.folder.name).page_file
    # Samples of a user's own script are counted in tokens or not.
    has_length = any(result.tokens_per_step for result in results(story.history.trials))
    has_length |= bool(specs) and not specs[-1].workload.command
    return {
        "story": story,
        **{name: getattr(story, name) for name in _OF_STORY},
        "final": compared,
        "repeats": best_trial and best_trial.spec.provenance.repeat_of,
        "gain": gain,
        "says_nothing": gain is not None and says_nothing(gain.low, gain.high),
        "wish": story.objective.wish.name,
        "allowed_bytes": story.objective.allowed_bytes,
        "leading": story.leading_row,
        "n_sound": len(story.sound_rows),
        "need": _least_need(story),
        "no_comparison": story.facts.no_comparison,
        "origin": story.facts.origin.value,
        "folder": str(story.folder),
        "flags": flags_of(story.folder),
        **_place(story),
        "seq_len": specs[-1].workload.seq_len if specs and has_length else None,
        "limit_bytes": specs[-1].measure.memory_limit_bytes if specs else None,
        "own_command": in_short(workload.command, Path(workload.folder))
        if workload is not None and workload.command
        else "",
        "change": change,
        "whole": _whole_run(story),
        "soak": _soak(story, best_row),
        "gate": _gate(story),
        "untried": best_row
        and warning(choices_of(best_row.candidate.values, story.context), story.context),
        "n_left_out": len(story.facts.left_out),
        "outcome_counts": outcome_counts(story.history.counts),
        "reduced": reduced_counts(story.history),
        "upgrades": _upgrades(story),
        "passed_over": _passed_over(story),
        "compared": _compared(story),
        "deviation": math.sqrt(spread.variance) if spread.knows_repeats else None,
        "predicted": forecast_errors(story.history.trials),
        "extrapolated": _extrapolated(story),
        **_disturbances(story),
        "witnesses": [
            (run.number, run.own_log.disagreement)
            for run in results(story.history.trials)
            if run.own_log is not None and run.own_log.disagreement
        ],
        "page": str(page) if page.is_file() else "",
        "cost": _cost(story),
    }


def _place(story: Story) -> dict[str, Any]:
    """Model, devices and releases of the runs behind the best: a study outlives upgrades."""
    row = story.best_row or story.leading_row
    trials = () if row is None else row.trials
    confirmed = [t for t in trials if t.role is Role.CONFIRM]
    numbers = [t.number for t in confirmed or trials]
    behind = [*filter(None, (story.facts.environment_at(number) for number in numbers))]
    places = behind or [*filter(None, [story.facts.environment])]
    by_place = [_releases(story, place) for place in places]
    titles = dict.fromkeys(title for releases in by_place for title in releases)
    model = story.facts.model
    return {
        "model": "?" if model is None else model.name,
        "places": places,
        "releases": {
            title: list(dict.fromkeys(releases.get(title, "-") for releases in by_place))
            for title in titles
        },
    }


def _releases(story: Story, environment: Environment) -> dict[str, str]:
    """Title -> release of the engine's packages, whose rules decide, and of torch if it ran."""
    known = dict(known_releases(story.facts.engine, environment))
    is_measured = story.facts.origin is Origin.MEASURED
    return {**known, "torch": environment.torch_version} if is_measured else known


def _upgrades(story: Story) -> list[tuple[int, list[str]]]:
    """The trials from which on releases were others: figures of both stand side by side."""
    found, before = [], None
    for trial in story.history.trials:
        if (place := story.facts.environment_at(trial.number)) is None:
            continue
        now = _releases(story, place)
        if before is not None and now != before:
            changed = [
                f"{title} {release} (before: {before.get(title, '-')})"
                for title, release in now.items()
                if before.get(title) != release
            ]
            found.append((trial.number, changed))
        before = now
    return found


def _least_need(story: Story) -> dict[str, Any] | None:
    """The candidate that needs least, where that is more than is allowed."""
    predicted = {t.candidate_hash: t.spec.provenance.predicted for t in story.history.trials}
    found: list[tuple[float, CandidateTrials]] = []
    for row in story.rows:
        forecast = predicted.get(row.candidate.hash)
        if row.peak_bytes:
            found.append((float(row.peak_bytes), row))
        elif row.outcome is Outcome.OOM and forecast is not None:
            found.append((forecast.peak_memory_bytes, row))
    if not found:
        return None
    size_bytes, row = min(found, key=lambda pair: pair[0])
    if size_bytes <= story.objective.allowed_bytes:
        return None
    settings = describe_candidate(row.candidate, story.context)
    return {"size_bytes": size_bytes, "row": row, "settings": settings}


def _whole_run(story: Story) -> dict[str, float] | None:
    """The gain by the mean step, where some steps of a user's script do more than train.

    Samples/s go by the median step. A script that evaluates in its loop, or waits for data now and
    then, spends more time than that, and no change of the configuration may shorten it.

    Returns:
        None: the median says as much, or no comparison says that there is a gain.
    """
    if story.answer is None or story.answer.speedup is None:
        return None
    best, baseline = (_runs_of_command(row) for row in (story.best_row, story.baseline_row))
    if not best or not baseline:
        return None
    best_share, baseline_share = (
        statistics.fmean(share_beyond_median(run.step_times_s) for run in runs)
        for runs in (best, baseline)
    )
    if max(best_share, baseline_share) < SHOWN_BEYOND_MEDIAN:
        return None
    gain = _mean_step_s(baseline) / _mean_step_s(best)
    return {"gain": gain, "best_share": best_share, "baseline_share": baseline_share}


def _runs_of_command(row: CandidateTrials | None) -> list[TrialResult]:
    """The measured runs of a user's command that a candidate's figure rests on."""
    is_command = row is not None and bool(row.trials[0].spec.workload.command)
    return telling_runs(row) if row is not None and is_command else []


def _mean_step_s(runs: Sequence[TrialResult]) -> float:
    return math.exp(statistics.fmean(math.log(statistics.fmean(run.step_times_s)) for run in runs))


def _soak(story: Story, best: CandidateTrials | None) -> str:
    soak = read_soak(story.folder)
    if soak is None or best is None or soak.candidate_hash != best.candidate.hash:
        return ""
    return describe_soak(soak)


def _gate(story: Story) -> str:
    gate, answer = read_gate(story.folder), story.answer
    handed_out = None if answer is None else answer.handed_out
    if gate is None or gate.reference != handed_out:
        return ""
    return (
        f"{date_of(gate.ended_at_s, '%Y-%m-%d')}: {dict(tell('gate', {'gate': gate}))['verdict']}"
    )


def _passed_over(story: Story) -> dict[str, Any]:
    """Candidates that the baseline was to be and is not: the first, and those to be named."""
    passed = () if story.answer is None else story.answer.passed_over
    # Whatever the platform ended may have been the baseline; the others could not.
    named = [p for i, p in enumerate(passed) if i == 0 or p.by_platform][:_PASSED_SHOWN]
    context = story.context
    rest = [p for p in passed if p not in named]
    n_predicted = sum(p.is_predicted for p in rest)

    def settings(values: Mapping[str, Any]) -> str:
        candidate = Candidate.of(values, world=context.world, global_batch=context.global_batch)
        return describe_candidate(candidate, context)

    return {
        "named": [{"passed": p, "settings": settings(p.candidate)} for p in named],
        "n_predicted": n_predicted,
        "n_tried": len(rest) - n_predicted,
    }


def _compared(story: Story) -> dict[str, list[int]]:
    """Whose figures are of the final comparison, where that is some: `again` ran in turns."""
    compared = {row.trial: row.compared.n_runs for row in story.rows if row.compared}
    again = [trial for trial, n_runs in compared.items() if n_runs > 1]
    if len(compared) == len(story.rows):
        again = []
    return {"again": again, "once": [trial for trial, n_runs in compared.items() if n_runs == 1]}


def _extrapolated(story: Story) -> dict[str, Any] | None:
    """How far forecasts that reduced trials taught were off; None: no candidate ran both ways."""
    if not story.history.reduced.trials:
        return None
    errors = story.frame["extrapolation_error"].dropna()
    if errors.empty:
        return None
    sizes, n_too_long = errors.abs(), int((errors > 0).sum())
    return {"n": len(errors), "error": sizes.median(), "most": sizes.max(), "too_long": n_too_long}


def _disturbances(story: Story) -> dict[str, Any]:
    """Trials that something else disturbed or ended, and how many of those that count."""
    measured = [trial for trial in story.history.trials if trial.measured]
    shown, left_out = {row.trial for row in story.rows}, outdone(measured)
    counted = {t.number: t.spec.provenance.repeat_of for t in measured}
    repeats = {repeat_of: number for number, repeat_of in counted.items()}
    repeats |= {t.spec.provenance.retry_of: t.number for t in story.history.trials}
    disturbed = [
        {
            "trial": t.number,
            "why": why,
            "repeat": (repeat := repeats.get(t.number)),
            "counts": repeat in counted,
            "is_slower": repeat in left_out,
            "is_repeat": t.spec.provenance.repeat_of is not None,
        }
        for t in story.history.trials
        if t.result is not None and (why := t.result.disturbed or _ended_by(t.result, shown))
    ]
    sides = {}
    if story.answer is not None and story.answer.speedup is not None:
        both = (story.answer.best, story.answer.baseline)
        sides = {standing.trial: standing for standing in both if standing is not None}
    return {
        "disturbed": disturbed,
        "n_disturbed": sum(bool(run.disturbed) for run in results(measured)),
        "n_measured": len(measured),
        "runs_disturbed": sum(side.n_disturbed for side in sides.values()),
        "runs_compared": sum(side.n_runs for side in sides.values()),
    }


def _ended_by(result: TrialResult, shown: Container[int]) -> str:
    """Why the platform ended a run whose candidate has a row of another; empty: it did not."""
    is_told = not result.outcome.is_platform_fault or result.number in shown
    return "" if is_told else f"the platform ended it: {result.outcome}: {result.evidence}"


def _cost(story: Story) -> dict[str, Any] | None:
    ended = [trial for trial in story.history.recorded if trial.result is not None]
    if not ended:
        return None
    hours = sum(_wall_s(trial) * trial.spec.layout.world for trial in ended) / 3600
    price = story.price_per_hour
    return {
        "n_trials": len(ended),
        "wall_s": sum(map(_wall_s, ended)),
        "hours": hours,
        "price": None if price is None else format_amount(price * hours),
    }


def _wall_s(trial: Trial) -> float:
    return 0.0 if trial.result is None else trial.result.wall_s


def _bounds(story: Story) -> Iterable[dict[str, Any]]:
    """Bottlenecks of the best and the baseline, where they had a diagnostic pass."""
    for trial in story.history.trials:
        if trial.result is None or trial.number not in (story.best_trial, story.baseline_trial):
            continue
        if found := bottleneck(trial.spec, trial.result.diagnosis):
            share = found.shares[found.bound]
            yield {"trial": trial.number, "bound": found.bound.value, "share": share}


Case = tuple[float, float, float, float]
"""Measured, predicted, and the ends of its 90% interval."""


def forecast_errors(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """How far forecasts were off, for step time and memory.

    Returns:
        `name`, the median `error`, `n` trials, and `n_inside` their predicted interval; empty
        where no trial that measured was predicted.
    """
    by_name = {
        name: [case for trial in trials if (case := _case(trial, figure)) is not None]
        for name, figure in (("step time", "step_time_s"), ("memory", "peak_memory_bytes"))
    }
    found = []
    for name, cases in by_name.items():
        errors = [abs(predicted / measured - 1) for measured, predicted, _, _ in cases]
        n_inside = sum(low <= measured <= high for measured, _, low, high in cases)
        if cases:
            error = statistics.median(errors)
            found.append({"name": name, "error": error, "n": len(cases), "n_inside": n_inside})
    return found


def _case(trial: Trial, figure: str) -> Case | None:
    """A figure of a trial; None where it was not predicted, or the trial did not train.

    One that failed on the way has not reached its peak.
    """
    predicted, result = trial.spec.provenance.predicted, trial.result
    if predicted is None or result is None or not is_figure(result):
        return None
    name, _, unit = figure.rpartition("_")
    measured = getattr(result, figure)
    ends = (getattr(predicted, f"{name}{end}_{unit}") for end in ("", "_low", "_high"))
    return (float(measured), *ends) if measured else None
