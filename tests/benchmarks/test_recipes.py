"""The table of public recipes, and how a recipe is found in the plan of its job."""

import csv

from benchmarks.recipes import RECIPES, compared, in_words, place_of
from tests.cases import data_beside

DATA = data_beside(__file__)

ROW = DATA["ROW"]


def test_every_recipe_has_a_source_and_a_layout() -> None:
    with RECIPES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 30
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(" " in row["source"] for row in rows)
    assert {row["engine"] for row in rows} == {"deepspeed", "megatron"}
    for row in rows:
        assert all("=" in pair for pair in row["recipe"].split()), row["name"]


def test_a_recipe_is_found_and_compared() -> None:
    near = place_of(ROW)
    assert near.published_s == 2.0
    assert near.place is not None
    assert near.behind is not None
    assert f"{near.place} of {near.candidates}" in in_words(near)
    slow = place_of({**ROW, "recipe": "zero.stage=3 micro_batch=1 recompute=full"})
    assert slow.behind is not None
    assert slow.behind > near.behind
    assert slow.step.startswith(("zero.stage 3 -> ", "recompute full -> "))
    assert (slow.verdict, place_of({**ROW, "reason": "x"}).verdict) == ("far", near.verdict)


def test_a_recipe_that_is_no_candidate_is_said() -> None:
    odd = place_of({**ROW, "recipe": "zero.stage=1 micro_batch=1000"})
    assert (odd.place, odd.verdict) == (None, "not in the plan")
    assert place_of({**ROW, "world": "7"}).verdict in ("no plan", "not in the plan")
    assert place_of({**ROW, "reason": "tried", "recipe": "tp=3"}).verdict == "explained"


def test_forecasts_are_compared_with_what_was_published() -> None:
    assert compared([0.9, 1.2]) == (
        "forecast over published: 0.90 to 1.20 in 2 recipes, 1.05 in the median; "
        "15% off in the median"
    )
    assert compared([]) == "no step time is published"
