"""Two studies beside each other: figures, warnings, forms."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from autotune.app.pages import compare_studies, write_comparison
from autotune.base.errors import StudyError
from autotune.base.templates import Templates
from autotune.contract import Origin, TrialResult, TrialSpec
from autotune.record.study import Study
from autotune.report.compare.comparison import StudyComparison, names_of
from autotune.report.page.page import render_comparison
from autotune.report.terminal.tables import print_parts
from tests.report.test_terminal import finished
from tests.report.told import printed
from tests.report.wide import varied
from tests.search.scripted import ok

JOB = "model: tiny-gpt2\nseq_len: 64\nglobal_batch: 16\nworld: 2\nprecision: fp32\n"


def slower(spec: TrialSpec) -> TrialResult:
    """Nine tenths of the speed, with another torch."""
    result = varied(spec)
    if not result.samples_per_s:
        return result
    slow = ok(spec, 0.9 * result.samples_per_s, peak=result.peak_memory_bytes or 1)
    return dataclasses.replace(slow, versions={**result.versions, "torch": "2.12.0"})


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = finished(tmp_path_factory.mktemp("other"), slower, trials=12)
    study.job_file.write_text(JOB + "optimizer: {type: SGD}\n", encoding="utf-8")
    return study


@pytest.fixture(scope="module")
def comparison(wide: Study, other: Study) -> StudyComparison:
    wide.job_file.write_text(JOB, encoding="utf-8")
    return compare_studies([str(wide.folder), str(other.folder)], Path("nowhere"))


def test_the_same_candidates_stand_side_by_side(comparison: StudyComparison) -> None:
    frame = comparison.table
    assert len(frame) > 5
    assert frame["candidate_hash"].is_unique
    expected = frame["other_samples_per_s"] / frame["first_samples_per_s"]
    pd.testing.assert_series_equal(frame["ratio"], expected, check_names=False)
    # The script: 0.9, and one per cent to either side of each run.
    assert frame["ratio"].between(0.88, 0.92).all()
    assert (frame["ratio_low"] < frame["ratio"]).all()
    assert (frame["ratio_high"] > frame["ratio"]).all()
    assert set(frame["interval_from"]) == {"runs"}, "both studies have a final comparison"
    assert dict(frame.dtypes) == dict(replace(comparison, candidates=[]).table.dtypes)
    assert str(frame["ratio"].dtype) == "float64"


def test_differences_are_warned_of(comparison: StudyComparison) -> None:
    text = "\n".join(comparison.warnings)
    assert "torch differs ({} 2.13.0, {} 2.12.0)".format(*comparison.stories) in text
    assert "optimizer of the job differs" in text
    assert "ran another ds_config.json" in text
    assert "seq_len" not in text


@pytest.mark.parametrize(
    ("first", "why"),
    [("samples_per_s", "of a is samples_per_s and that of b is pareto"), ("pareto", "of both")],
)
def test_speed_decides_only_where_both_were_searched_for_it(tmp_path, first, why) -> None:
    studies = [
        finished(tmp_path / "a", objective=first, behave=varied, trials=12),
        finished(tmp_path / "b", objective="pareto", behave=slower, trials=12),
    ]
    comparison = compare_studies([str(study.folder) for study in studies], tmp_path)
    verdict = dataclasses.replace(
        comparison.verdicts[0], name="b", first="a", ratio=0.7, low=0.68, high=0.72
    )
    assert verdict.faster == "a"
    assert not verdict.decides
    assert f"Speed alone does not decide, since the objective {why}" in verdict.sentence
    assert "; b's takes " in verdict.sentence
    page = render_comparison(dataclasses.replace(comparison, verdicts=[verdict]), Templates())
    assert "a: 1.43x as fast as b" in page
    assert "autotune export" not in page


@pytest.mark.parametrize(
    ("origins", "told"),
    [
        (("measured", "measured"), ""),
        (("measured", "simulated"), "Measure both before you choose: not all of these figures"),
        (("simulated", "simulated"), "Measure both before you choose: none of these figures was"),
    ],
)
def test_figures_that_were_not_measured_choose_nothing(comparison, origins, told) -> None:
    first, other = (
        dataclasses.replace(story, facts=dataclasses.replace(story.facts, origin=Origin(origin)))
        for story, origin in zip(comparison.verdicts[0].sides, origins, strict=True)
    )
    sides = (first, other)
    verdict = dataclasses.replace(
        comparison.verdicts[0], sides=sides, ratio=0.7, low=0.68, high=0.72, shares_baseline=True
    )
    assert told in verdict.sentence
    assert verdict.decides == (not told)


def test_another_job_shares_no_candidate(wide: Study, tmp_path: Path) -> None:
    longer = finished(tmp_path, seq_len=128)
    comparison = compare_studies([str(wide.folder), str(longer.folder)], tmp_path)
    assert not comparison.candidates
    first, second = comparison.stories
    said = f"seq_len differs ({first} 64, {second} 128): samples/s are not of the same work"
    assert said in comparison.warnings
    assert comparison.verdicts[0].sentence.startswith(
        f"{second} and {first} did not do the same work. Their samples/s do not compare, "
        "since these differ: seq_len."
    )


SHORT = {"histogram": {16: 1, 64: 1}}
LONG = {"histogram": {32: 1, 64: 9}}


def test_samples_of_other_lengths_are_other_work(wide: Study, tmp_path: Path) -> None:
    studies = [finished(tmp_path / n, lengths=drawn) for n, drawn in (("a", SHORT), ("b", LONG))]
    for study, lengths in zip(studies, (SHORT, LONG), strict=True):
        job = yaml.safe_load(JOB) | {"lengths": lengths}
        study.job_file.write_text(yaml.safe_dump(job), encoding="utf-8")
    wide.job_file.write_text(JOB, encoding="utf-8")
    folders = [str(study.folder) for study in (wide, *studies)]
    for pair, words in (
        (
            folders[:2],
            "lengths differs ({} fixed, {} histogram): samples/s are not of the same work",
        ),
        (folders[1:], "lengths of the job differs: samples/s are not of the same work"),
    ):
        comparison = compare_studies(pair, tmp_path)
        assert not comparison.candidates
        assert [text for text in comparison.warnings if "lengths" in text] == [
            words.format(*comparison.stories)
        ]


def test_knobs_that_differ_between_the_bests(wide: Study, tmp_path: Path) -> None:
    study = finished(tmp_path, recomputes, trials=30)
    knobs = compare_studies([str(wide.folder), str(study.folder)], tmp_path).knobs
    assert [values["recompute"] for values in knobs.values()] == ["none", "full"]


def test_knobs_that_act_in_one_alone_stand_apart(comparison: StudyComparison) -> None:
    first, second = comparison.stories
    names = ("micro_batch", "zero.stage", "distributed_optimizer")
    values = {
        name: dict(zip(names, cells, strict=True))
        for name, cells in ((first, ("4", "1", "-")), (second, ("8", "-", "true")))
    }
    changed = dataclasses.replace(comparison, knobs=values)
    assert list(changed.shared_knobs) == ["micro_batch"]
    own = {first: "zero.stage=1", second: "distributed_optimizer=true"}
    assert dict(changed.own_knobs) == own


def test_a_verdict_rests_on_the_runs_of_the_figures_beside_it(wide: Study, tmp_path: Path) -> None:
    """A comparison that was cut short in its first round tells nothing of the best."""
    cut = finished(tmp_path, varied, trials=30)
    for trial in cut.trials():
        number = trial.spec.identity.confirm_round
        if number is not None and number > 0:
            shutil.rmtree(trial.folder)
        elif number == 0:
            file = trial.folder / "result.json"
            result = json.loads(file.read_text(encoding="utf-8"))
            result["samples_per_s"] /= 2
            file.write_text(json.dumps(result), encoding="utf-8")
    state = cut.read_state()
    cut.write_state({**state, "answer": {**state["answer"], "speedup": None}})
    wide.job_file.write_text(JOB, encoding="utf-8")
    found = compare_studies([str(wide.folder), str(cut.folder)], tmp_path)
    gains = [
        story.best_row.rate / story.baseline_row.rate
        for story in found.stories.values()
        if story.best_row and story.baseline_row
    ]
    assert found.verdicts[0].ratio == pytest.approx(gains[1] / gains[0])


def test_a_machine_that_was_slower_makes_no_study_slower(comparison, wide, tmp_path) -> None:
    """All that the other study ran is at nine tenths, its baseline too."""
    (verdict,) = comparison.verdicts
    assert verdict.faster == ""
    assert verdict.ratio == pytest.approx(1.0, abs=0.03)
    assert verdict.drift is not None
    assert "Both chose the same configuration, but the baseline was 0.90x in" in verdict.sentence
    assert "That baseline ran 0.90x as fast in" in verdict.sentence


def test_studies_without_a_common_baseline_are_not_called_faster(wide, tmp_path) -> None:
    other = finished(tmp_path, slower, trials=12)
    state = other.read_state()
    state["answer"] |= dict.fromkeys(("baseline", "speedup"))
    other.write_state(state)
    wide.job_file.write_text(JOB, encoding="utf-8")
    (verdict,) = compare_studies([str(wide.folder), str(other.folder)], tmp_path).verdicts
    assert verdict.high < 1
    assert verdict.faster == ""
    assert "Not known which is faster" in verdict.sentence
    assert "share no baseline" in verdict.sentence


def test_a_study_that_was_cut_short_shows_what_it_has_so_far(wide: Study, tmp_path: Path) -> None:
    cut = finished(tmp_path, varied, trials=12)
    cut.write_state({**cut.read_state(), "answer": None})
    wide.job_file.write_text(JOB, encoding="utf-8")
    comparison = compare_studies([str(wide.folder), str(cut.folder)], tmp_path)
    _, second = comparison.stories
    text = " ".join(shown(comparison, 160).split())
    assert f"{second} has no best to compare. {second}: Unfinished: " in text
    assert "The same command again resumes it." in text
    assert comparison.as_dict()["verdicts"][0]["ratio"] is None
    (row,) = (one for one in comparison.bests if one["run"] == second)
    assert (row["is_final"], row["speedup"]) == (False, None)
    assert f"{row['trial']}, so far" in text


def recomputes(spec: TrialSpec) -> TrialResult:
    """As `varied`, three times as fast where activations are recomputed."""
    result = varied(spec)
    factor = 3.0 if spec.workload.settings["recompute"] == "full" else 1.0
    if result.samples_per_s is None:
        return result
    return ok(spec, factor * result.samples_per_s, peak=result.peak_memory_bytes or 1)


def test_of_three_the_fastest_is_named(wide: Study, tmp_path: Path) -> None:
    wide.job_file.write_text(JOB, encoding="utf-8")
    fast = finished(tmp_path / "fast", recomputes, trials=30)
    copy = shutil.copytree(wide.folder, tmp_path / "copy")
    folders = [str(wide.folder), str(fast.folder), str(copy)]
    comparison = compare_studies(folders, tmp_path)
    assert comparison.fastest == "fast/scripted"
    text = " ".join(shown(comparison, 160).split())
    flags = f"--study scripted --results {fast.root}"
    told = "use fast/scripted, proven faster than each other one: `autotune export"
    assert f"{told} {flags} --trial " in text


def shown(comparison: StudyComparison, width: int = 80) -> str:
    return printed(print_parts, comparison.parts(), width=width)


def test_as_json_and_as_a_page(comparison: StudyComparison, tmp_path: Path) -> None:
    data = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    parts = {"studies", "warnings", "outcomes", "bests", "knobs", "candidates", "verdicts"}
    assert set(data) == {*parts, "fastest", "kinds", "best_kinds"}
    assert data["kinds"] == []
    assert len(data["candidates"]) == len(comparison.candidates)
    page = write_comparison(comparison, tmp_path / "c.html").read_text(encoding="utf-8")
    for warning in comparison.warnings:
        if "deepspeed" not in warning:
            assert warning in page
    for story in comparison.stories.values():
        assert str(story.folder) in page, "both are called the same: their folders tell"


def test_names_of_one_sound_are_told_apart_by_the_folders_above() -> None:
    folders = [Path("/a/x/same"), Path("/b/x/same"), Path("/b/y/same"), Path("/b/other")]
    assert names_of(folders) == ["/a/x/same"[1:], "b/x/same", "y/same", "other"]


@pytest.mark.parametrize("width", [80, 160])
def test_many_studies_with_long_names_fit(width, wide, other, tmp_path) -> None:
    folders = [
        shutil.copytree(study.folder, tmp_path / f"llama-3.2-1b-2048-tokens-{n}")
        for n, study in enumerate((wide, other, wide, other))
    ]
    text = shown(compare_studies(list(map(str, folders)), tmp_path), width)
    assert max(len(line.rstrip()) for line in text.splitlines()[4:]) <= width
    assert "…" not in text


def test_everything_calls_studies_by_their_names(wide, other, tmp_path) -> None:
    copy = shutil.copytree(other.folder, tmp_path / "sgd")
    wide.job_file.write_text(JOB, encoding="utf-8")
    comparison = compare_studies([str(wide.folder), str(copy)], Path("nowhere"))
    page = write_comparison(comparison, tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<h1>scripted against sgd</h1>" in page
    assert "samples/s over those of scripted" in page, "the ratios"
    assert "The best of sgd is 1.0" in page or "The best of sgd is 0.9" in page
    assert ". The best of sgd is " in comparison.as_dict()["verdicts"][0]["text"]
    assert set(comparison.as_dict()["studies"]) == {"scripted", "sgd"}
    assert {one["other"] for one in comparison.candidates} == {"sgd"}


@pytest.mark.parametrize("runs", [["scripted"], ["scripted", "scripted"]])
def test_it_takes_two(runs: list[str], wide: Study) -> None:
    wide.job_file.write_text(JOB, encoding="utf-8")
    with pytest.raises(StudyError, match="at least two"):
        compare_studies(runs, wide.root)
