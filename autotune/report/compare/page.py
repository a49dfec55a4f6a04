"""A comparison of studies as one HTML file."""

from autotune.base.telling import tell
from autotune.base.templates import Templates
from autotune.report.compare.comparison import StudyComparison
from autotune.report.page import charts
from autotune.report.page.page import page_values
from autotune.report.parts import tables_in
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
    }
    return templates.text("report/compare.html.j2", values)
