"""The pages as a browser shows them: drawn, quiet, narrow enough, in both themes."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.app.comparison import compare_studies, write_comparison
from autotune.app.pages import write_page
from tests.report.browser import Browser, browser  # noqa: F401 (a fixture)
from tests.report.wide import wide_study

pytestmark = pytest.mark.browser

CHARTS = {"standings", "history", "memory", "knobs", "importance", "outcomes", "phases"}
DRAWN = """
return Object.fromEntries(Array.from(document.querySelectorAll(".chart")).map((chart) => [
  chart.id.replace("chart-", ""),
  chart.querySelectorAll(".main-svg").length
    && chart.querySelectorAll(".point, .points path, .bars path, .y-axis, canvas").length,
]))
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return write_page(wide_study(folder), folder / "report.html")


def is_dark(colour: str) -> bool:
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3]) < 3 * 128


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(
    browser: Browser,  # noqa: F811
    page: Path,
    width: int,
    theme: str,
) -> None:
    browser.open(page, width=width, theme=theme)
    drawn: Any = browser.run(DRAWN)
    assert set(drawn) == CHARTS
    assert all(drawn.values()), drawn
    assert browser.run("return document.documentElement.scrollWidth") <= width
    colours: Any = browser.run(
        "return [getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.querySelector('#chart-history .xtick text')).fill]"
    )
    assert [is_dark(colour) for colour in colours] == (
        [True, False] if theme == "dark" else [False, True]
    )
    assert browser.problems() == []
    # A frame of plotly's own and the page: nothing but the file itself is asked for.
    assert all('"url":"http' not in request for request in browser.requests())


def test_charts_follow_the_theme(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page, theme="light")
    browser.set_theme("dark")
    browser.wait_for("dark")
    fill: Any = browser.run(
        "return getComputedStyle(document.querySelector('#chart-history .xtick text')).fill"
    )
    assert not is_dark(fill)
    assert browser.problems() == []


def test_names_that_others_chose_do_not_run(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    assert browser.run("return window.evil === undefined")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    text: Any = browser.run("return document.getElementById('evidence').innerText")
    assert "</script><script>" in text


def test_the_filter_shows_what_it_is_asked_for(browser: Browser, page: Path) -> None:  # noqa: F811
    browser.open(page)
    shown = "return Array.from(document.querySelectorAll('#trials tbody tr')).filter(r => r.offsetParent).map(r => r.innerText)"
    everything: Any = browser.run(shown)
    choose = (
        "const [id, value] = arguments; const field = document.getElementById('filter-' + id);"
        "field.value = value; field.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.run(choose, "outcome", "oom")
    ooms: Any = browser.run(shown)
    assert 0 < len(ooms) < len(everything)
    assert all("oom" in row for row in ooms)
    browser.run(choose, "text", "stage=3")
    few: Any = browser.run(shown)
    assert 0 < len(few) < len(ooms)
    assert browser.run("return document.getElementById('filter-shown').innerText") == (
        f"{len(few)} of {len(everything)}"
    )
    # It outlives a page that loads itself again.
    browser.driver.refresh()
    browser.wait_for("light")
    assert browser.run(shown) == few


def test_a_comparison_is_drawn(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    folders = [wide_study(tmp_path / name).folder for name in ("a", "b")]
    comparison = compare_studies([str(folder) for folder in folders], tmp_path)
    browser.open(write_comparison(comparison, tmp_path / "c.html"), width=390)
    drawn: Any = browser.run(DRAWN)
    assert set(drawn) == {"bests", "ratios"}
    assert all(drawn.values()), json.dumps(drawn)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.problems() == []
