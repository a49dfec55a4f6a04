"""The first screen of a study's page: what came out, how sure that is, and how to use it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from autotune.base.units import (
    format_amount,
    format_bytes,
    format_gain_interval,
    format_interval,
    format_rate,
    format_seconds,
    says_nothing,
)
from autotune.contract import Origin, Outcome
from autotune.record.answer import SearchAnswer, Speedup, Standing
from autotune.record.facts import no_comparison_of, origin_of
from autotune.record.study import Trial, flags_of
from autotune.report.page.charts import Standings
from autotune.report.page.words import best_word, capitalized
from autotune.report.results.details import describe_setting, pareto_front
from autotune.report.results.effects import changes_of
from autotune.report.results.rows import Row
from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import describe_peaks, describe_ties
from autotune.report.words import describe_others, describe_race
from autotune.search.base import Snapshot
from autotune.space.knobs import describe_candidate, describe_difference

_MOST_PICKS = 8
_MOST_TIES = 5


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The headline and what stands beside it."""

    figure: str
    """In large print."""
    words: str
    tone: str = ""
    """`good` or `bad`; empty: neither."""
    command: str = ""
    """What uses it; empty: nothing does."""
    about_command: str = ""
    changes: Sequence[tuple[str, str, str]] = ()
    """Knob, the baseline's value, the best's."""
    figures: Sequence[tuple[str, str, str]] = field(default=())
    """Name and unit, the baseline's, the best's."""
    doubts: Sequence[tuple[str, str]] = ()
    """What else to know before it is believed, as (name, text)."""
    advice: Sequence[str] = ()
    """Changes that may help where nothing ran."""


def lead_of(
    report: StudyReport, frame: pd.DataFrame, standings: Standings, running: Snapshot | None
) -> Lead:
    """The first screen."""
    best, baseline = standings["best"], standings["baseline"]
    if best is None:
        return _without_best(report, running)
    figure, words, tone = (
        _so_far(report, standings, running) if running else _headline(report, best, baseline)
    )
    is_baseline = baseline is not None and baseline.trial == best.trial
    changes = [] if baseline is None else changes_of(report, best.trial, baseline.trial)
    command, about = ("", "") if running else _use(report, best)
    return Lead(
        figure=figure,
        words=words,
        tone=tone,
        command=command,
        about_command=about,
        changes=[
            (each.knob, describe_setting(each.before), describe_setting(each.after))
            for each in changes
        ],
        doubts=doubts_of(report),
        figures=_figures(frame, None if is_baseline else baseline, best),
    )


def doubts_of(report: StudyReport) -> list[tuple[str, str]]:
    """Disturbances, ties and the convergence guard in a line each, as (name, text)."""
    found, answer = [], report.answer
    measured = [
        t for t in report.history.trials if t.result is not None and t.result.outcome.is_measured
    ]
    n = sum(bool(t.result and t.result.disturbed) for t in measured)
    if n:
        found.append(("disturbed", f"{n} of {len(measured)} trials{_behind(answer)}"))
    if answer is None or answer.best is None:
        return found
    if answer.ties:
        found.append(("ties", describe_ties(answer.ties, most=_MOST_TIES)))
    is_baseline = answer.baseline is not None and answer.baseline.trial == answer.best.trial
    if answer.guard is not None and not is_baseline:
        # The first clause: the section on the guard has the rest.
        found.append(("guard", re.split(r"[;(]", str(answer.guard))[0].strip()))
    return found


def _behind(answer: SearchAnswer | None) -> str:
    """How many of the compared runs of the best and the baseline were; empty: there are none."""
    if answer is None or answer.speedup is None:
        return ""
    sides = {s.trial: s for s in (answer.best, answer.baseline) if s is not None}.values()
    n, of = sum(s.n_disturbed for s in sides), sum(s.n_runs for s in sides)
    return f", and {n or 'none'} of the {of} runs of the best and the baseline"


def banner_of(report: StudyReport) -> str:
    """What kind of figures these are, where they are none of real training on accelerators."""
    origin = origin_of(report.facts)
    if origin is Origin.SIMULATED:
        return "SIMULATED: the cost model answered, nothing ran. No figure here was measured."
    if origin is Origin.REPLAYED:
        return "REPLAYED: a table of runs elsewhere answered, nothing ran here."
    if report.context.accelerator == "cpu":
        return "CPU RANKS: measured over gloo on processors. It says nothing about GPUs."
    return ""


def picks_of(report: StudyReport, standings: Standings) -> list[dict[str, str]]:
    """The Pareto front as choices by the memory there is; empty for other objectives."""
    if report.objective.wish.name != "pareto":
        return []
    base, best = standings["baseline"], standings["best"]
    baseline = report.row_of(base.trial) if base else None
    front = pareto_front(report.sound_rows)
    every = max(1, -(-len(front) // _MOST_PICKS))
    shown = [
        row for i, row in enumerate(front) if i % every == 0 or (best and row.trial == best.trial)
    ]
    return [
        {
            "memory": format_bytes(row.peak_bytes),
            "trial": str(row.trial),
            "rate": format_rate(row.rate),
            "gain": f"{row.rate / base.samples_per_s:.2f}x" if base else "-",
            "mark": best_word(report) if best and row.trial == best.trial else "",
            "settings": describe_candidate(row.candidate, report.context)
            if baseline is None
            else describe_difference(row.candidate, baseline.candidate, report.context),
        }
        for row in shown
    ]


def cost_of(report: StudyReport, price_per_hour: float | None) -> list[tuple[str, str]]:
    """Time and price of the search, as (name, text)."""
    trials = [trial for trial in report.history.recorded if trial.result is not None]
    if not trials:
        return []
    if origin_of(report.facts) is not Origin.MEASURED:
        return [("cost", f"none: {len(trials)} trials were answered, nothing ran")]
    wall_s = sum(_wall_s(trial) for trial in trials)
    hours = sum(_wall_s(trial) * trial.spec.layout.world for trial in trials) / 3600
    text = f"{format_seconds(wall_s)} of {len(trials)} trials"
    text += f", {format_amount(hours)} accelerator-hours"
    if price_per_hour is not None:
        text += f", {format_amount(price_per_hour * hours)} at the job's price"
    return [("cost", text)]


def _wall_s(trial: Trial) -> float:
    return 0.0 if trial.result is None else trial.result.wall_s


def _headline(
    report: StudyReport, best: Standing, baseline: Standing | None
) -> tuple[str, str, str]:
    """Large print, the sentence under it, and its tone: no more than the interval claims."""
    answer = report.answer
    speedup = None if answer is None else answer.speedup
    rate = f"{format_rate(best.samples_per_s)} samples/s"
    if answer is not None and baseline is not None and best.trial == baseline.trial:
        if report.is_baseline_alone:
            return (
                "Only the baseline ran within the limits",
                f"Trial {best.trial}: {rate}. {_ended(report)}",
                "",
            )
        beaten = "Nothing beat the " + ("substitute " if answer.is_substitute else "") + "baseline"
        missed = _uncompared(report) if speedup is None else _missed(speedup)
        both = [f"Trial {best.trial} is both, at {rate}.", missed, _drifted(answer)]
        return beaten, " ".join(filter(None, both)), ""
    if answer is None or speedup is None or baseline is None:
        told = f"{best_word(report)}: trial {best.trial}. It was not run again beside a baseline"
        return rate, f"{capitalized(told)}: no gain is claimed. {_ended(report)}", ""
    over = "a substitute baseline" if answer.is_substitute else "the baseline"
    interval = format_gain_interval(speedup.low, speedup.high, before="95% interval ")
    gain = f"{speedup.ratio:.2f}x {over}"
    said = "no proven difference"
    if speedup.is_told_apart:
        said = "faster" if speedup.low > 1 else "slower"
    wish = report.objective.wish.name
    if wish == "pareto":
        words = f"The knee of the front: {rate} is {gain} ({interval}): {said}."
        return f"Knee: {rate} in {format_bytes(best.peak_memory_bytes)}", words, ""
    if wish == "peak_memory":
        peaks = describe_peaks(best, baseline)
        return f"Peak {peaks}", f"{rate} is {gain} ({interval}): {said}.", ""
    # The large print must not claim what the interval does not.
    others = _drifted(answer)
    if speedup.low <= 1:
        words = f"Trial {best.trial}: {gain}, {interval}. {others}"
        return "No proven gain", words.rstrip(), ""
    is_drift = answer.guard is not None and answer.guard.is_drift
    drift = "Its losses drift from the baseline's." if is_drift else others
    tone = "" if answer.is_substitute or is_drift else "good"
    return gain, f"{capitalized(interval)}. {drift}".rstrip(), tone


def _ended(report: StudyReport) -> str:
    """Why there was no final comparison, or why the search ended."""
    answer = report.answer
    if answer is None:
        return ""
    if answer.interrupted:
        return "The search was interrupted; the same command again resumes it."
    if no_comparison_of(report.facts):
        return _uncompared(report)
    return f"The search ended: {answer.stop_reason}."


def _uncompared(report: StudyReport) -> str:
    why = no_comparison_of(report.facts)
    return "There was no final comparison" + (f": {why}." if why else ".")


_WIDE = 1.1
"""A missed gain that is worth a sentence."""


def _missed(speedup: Speedup) -> str:
    """What the runs of a baseline that stays the best could not have shown."""
    if speedup.high < _WIDE:
        return ""
    if says_nothing(speedup.low, speedup.high):
        return "Runs differed so much that no gain would show."
    return f"Runs differed so much that a gain of less than {speedup.high:.2f}x would not show."


def _drifted(answer: SearchAnswer) -> str:
    """A faster one that is not handed out."""
    if answer.drifted is None or answer.baseline is None:
        return ""
    one = answer.drifted.standing
    return (
        f"Trial {one.trial} was {one.samples_per_s / answer.baseline.samples_per_s:.2f}x, but its "
        "losses leave the baseline's: it is not handed out."
    )


def _so_far(report: StudyReport, standings: Standings, running: Snapshot) -> tuple[str, str, str]:
    best, baseline = standings["best"], standings["baseline"]
    assert best is not None
    figure = f"{format_rate(best.samples_per_s)} samples/s so far"
    if (race := running.race) is not None:
        others = f" Others: {said}." if (said := describe_others(race)) else ""
        words = f"Final comparison: {describe_race(race)}.{others} A gain is claimed at its end."
        return figure, words, ""
    words = f"The best so far is trial {best.trial}, one run"
    interval = format_interval(best.samples_per_s_low, best.samples_per_s_high)
    words += f" ({interval}). No gain is claimed before the final comparison."
    if baseline is not None and baseline.trial == best.trial:
        words = "The baseline, so far: nothing has beaten it yet."
    trial = report.trial(best.trial)
    again = None if trial is None else trial.spec.provenance.repeat_of
    if again is not None:
        words += f" It repeats trial {again}, which was disturbed, and counts instead."
    return figure, words, ""


def _without_best(report: StudyReport, running: Snapshot | None) -> Lead:
    """The first screen where nothing has a figure within the limits."""
    answer = report.answer
    if running is not None:
        return Lead(figure="No figure yet", words="No trial has ended within the limits so far.")
    if answer is None:
        return _unfinished(report)
    problem = answer.problem
    advice = [] if problem is None else _advice(problem.fix)
    needed, allowed = _least_need(report), report.objective.allowed_bytes
    if needed is not None and needed[0] > allowed:
        need, row = needed
        needs, how = "needs", "has"
        if not row.peak_bytes:
            needs = how = "is predicted to need"
        sizes = f"{format_bytes(need)} of {format_bytes(allowed)}"
        return Lead(
            figure=f"Nothing fits: the smallest candidate {needs} {sizes}",
            words=f"Trial {row.trial} {how} the least memory of {len(report.rows)} candidates: "
            f"{describe_candidate(row.candidate, report.context)}.",
            tone="bad",
            advice=advice,
        )
    words = answer.stop_reason if problem is None else problem.message
    return Lead(figure="Nothing ran", words=words, tone="bad", advice=advice)


def _least_need(report: StudyReport) -> tuple[float, Row] | None:
    """The candidate that needs least, in bytes by its meter or else as predicted."""
    predicted = {
        trial.spec.identity.candidate_hash: trial.spec.provenance.predicted
        for trial in report.history.trials
    }
    found = []
    for row in report.rows:
        forecast = predicted.get(row.candidate.hash)
        if row.peak_bytes:
            found.append((float(row.peak_bytes), row))
        elif row.outcome is Outcome.OOM and forecast is not None:
            found.append((forecast.peak_memory_bytes, row))
    return min(found, key=lambda pair: pair[0], default=None)


def _unfinished(report: StudyReport) -> Lead:
    """A search that was killed, or that another process runs: what it had found."""
    sound, fastest = report.sound_rows, report.leading_row
    state, how = "Unfinished", "The search was cut short before its end"
    again = "The same command again resumes it."
    if report.is_running:
        state, how, again = "Running", "The search runs", ""
    if fastest is None:
        words = "No trial has a figure so far."
        if not report.is_running:
            words = f"The search was cut short before a trial had a figure. {again}"
        return Lead(figure=state, words=words)
    tried = f"is the fastest of {len(sound)} candidates so far"
    if len(sound) < len(report.rows):
        tried = f"is the fastest of those whose losses do not drift, {len(sound)} so far"
    elif len(sound) == 1:
        tried = "ran the only candidate so far"
    words = f"Trial {fastest.trial} {tried}. {how}: no gain is claimed. {again}".rstrip()
    return Lead(figure=f"{state}: {format_rate(fastest.rate)} samples/s so far", words=words)


def _advice(fix: str) -> list[str]:
    """The nearest changes, one by one."""
    return [each.strip() for each in fix.removeprefix("nearest changes:").split(";")]


def _use(report: StudyReport, best: Standing) -> tuple[str, str]:
    """The command that hands the best out, and what it does."""
    if origin_of(report.facts) is not Origin.MEASURED:
        job = shlex.quote(str(report.folder / "job.yaml"))
        study = shlex.quote(f"{report.study}-measured")
        command = f"python -m autotune search --job {job} --study {study}"
        return command, "To measure it on your own devices:"
    command = f"python -m autotune export {flags_of(report.folder)}"
    answer = report.answer
    if answer is not None and answer.handed_out not in (None, answer.best):
        about = "To write the files of the baseline, since no gain is proven"
        return f"{command} --out tuned", f"{about} (--trial {best.trial}: those of the best):"
    return f"{command} --out tuned", f"To write the files of trial {best.trial}:"


_FIGURES = (
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("tflops_per_device", "TFLOP/s per accelerator", "{:,.3g}"),
    ("mfu", "MFU", "{:.1%}"),
)
"""Columns of the table that grow with the speed, and how the page calls and spells them."""


def _figures(
    frame: pd.DataFrame, baseline: Standing | None, best: Standing
) -> list[tuple[str, str, str]]:
    """What the baseline and the best reach, each figure in one row."""
    rows = {int(row["trial"]): row for row in frame.to_dict("records")}
    sides = [baseline, best]
    rates = [format_rate(each.samples_per_s) if each else "" for each in sides]
    peaks = [format_bytes(each.peak_memory_bytes) if each else "" for each in sides]
    found = [("samples/s", *rates), ("peak memory", *peaks)]
    for column, name, spelled in _FIGURES:
        values = [_scaled(rows, each, column) if each else None for each in sides]
        if values[1] is None:
            continue
        told = [spelled.format(value) if value is not None else "" for value in values]
        found.append((name, *told))
    return [(name, before, after) for name, before, after in found]


def _scaled(
    rows: Mapping[int, Mapping[Any, Any]], standing: Standing, column: str
) -> float | None:
    """A figure of a trial's row, at the speed of its standing: that may rest on more runs."""
    row = rows.get(standing.trial, {})
    value, rate = row.get(column), row.get("samples_per_s")
    if value is None or rate is None or pd.isna(value) or pd.isna(rate) or not rate:
        return None
    return float(value) * standing.samples_per_s / float(rate)


DOCS = (
    ("search.md", "How a search decides"),
    ("report.md", "What the page shows"),
    ("explain.md", "Where the time of a step goes"),
    ("guard.md", "The convergence guard"),
    ("knobs.md", "The knobs"),
    ("table.md", "The columns of the table"),
    ("export.md", "How to use the result"),
)
"""Pages of the documentation that a reader of the page may want."""


def docs_links(urls: Sequence[str]) -> list[tuple[str, str, str]]:
    """Address, file and title of each page; the address is empty where the package names none.

    Args:
        urls: `Project-URL` of the package's metadata: `Documentation, https://...`.
    """
    found = [re.fullmatch(r"Documentation, (https://\S+)", url) for url in urls]
    root = next((each[1].rstrip("/") for each in found if each), "")
    return [(f"{root}/{page}" if root else "", f"docs/{page}", title) for page, title in DOCS]
