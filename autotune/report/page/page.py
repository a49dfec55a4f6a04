"""The report of a study, or several compared, as one HTML file that needs nothing else."""

import time
from typing import Any

from autotune import __version__
from autotune.base.clock import date_of, unix_now_s
from autotune.base.templates import Templates, canonical_json, tell
from autotune.engines.base import find_engine
from autotune.record.worth import read_ladder
from autotune.report.compare.comparison import StudyComparison
from autotune.report.page import charts, tables
from autotune.report.page.tables import details, trials
from autotune.report.parts import facts_in, tables_in, tell_parts
from autotune.report.results.effects import changes_of
from autotune.report.story import Story
from autotune.report.verdict import details_of, verdict_of
from autotune.search.base import Snapshot
from autotune.space.knob import Context
from autotune.space.knobs import describe_candidate

NOW, END_OF_NOW = "<!-- now -->", "<!-- end of now -->"
"""Around what is written anew each time a trial starts."""
REFRESH_S = 10
"""How often the page of a running search loads itself again."""


def render_page(story: Story, templates: Templates) -> str:
    """The page, of `report/study.html.j2`.

    Raises:
        RenderError: A template of the user's does not render.
    """
    running = story.running
    has_figures = any(row.figure for row in story.rows)
    verdict = verdict_of(story)
    problem = None if story.answer is None or running else story.answer.problem
    config = None if story.best is None else tables.config_of(story, story.best.trial)
    rows = trials(story)
    ladder = None if running else read_ladder(story.folder)
    climbed = tell_parts("ladder", {"ladder": ladder}) if ladder else []
    values = {
        **page_values(),
        "title": story.study,
        "refresh_s": REFRESH_S if running else None,
        "running": running and render_running(running, story.context, templates),
        "verdict": verdict,
        "problem": problem,
        "figures": tables.figures(story),
        "best_word": story.best_word,
        "picks": tables.picks(story),
        "findings": []
        if running or not rows
        else [*verdict.facts, *verdict.notes, *details_of(story)],
        "charts": {
            "comparison": charts.comparison(charts.sides_of(story)),
            "losses": None if running else charts.losses(story),
            "history": charts.history(story) if has_figures else None,
            "memory": charts.speed_and_memory(story),
            "steps": charts.steps(story),
        },
        "changes": changes_of(story),
        "config_keys": tables.config_keys(story),
        "config": None if config is None else canonical_json(config),
        "config_file": find_engine(story.context.engine).config_file,
        "ladder": ladder,
        "ladder_tables": tables_in(climbed),
        "ladder_facts": facts_in(climbed),
        "guarded": {} if running else story.guarded,
        "evidence": tables.evidence(story),
        "outcome_names": [outcome.value for outcome in story.history.counts],
        "trials": rows,
        "n_trials": len(story.history.trials),
        "has_figures": has_figures,
        "has_compared": any(row["row"].compared for row in rows),
        "has_repeats": any(row["is_again"] for row in rows),
        "details": details(story, rows),
        "foretold": any(trial.spec.provenance.predicted for trial in story.history.trials),
        "is_difference": story.baseline is not None,
        "unreadable": tables.unreadable(story),
        "provenance": tables.provenance(story),
    }
    return templates.text("report/study.html.j2", values)


def render_comparison(comparison: StudyComparison, templates: Templates) -> str:
    """The page.

    Raises:
        RenderError: The template does not render.
    """
    stories = comparison.stories
    first, *others = stories
    banners = dict.fromkeys(verdict_of(story).about.get("banner") for story in stories.values())
    values = {
        **page_values(),
        **comparison.values,
        "title": f"{first} against {', '.join(others)}",
        "refresh_s": None,
        "banners": [banner for banner in banners if banner],
        "chart_of_bests": charts.comparison(
            [(name, "candidate", story.best) for name, story in stories.items() if story.best]
        ),
        "tables": tables_in(comparison.parts()),
        "kinds": tell("kinds", comparison.values),
        "about_ratios": tell("ratios", comparison.values)[0][1],
        "fastest": tell("fastest", comparison.values),
    }
    return templates.text("report/compare.html.j2", values)


def page_values() -> dict[str, Any]:
    """What every page says of its author."""
    return {
        "version": __version__,
        "written_at": date_of(time.time(), "%Y-%m-%d %H:%M:%S UTC"),
    }


def render_running(snapshot: Snapshot, context: Context, templates: Templates) -> str:
    """What runs now, of `report/running.html.j2`: it stands between `NOW` and `END_OF_NOW`."""
    now_s, left_s = unix_now_s(), snapshot.time_left_s
    values = {
        "search": snapshot,
        "ends_at": None if left_s is None else date_of(now_s + left_s, "%H:%M UTC"),
        "trials": [
            (one, round(now_s - one.elapsed_s, 1), describe_candidate(one.candidate, context))
            for one in snapshot.running
        ],
    }
    return templates.text("report/running.html.j2", values)
