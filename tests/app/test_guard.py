"""A best candidate whose losses drift: what reports and exports say, and what they hand out."""

import dataclasses
import json
from pathlib import Path

import pytest

from autotune.app.exports import export_study
from autotune.base.errors import StudyError
from autotune.base.templates import Templates
from autotune.contract import TrialResult, TrialSpec
from autotune.record.answer import Speedup
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.page.charts import losses
from autotune.report.page.page import render_page
from autotune.report.story import read_story
from autotune.report.terminal.study import render_markdown
from tests.report.test_terminal import exportable, shown
from tests.report.told import facts_of
from tests.search.scripted import ok, rate_of

COURSE = [10.0 - 0.05 * step for step in range(30)]


def drifts(spec: TrialSpec) -> TrialResult:
    """The fastest is one of stage 3, and it learns nothing."""
    stage = int(spec.identity.knobs["zero.stage"])
    result = ok(spec, (1 + stage) * rate_of(spec))
    is_wrong = stage == 3 and spec.layout.micro_batch == 8
    return dataclasses.replace(result, losses=[10.0] * 30 if is_wrong else COURSE)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return exportable(tmp_path_factory.mktemp("results"), drifts, trials=32)


def drifted_trial(study: Study) -> int:
    answer = read_story(study).answer
    return answer.drifted.standing.trial


def test_the_report_names_both(study: Study) -> None:
    report = read_story(study)
    facts = dict(facts_of(report))
    assert facts["guard"].startswith("pass: ")
    assert "in step 30 of 30" not in facts["drifted"], "20 steps are compared"
    assert "in step 20 of 20 the loss is 10, the baseline's 9.05" in facts["drifted"]
    assert "--allow-loss-drift" in facts["drifted"]
    text = shown(report, 120)
    assert "drifts" in text
    assert "drifted" in render_markdown(report)


@pytest.mark.cases("high", "missed")
def test_a_baseline_that_noise_may_have_kept_first_says_what_was_missed(study, high, missed):
    report = read_story(study)
    noisy = dataclasses.replace(
        report.answer,
        best=report.answer.baseline,
        speedup=Speedup(ratio=1.0, low=0.5, high=high),
        drifted=None,
    )
    report = dataclasses.replace(report, answer=noisy)
    assert missed in render_page(report, Templates())
    assert missed in dict(facts_of(report))["verdict"]


def test_the_table_says_it_of_every_trial_of_the_candidate(study: Study) -> None:
    frame = load_table(study.folder)
    its_hash = frame.set_index("trial").loc[drifted_trial(study), "candidate_hash"]
    its = frame[frame["candidate_hash"] == its_hash]
    assert set(its["guard"]) == {"fail"}
    assert its["guard_why"].str.contains("in step 20").all()
    assert {"pass"} <= set(frame["guard"].dropna())


def test_the_best_that_passes_is_exported_and_says_so(study: Study, tmp_path: Path) -> None:
    export_study(study, tmp_path / "out")
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())["figures"]
    assert figures["guard"]["verdict"] == "pass"
    assert figures["trial"] != drifted_trial(study)
    assert "| convergence guard | pass: " in (tmp_path / "out" / "README.md").read_text()


def test_where_nothing_else_passes_the_baseline_is_handed_out(tmp_path: Path) -> None:
    def all_drift(spec: TrialSpec) -> TrialResult:
        stage = int(spec.identity.knobs["zero.stage"])
        losses = COURSE if stage == 0 else [10.0] * 30
        return dataclasses.replace(ok(spec, (1 + stage) * rate_of(spec)), losses=losses)

    study = exportable(tmp_path / "results", all_drift)
    report = read_story(study)
    assert report.answer.best == report.answer.baseline
    facts = dict(facts_of(report))
    assert facts["guard"] == "pass: it is the baseline itself"
    assert facts["verdict"].startswith("Nothing beat the baseline. ")
    assert "--allow-loss-drift" in facts["drifted"]
    export_study(study, tmp_path / "out")
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())["figures"]
    assert figures["trial"] == report.baseline_trial
    drawn = losses(report)
    assert {key.text for key in drawn.keys} == {"allowed", "baseline", "drifted"}


def test_one_that_drifts_is_exported_only_where_that_is_allowed(study, tmp_path):
    number, out = drifted_trial(study), tmp_path / "out"
    with pytest.raises(StudyError) as caught:
        export_study(study, out, trial=number)
    assert "drift" in caught.value.message
    assert "--allow-loss-drift" in caught.value.hint
    assert not out.exists()
    for trial in (number, None):
        export_study(study, out, trial=trial, allow_loss_drift=True)
        figures = json.loads((out / "figures.json").read_text())["figures"]
        assert (figures["trial"], figures["guard"]["verdict"]) == (number, "fail")
        assert "| convergence guard | fail: " in (out / "README.md").read_text()
