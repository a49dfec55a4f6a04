"""A comparison of studies as one HTML file."""

from autotune.base.telling import tell
from autotune.base.templates import Templates
from autotune.report.compare import tables
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.page import charts
from autotune.report.page.page import page_values
from autotune.report.verdict import verdict_of


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
        "title": f"{first} against {', '.join(others)}",
        "refresh_s": None,
        "banners": [banner for banner in banners if banner],
        "folders": [(name, str(story.folder)) for name, story in stories.items()],
        "warnings": list(comparison.warnings),
        "verdicts": comparison.verdicts,
        "chart_of_bests": charts.comparison(
            [(name, "candidate", story.best) for name, story in stories.items() if story.best]
        ),
        "outcomes": tables.outcomes(comparison),
        "bests": tables.bests(comparison),
        "kinds": describe_kinds(comparison.kinds),
        "knobs": tables.knobs(comparison),
        "own_knobs": comparison.own_knobs,
        "candidates": tables.candidates(comparison),
        "about_ratios": tell("ratios", {"first": first})[0][1],
    }
    return templates.text("report/compare.html.j2", values)
