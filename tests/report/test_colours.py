"""The colours of the page's charts are told apart by those who lack a kind of cone."""

import itertools
import re
from pathlib import Path

import pytest

from tests.report.colours import EYES, contrast, difference

STYLE = (Path(__file__).parents[2] / "templates" / "report" / "report.css").read_text("utf-8")
LIGHT, DARK = STYLE.partition("prefers-color-scheme: dark")[::2]
CHARTS = {
    "marks": ("candidate", "baseline", "best", "failed"),
    "parts of a step": tuple(f"part-{i}" for i in range(5)),
}
LEAST_DIFFERENCE = 25.0


def colour_of(name: str, theme: str = "light") -> str:
    """What the style sheet gives a name; the dark theme has some of its own."""
    for part in (DARK, LIGHT) if theme == "dark" else (LIGHT,):
        if found := re.search(rf"--{name}: (#[0-9a-f]{{6}});", part):
            return found[1]
    raise AssertionError(name)


def test_the_measures_are_those_of_their_sources() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert difference("#ffffff", "#000000", "all cones") == pytest.approx(100, abs=0.1)
    # Red and green of one lightness are one colour to a deuteranope, and not to others.
    pair = ("#c04040", "#6f7a28")
    assert difference(*pair, "deuteranopia") < difference(*pair, "all cones") / 2


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("chart", CHARTS)
def test_colours_of_one_chart_differ_for_all_eyes(chart: str, eyes: str) -> None:
    near = {
        (a, b): round(found, 1)
        for a, b in itertools.combinations(CHARTS[chart], 2)
        if (found := difference(colour_of(a), colour_of(b), eyes)) < LEAST_DIFFERENCE
    }
    assert not near


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_stand_out_from_the_ground_and_text_is_read(theme: str) -> None:
    ground = colour_of("ground", theme)
    marks = {name: contrast(colour_of(name), ground) for name in CHARTS["marks"]}
    assert min(marks.values()) >= 2, marks
    words = {
        (name, under): contrast(colour_of(name, theme), colour_of(under, theme))
        for name in ("ink", "soft", "good", "bad", "accent")
        for under in ("ground", "raised")
    }
    assert min(words.values()) >= 4.5, words
    assert contrast(colour_of("banner", theme), colour_of("banner-ink", theme)) >= 7
