"""The pages as a browser shows them: drawn, quiet, narrow enough, in both themes."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.app.pages import compare_studies, write_comparison, write_page
from autotune.record.study import Study
from tests.report import samples
from tests.report.browser import Browser
from tests.report.wide import wide_study

pytestmark = pytest.mark.browser

CHARTS = {
    *("standings", "losses", "history", "memory", "knobs", "importance", "outcomes", "phases"),
    "steps",
}
DRAWN = """
return Object.fromEntries(Array.from(document.querySelectorAll(".chart")).map((chart) => [
  chart.id.replace("chart-", ""),
  chart.querySelectorAll(".main-svg").length
    && chart.querySelectorAll(
      ".point, .points path, .bars path, .js-line, .y-axis, canvas"
    ).length,
]))
"""


@pytest.fixture(scope="module")
def page(wide: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(wide, tmp_path_factory.mktemp("page") / "report.html")


def is_dark(colour: str) -> bool:
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3]) < 3 * 128


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(
    browser: Browser,
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
    assert browser.run("return document.querySelectorAll('.no-webgl').length") == 0
    requests = browser.requests()
    assert any(page.name in request for request in requests)
    assert not [request for request in requests if '"url":"http' in request]


def test_charts_follow_the_theme(browser: Browser, page: Path) -> None:
    browser.open(page, theme="light")
    browser.set_theme("dark")
    browser.wait_for("dark")
    fill: Any = browser.run(
        "return getComputedStyle(document.querySelector('#chart-history .xtick text')).fill"
    )
    assert not is_dark(fill)
    assert browser.problems() == []


def test_names_that_others_chose_do_not_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("return window.evil === undefined")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    text: Any = browser.run("return document.getElementById('evidence').innerText")
    assert "</script><script>" in text


def test_the_filter_shows_what_it_is_asked_for(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = (
        "return Array.from(document.querySelectorAll('#trials tbody tr'))"
        ".filter(row => row.offsetParent).map(row => row.innerText)"
    )
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


def test_the_page_of_a_running_search_shows_what_is_new(
    browser: Browser, wide: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.report.page.page.REFRESH_S", 2)
    out = write_page(wide, tmp_path / "report.html", snapshot=samples.snapshot())
    browser.open(out)
    assert browser.run("return document.querySelector('.running').innerText.slice(0, 7)") == (
        "running"
    )
    browser.run("window.scrollTo(0, 700)")
    write_page(wide, out)
    browser.wait_until("document.querySelector('.running') === null")
    browser.wait_for("light")
    # A reader stays where they read, give or take what has come in above it.
    browser.wait_until("window.scrollY >= 600")
    assert browser.problems() == []


def test_on_a_phone_a_trial_is_a_card_with_all_of_its_cells_on_the_screen(
    browser: Browser, page: Path
) -> None:
    browser.open(page, width=390)
    outside: Any = browser.run(
        "return Array.from(document.querySelectorAll('.cards td'))"
        ".filter(cell => cell.getBoundingClientRect().right > 390).map(cell => cell.innerText)"
    )
    assert outside == []


def test_a_comparison_is_drawn(browser: Browser, tmp_path: Path) -> None:
    folders = [wide_study(tmp_path / name).folder for name in ("a", "b")]
    comparison = compare_studies([str(folder) for folder in folders], tmp_path)
    browser.open(write_comparison(comparison, tmp_path / "c.html"), width=390)
    drawn: Any = browser.run(DRAWN)
    assert set(drawn) == {"bests", "ratios"}
    assert all(drawn.values()), json.dumps(drawn)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.problems() == []
