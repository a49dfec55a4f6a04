"""The page of a plan: what it says, and that nothing of it is taken for measured."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

import autotune
from tests import snapshots

JOB: dict[str, Any] = {
    **{"model": "llama-3-8b", "seq_len": 4096, "global_batch": 256, "world": 64, "gpu": "H100"},
    **{"no_knowledge": True, "top": 5, "price": 2.5},
}


@pytest.fixture(scope="module")
def planned() -> Any:
    return autotune.plan(**JOB, what_if="gpu=H200")


def words_of(page: str) -> list[str]:
    """What a page says, a line for each piece of text, without styles and scripts."""
    body = re.sub(r"(?s)<(style|script).*?</\1>", "", page.partition("<body")[2].partition(">")[2])
    texts = (html.unescape(text).split() for text in re.split(r"<[^>]*>", body))
    return [" ".join(words) for words in texts if words]


def test_it_says_what_the_plan_says_and_that_nothing_was_measured(planned, tmp_path) -> None:
    out = planned.page(tmp_path / "plan.html")
    page = out.read_text(encoding="utf-8")
    assert len(page) < 400_000
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert set(re.findall(r'id="chart-(\w+)"', page)) == {"layouts"}
    words = words_of(page)
    assert "PREDICTED: nothing was run. No figure on this page was measured." in words
    told = [word for word in words if not word.startswith("Written ")]
    snapshots.check("plan_page.txt", "\n".join(told) + "\n")


def test_a_best_that_is_slower_than_a_baseline_is_told_by_its_step(tmp_path: Path) -> None:
    """That baseline fits less surely than is asked."""
    job = {**JOB, "model": "gpt-oss-20b", "world": 8, "engine": "megatron"}
    found = autotune.plan(**job, min_fit=0.9)
    assert found.as_dict()["from_baseline"]["pred_gain_of_best"] < 1
    page = found.page(tmp_path / "plan.html").read_text(encoding="utf-8")
    (headline,) = re.findall(r'<p class="headline">(.*)</p>', page)
    assert headline.endswith(" s a step, by forecast")


def test_its_data_has_the_way_from_the_baseline(planned: Any) -> None:
    data = planned.as_dict()
    way, first = data["from_baseline"], data["candidates"][0]
    assert not way["is_given"]
    gain = way["pred_step_time_s"] / first["pred_step_time_s"]
    assert way["pred_gain_of_best"] == pytest.approx(gain)
    assert way["pred_gain_of_best_low"] < gain < way["pred_gain_of_best_high"]
    assert 0.5 < way["pred_gain_probability"] < 1
    changed = {change["knob"]: change for change in way["changes"]}
    assert changed, "the baseline is not the best"
    for knob, change in changed.items():
        assert change["value"] == first["candidate"][knob]
        assert change["before"] == way["candidate"].get(knob)


def test_a_baseline_of_the_users_is_the_one_that_it_begins_with(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, '
        '"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    found = autotune.plan(**JOB, baseline=own).as_dict()
    assert found["from_baseline"]["is_given"]
    assert found["from_baseline"]["candidate"] == found["baseline"]["candidate"]
    assert found["from_baseline"]["pred_gain_of_best"] == pytest.approx(
        found["baseline"]["pred_gain_of_best"]
    )


@pytest.mark.parametrize(("engine", "says"), [("megatron", True), ("deepspeed", False)])
def test_it_says_what_the_front_leaves_out(tmp_path: Path, engine: str, says: bool) -> None:
    page = autotune.plan(**JOB, engine=engine).page(tmp_path / "fp8.html").read_text("utf-8")
    sentence = "The Pareto front leaves out what changes the training, as "
    assert (sentence in page) is says


def test_where_nothing_fits_it_says_so(tmp_path: Path) -> None:
    small = {**JOB, "world": 1, "global_batch": 8, "space": "zero", "memory_limit": "20GiB"}
    page = autotune.plan(**small).page(tmp_path / "small.html").read_text(encoding="utf-8")
    words = " ".join(words_of(page))
    assert "No candidate fits with a probability of 90% or more" in words
    assert "no baseline that a search would begin with is legal and forecast to fit" in words
