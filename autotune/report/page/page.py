"""The report of a study as one HTML file that needs nothing else."""

import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import pandas as pd

from autotune import __version__
from autotune.base.clock import date_of
from autotune.base.secrecy import scrubbed_text
from autotune.base.templates import Templates, canonical_json
from autotune.base.units import format_bytes, format_seconds
from autotune.engines.base import find_engine
from autotune.job.command import as_typed
from autotune.record.worth import read_ladder
from autotune.report.optuna_storage import importance_of
from autotune.report.page import charts
from autotune.report.page import tables as page_tables
from autotune.report.page.charts import Standings
from autotune.report.page.lead import banner_of, cost_of, docs_links, lead_of, picks_of
from autotune.report.page.trials import details, trials
from autotune.report.page.words import best_word
from autotune.report.results.details import describe_details
from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import describe_place, describe_verdict
from autotune.report.results.worth import ladder_facts, ladder_tables
from autotune.search.base import Snapshot, Stage

REFRESH_S = 10
"""How often the page of a running search loads itself again."""


def render_page(
    report: StudyReport,
    frame: pd.DataFrame,
    templates: Templates,
    *,
    snapshot: Snapshot | None = None,
    price_per_hour: float | None = None,
) -> str:
    """The page, of `report/study.html.j2`; a snapshot is what a running search says of itself.

    Raises:
        RenderError: A template of the user's does not render.
    """
    running = None if snapshot is None or snapshot.stage is Stage.DONE else snapshot
    standings = _standings(report, running)
    has_figures = any(row.figure for row in report.rows)
    best = standings["best"]
    words = {"best": best_word(report), "baseline": "baseline"}
    drawn = {
        "comparison": charts.comparison(
            [(f"{words[name]}, trial {s.trial}", name, s) for name, s in standings.items() if s]
        ),
        "losses": None if running else charts.losses(report),
        "history": charts.history(report) if has_figures else None,
        "memory": charts.speed_and_memory(report, standings),
        "steps": charts.steps(report),
    }
    config = None if best is None else page_tables.config_of(report, best.trial)
    rows = trials(report, standings)
    ladder = read_ladder(report.folder)
    values = {
        **page_values(),
        "title": report.study,
        "refresh_s": REFRESH_S if running else None,
        "banner": banner_of(report),
        "place": _place(report),
        "job": _job(report),
        "command": _command(report),
        "running": None if running is None else _running(running),
        "lead": lead_of(report, frame, standings, running),
        "best_word": best_word(report),
        "picks": picks_of(report, standings),
        "verdict": _findings(report) if rows and not running else [],
        "cost": cost_of(report, price_per_hour),
        "charts": drawn,
        "change": page_tables.change(report, standings),
        "config": None if config is None else canonical_json(config),
        "config_file": find_engine(report.context.engine).config_file,
        "ladder": None if running or ladder is None else ladder,
        "ladder_tables": [] if ladder is None else ladder_tables(ladder),
        "ladder_facts": [] if ladder is None else ladder_facts(ladder),
        "guarded": [] if running else page_tables.guarded(report),
        "evidence": page_tables.evidence(report),
        "outcome_names": [outcome.value for outcome in report.counts],
        "trials": rows,
        "has_figures": has_figures,
        "has_compared": any(row["is_compared"] for row in rows),
        "has_repeats": any(row["is_again"] for row in rows),
        "details": details(report, frame, rows),
        "foretold": any(trial.spec.provenance.predicted for trial in report.history.trials),
        "is_difference": standings["baseline"] is not None,
        "unreadable": page_tables.unreadable(frame),
        "provenance": page_tables.provenance(report, frame),
    }
    return templates.text("report/study.html.j2", values)


def page_values() -> dict[str, Any]:
    """Parts of every page: its author, and where the documentation is."""
    try:
        urls: Sequence[str] = metadata("autotune").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    return {
        "version": __version__,
        "written_at": date_of(time.time(), "%Y-%m-%d %H:%M:%S UTC"),
        "docs": docs_links(urls),
    }


def _standings(report: StudyReport, running: Snapshot | None) -> Standings:
    """Those of the answer; of a running search those of its comparison, or the best so far."""
    shown = running or report.answer
    best, baseline = (shown.best, shown.baseline) if shown else (None, None)
    if running is not None and (race := running.race) is not None:
        best, baseline = race.leader or best, race.baseline or baseline
    return {"best": best, "baseline": baseline}


def _running(snapshot: Snapshot) -> dict[str, Any]:
    left = snapshot.time_left_s
    done = snapshot.n_done / snapshot.n_budget if snapshot.n_budget else 0.0
    return {
        "words": f"running: {snapshot.stage.value}, {snapshot.n_done} of {snapshot.n_budget} "
        f"trials, {format_seconds(snapshot.elapsed_s)}"
        + ("" if left is None else f", about {format_seconds(left)} left"),
        "share": round(100 * min(1.0, done)),
    }


def _place(report: StudyReport) -> str:
    """Model and devices; whether they are real stands in the banner."""
    return describe_place(report).split(", not measured here: ")[-1]


def _job(report: StudyReport) -> str:
    context = report.context
    specs = [trial.spec for trial in report.history.trials]
    results = [trial.result for trial in report.history.trials if trial.result is not None]
    # In a user's own script tokens are counted, and its samples may have none.
    has_tokens = any(result.tokens_per_step for result in results)
    has_length = bool(specs) and (has_tokens or not specs[-1].workload.command)
    sequence = f"sequence {specs[-1].workload.seq_len}, " if has_length else ""
    limit = specs[-1].measure.memory_limit_bytes if specs else None
    return (
        f"{sequence}global batch {context.global_batch}, world {context.world}, "
        f"{context.precision}"
        + (f", at most {format_bytes(limit)} per device" if limit is not None else "")
    )


def _command(report: StudyReport) -> str:
    """The user's own command that was tuned, without secrets; empty: there is none."""
    specs = [trial.spec for trial in report.history.trials]
    return scrubbed_text(as_typed(specs[-1].workload.command)) if specs else ""


def _findings(report: StudyReport) -> list[tuple[str, str]]:
    """What the terminal tells: the verdict and the figures behind it."""
    return [*describe_verdict(report), *describe_details(report, importance_of(report))]
