"""The report of a study as one HTML file that needs nothing else."""

import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from autotune import __version__
from autotune.base.clock import date_of
from autotune.base.templates import Templates, canonical_json
from autotune.base.units import format_bytes, format_seconds
from autotune.engines.base import find_engine
from autotune.record.worth import read_ladder
from autotune.report.optuna_storage import MIN_CANDIDATES, importance_of
from autotune.report.page import charts
from autotune.report.page import tables as page_tables
from autotune.report.page.charts import Chart, Standings
from autotune.report.page.waterfall import ladder_view
from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import describe_peaks, describe_place, describe_verdict
from autotune.report.words import format_rate
from autotune.search.base import Snapshot, Stage

REFRESH_S = 10
"""How often the page of a running search loads itself again."""


def render_page(
    report: StudyReport,
    frame: pd.DataFrame,
    templates: Templates,
    *,
    snapshot: Snapshot | None = None,
) -> str:
    """The page, of `report/study.html.j2`; a snapshot is what a running search says of itself.

    Raises:
        RenderError: A template of the user's does not render.
    """
    running = None if snapshot is None or snapshot.stage is Stage.DONE else snapshot
    # The best so far, or the answer's.
    shown = running or report.answer
    standings: Standings = {
        "best": shown.best if shown else None,
        "baseline": shown.baseline if shown else None,
    }
    shares = importance_of(report)
    drawn = (
        charts.best_and_baseline(report, standings),
        None if running else charts.losses(report),
        charts.history(report),
        charts.speed_and_memory(report, standings),
        charts.parallel_coordinates(report),
        None if shares is None else charts.importance(shares),
        charts.outcomes(report),
        charts.phases(report),
        charts.steps(report),
    )
    named = {chart.name: chart for chart in drawn if chart is not None}
    best = standings["best"]
    config = None if best is None else page_tables.config_of(report, best.trial)
    ladder = read_ladder(report.folder)
    values = {
        **page_values(list(named.values())),
        "title": report.study,
        "refresh_s": REFRESH_S if running else None,
        "place": describe_place(report),
        "job": _job(report),
        "running": "" if running is None else _running(running),
        "headline": _headline(report),
        "on_cpu": report.context.accelerator == "cpu",
        "verdict": [] if running else describe_verdict(report),
        "named": {name: named.get(name) for name in _CHARTS},
        "change": page_tables.change(report, standings),
        "config": None if config is None else canonical_json(config),
        "config_file": find_engine(report.context.engine).config_file,
        "ladder": None if running or ladder is None else ladder_view(ladder),
        "guarded": [] if running else page_tables.guarded(report),
        "importance_said": _importance_said(report, shares is not None),
        "evidence": page_tables.evidence(report),
        "outcome_names": [outcome.value for outcome in report.counts],
        "trials": page_tables.trials(report, standings),
        "foretold": any(trial.spec.provenance.predicted for trial in report.history.trials),
        "unreadable": page_tables.unreadable(frame),
        "explanations": page_tables.explanations(report, frame),
        "provenance": page_tables.provenance(report, frame),
    }
    return templates.text("report/study.html.j2", values)


_CHARTS = (
    *("standings", "losses", "history", "memory", "knobs", "importance", "outcomes", "phases"),
    "steps",
)


def page_values(drawn: Sequence[Chart]) -> dict[str, Any]:
    """Parts of every page: its charts, plotly itself where there are any, and its author."""
    return {
        "charts": [{"name": chart.name, "figure": chart.figure} for chart in drawn],
        "plotly_js": get_plotlyjs() if drawn else "",
        "version": __version__,
        "written_at": date_of(time.time(), "%Y-%m-%d %H:%M:%S UTC"),
    }


def _running(snapshot: Snapshot) -> str:
    left = snapshot.time_left_s
    return (
        f"running: {snapshot.stage.value}, {snapshot.n_done} of {snapshot.n_budget} trials, "
        f"{format_seconds(snapshot.elapsed_s)}"
        + ("" if left is None else f", about {format_seconds(left)} left")
    )


def _job(report: StudyReport) -> str:
    context = report.context
    specs = [trial.spec for trial in report.history.trials]
    sequence = f"sequence {specs[-1].workload.seq_len}, " if specs else ""
    limit = specs[-1].measure.memory_limit_bytes if specs else None
    return (
        f"{sequence}global batch {context.global_batch}, world {context.world}, "
        f"{context.precision}"
        + (f", at most {format_bytes(limit)} per device" if limit is not None else "")
    )


def _headline(report: StudyReport) -> dict[str, str] | None:
    """Headline of the search, and the facts that it rests on."""
    answer = report.answer
    if answer is None or answer.best is None:
        return None
    best, baseline, speedup = answer.best, answer.baseline, answer.speedup
    rate = f"{format_rate(best.samples_per_s)} samples/s"
    if speedup is None or baseline is None:
        words = "The best was not run again beside a baseline: no gain is claimed."
        return {"figure": rate, "words": words, "tone": ""}
    if best.trial == baseline.trial:
        beaten = "Nothing beat the substitute baseline"
        figure = beaten if answer.is_substitute else "Nothing beat the baseline"
        return {"figure": figure, "words": f"{rate}.", "tone": ""}
    over = "a substitute baseline" if answer.is_substitute else "the baseline"
    gain = f"{speedup.ratio:.2f}x {over}"
    low, high = speedup.low, speedup.high
    interval = f"95% interval {low:.2f} to {high:.2f}"
    words = f"{rate}, {gain}, {interval}"
    if report.objective.wish.name != "samples_per_s":
        said = "faster" if low > 1 else "slower" if high < 1 else "no proven difference"
        peaks = f"Peak {describe_peaks(best, baseline)}"
        return {"figure": peaks, "words": f"{words}: {said}.", "tone": ""}
    # The large print must not claim what the interval does not.
    if low <= 1:
        return {"figure": "No proven gain", "words": f"{words}.", "tone": ""}
    is_drift = answer.guard is not None and answer.guard.is_drift
    drift = " Its losses drift from the baseline's." if is_drift else ""
    tone = "" if answer.is_substitute or is_drift else "good"
    return {"figure": gain, "words": f"{interval}, at {rate}.{drift}", "tone": tone}


def _importance_said(report: StudyReport, is_drawn: bool) -> str:
    if is_drawn:
        return (
            "PED-ANOVA: how much a knob decides whether a candidate is among the best quarter of "
            "those tried. What failed or broke a limit counts as the worst."
        )
    settled = sum(tried.is_settled for tried in report.history.tried)
    if settled < MIN_CANDIDATES:
        return f"It takes {MIN_CANDIDATES} candidates to say; {settled} were tried."
    return "No knob stands out among the candidates that were tried."
