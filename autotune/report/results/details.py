"""The figures behind the verdict, in words: under the page's charts, and in the terminal.

A share of importance or time is rounded to a whole per cent; what would round to nothing is named
without one.
"""

from collections.abc import Mapping, Sequence

from autotune.base.units import format_bytes, format_count
from autotune.contract import KnobValue, Phase, TrialResult
from autotune.record.bottleneck import bottleneck
from autotune.report.results.effects import Change, Pair, changes_of
from autotune.report.results.ratios import describe_ratio
from autotune.report.results.rows import Row
from autotune.report.results.study import StudyReport
from autotune.search.front import front_of
from autotune.space.candidate import format_value

LEAST_SHARE = 0.005
"""Share of the importance from which it is shown with a figure."""
_NOT_ALONE = "not measured alone"


def describe_details(
    report: StudyReport, shares: Mapping[str, float] | None
) -> list[tuple[str, str]]:
    """Facts that the page shows and the verdict does not, as (name, text).

    `shares` is the importance by knob; None: too little is known.
    """
    best, baseline = report.best_trial, report.baseline_trial
    changes = [] if best is None or baseline is None else changes_of(report, best, baseline)
    facts = [("by knob", _change(change)) for change in changes]
    if not (report.answer and report.answer.front) and (front := pareto_front(report.sound_rows)):
        facts.append(("front", describe_front(front)))
    if shares is not None:
        facts.append(("importance", describe_importance(shares)))
    facts += [("bound", text) for text in describe_bounds(report)]
    if ended := with_phases(report):
        facts.append(("time", describe_phases(ended)))
    return facts


def describe_gain(pairs: Sequence[Pair]) -> str:
    """Effect of one change alone on samples/s."""
    if not pairs:
        return _NOT_ALONE
    first = pairs[0]
    text = f"{describe_ratio(first.ratio)}: trial {first.after} against {first.before}"
    if not first.ratio.is_told_apart:
        text += "; no proven effect"
    if len(pairs) > 1:
        ratios = [pair.ratio.ratio for pair in pairs]
        text += f". {len(pairs)} such pairs: {min(ratios):.2f}x to {max(ratios):.2f}x"
    return text


def describe_cost(pairs: Sequence[Pair]) -> str:
    """Effect of one change alone on the peak memory."""
    memory_bytes = pairs[0].memory_bytes if pairs else None
    if memory_bytes is None:
        return "-"
    return f"{'-' if memory_bytes < 0 else '+'}{format_bytes(abs(memory_bytes))}"


def describe_setting(value: KnobValue | None) -> str:
    """A knob's value, or that it does not act."""
    return "does not act" if value is None else format_value(value)


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Trials within the limit that no other matches in memory and beats in speed; least first."""
    known = {str(row.trial): row for row in rows if row.fits and row.figure}
    figures = {name: row.figure for name, row in known.items() if row.figure}
    front = front_of({name: f for name, f in figures.items() if f.peak_memory_bytes})
    return [known[name] for name in reversed(front)]


def describe_front(front: Sequence[Row]) -> str:
    """The trials of the front, those with the least memory first."""
    if len(front) == 1:
        return f"nothing is faster or smaller than trial {front[0].trial}"
    names = ", ".join(str(row.trial) for row in front)
    return f"nothing is both faster and smaller than one of the trials {names}"


def describe_importance(shares: Mapping[str, float]) -> str:
    """`zero.stage 71%, micro_batch 29%; below 0.5%: tp`."""
    text = ", ".join(f"{name} {s:.0%}" for name, s in shares.items() if s >= LEAST_SHARE)
    rest = [name for name, share in shares.items() if share < LEAST_SHARE]
    return f"{text}; below {LEAST_SHARE:.1%}: {', '.join(rest)}" if rest else text


def describe_bounds(report: StudyReport) -> list[str]:
    """Bottlenecks of the best and the baseline, where they had a diagnostic pass."""
    said = []
    for trial in report.history.trials:
        number, result = trial.spec.identity.number, trial.result
        if result is None or number not in (report.best_trial, report.baseline_trial):
            continue
        if found := bottleneck(trial.spec, result.diagnosis):
            share = f"{found.shares[found.bound]:.0%} of a step"
            how = f"`report --trial {number}` explains it"
            said.append(f"trial {number}: {found.bound.value}, {share}; {how}")
    return said


def with_phases(report: StudyReport) -> list[TrialResult]:
    """The results that say where their time went, by trial."""
    ended = [trial.result for trial in report.history.trials if trial.result is not None]
    return [result for result in ended if result.phases_s]


def describe_phases(ended: Sequence[TrialResult]) -> str:
    """The share of each phase in the time of all trials."""
    totals = {p: sum(result.phases_s.get(p.value, 0.0) for result in ended) for p in Phase}
    whole_s = sum(totals.values()) or 1.0
    shares = ", ".join(f"{phase.value} {s / whole_s:.0%}" for phase, s in totals.items())
    return f"{shares} of the time of {format_count(len(ended), 'trial')}"


def _change(change: Change) -> str:
    text = f"{change.knob} {describe_setting(change.before)} -> {describe_setting(change.after)}: "
    if not change.pairs:
        return text + _NOT_ALONE
    return f"{text}{describe_gain(change.pairs)}; memory {describe_cost(change.pairs)}"
