"""What is said of reduced trials: how many there were, and nothing as if they were candidates'."""

import dataclasses
from pathlib import Path

import pytest

from autotune.app.exports import find_chosen
from autotune.app.studies import state_of
from autotune.base.errors import StudyError
from autotune.job.job import Job
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.compare.comparison import compare
from autotune.report.story import read_story
from autotune.report.terminal.study import print_plan, render_markdown
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.plan import Plan, make_plan
from autotune.space.knob import Context
from tests.report.test_terminal import shown
from tests.report.told import facts_of, printed
from tests.search.scripted import ENVIRONMENT, ScriptedEngine, lattice_of, make, session_of
from tests.search.test_reduced import Searched

JOB = make(trials=6, fidelity="layers=1", study="reduced")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return finished(tmp_path_factory.mktemp("results"), JOB)


def finished(folder: Path, job: Job) -> Study:
    """A search with reduced trials that has ended, with the facts that the application adds."""
    study = Study(folder, job.study)
    objective = Objective.of(job, ENVIRONMENT)
    study.trials_folder.mkdir(parents=True)
    facts = {
        "objective": dataclasses.asdict(objective.wish),
        "allowed_bytes": objective.allowed_bytes,
        "context": dataclasses.asdict(Context.of(job, ENVIRONMENT)),
    }
    study.write_state(facts)
    done = Searched(study, job)
    study.write_state({**study.read_state(), "answer": done.result.to_dict()})
    return study


def test_every_report_says_how_many_there_were_and_ranks_none(study: Study) -> None:
    report = read_story(study)
    numbers = {t.spec.identity.number for t in report.history.reduced.trials}
    assert len(numbers) == 3
    assert not numbers & {row.trial for row in report.rows}
    said = "3 of 1 layer: these trials are in no ranking, and taught the forecast alone"
    assert ("reduced", said) in facts_of(report)
    assert said in " ".join(shown(report, 200).split())
    assert said in render_markdown(report)
    assert state_of(study).n_reduced == 3
    assert state_of(study).n_trials == len(study.trials())


def test_the_error_of_what_was_extrapolated_is_said(study: Study) -> None:
    error = read_story(study).frame["extrapolation_error"].dropna().abs().item()
    text = dict(facts_of(read_story(study)))["extrapolated"]
    assert text.startswith(
        f"step time of 1 candidate, predicted after reduced trials: error {error:.0%}"
    )


def test_the_table_declares_what_each_row_ran(study: Study) -> None:
    frame = load_table(study.folder)
    is_reduced = frame["fidelity_layers"].notna()
    assert is_reduced.sum() == 3
    assert (frame.loc[is_reduced, "fidelity_layers"] == 1).all()
    assert frame["fidelity_world"].isna().all()
    whole = {c.hash for c in lattice_of(JOB).candidates}
    assert frame.loc[is_reduced, "reduced_of"].isin(whole).all()
    assert frame.loc[~is_reduced, "reduced_of"].isna().all()
    hashes = set(frame.loc[is_reduced, "candidate_hash"])
    assert not hashes & set(frame.loc[~is_reduced, "candidate_hash"])
    # Its figures are those of what it ran, and no FLOPs of the whole model are claimed of it.
    reduced, full = frame[is_reduced], frame[~is_reduced & frame["samples_per_s"].notna()]
    assert reduced["samples_per_s"].min() > full["samples_per_s"].max()
    assert reduced["n_params"].isna().all()
    assert reduced["tflops_per_device"].isna().all()
    assert full["tflops_per_device"].notna().all()


def test_pages_and_comparisons_leave_them_out(study: Study, tmp_path: Path) -> None:
    plain = finished(tmp_path, make(trials=6, study="plain"))
    stories = {"A": read_story(study), "B": read_story(plain)}
    frame = stories["A"].frame
    assert frame["reduced_of"].isna().all()
    assert len(frame) == len(study.trials()) - 3
    found = compare(stories)
    assert "A: reduced trials are left out" in " ".join(found.warnings)
    assert "B: reduced" not in " ".join(found.warnings)
    assert not any("not of the same work" in warning for warning in found.warnings)


def test_nothing_of_a_reduced_trial_is_handed_out(study: Study) -> None:
    number = read_story(study).history.reduced.trials[0].spec.identity.number
    with pytest.raises(StudyError, match=f"trial {number} is a reduced one .1 layer"):
        find_chosen(study, trial=number)


def plan_of(folder: Path, job: Job) -> Plan:
    engine = ScriptedEngine(job, refused=lambda c: bool(c.layers and c["zero.stage"] == 3))
    return make_plan(session_of(Study(folder, "s"), job, engine=engine), History())


def test_the_plan_says_what_comes_first_and_what_cannot(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, make(trials=10, fidelity="layers=2,world=1"))
    assert (plan.search_trials, plan.reduced_trials) == (10, 5)
    text = printed(print_plan, plan, width=400, reasons=False)
    assert "at most 5 of the search's trials, 2 layers on 1 accelerator each, come first" in text
    assert "8 of 32 candidates have no reduced trial (test.refused 8)" in text
