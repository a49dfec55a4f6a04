"""Gains of whole runs, where some steps of a command take longer than the others."""

import dataclasses
from pathlib import Path

from autotune.contract import TrialResult, TrialSpec, read_json, write_json
from autotune.record.study import Study
from autotune.report.story import read_story
from tests.report.test_terminal import finished
from tests.report.told import facts_of
from tests.search.scripted import ok

EVALUATION_S = 2.0


def evaluates(spec: TrialSpec) -> TrialResult:
    """Faster with a larger micro-batch; every tenth step takes as much longer in any case."""
    result = ok(spec, 8.0 * spec.layout.micro_batch)
    times_s = [result.step_times_s[0]] * 9
    return dataclasses.replace(result, step_times_s=[*times_s, times_s[0] + EVALUATION_S])


def of_a_command(study: Study) -> Study:
    for path in study.trials_folder.glob("*/spec.json"):
        spec = read_json(path)
        spec["workload"]["command"] = ["torchrun", "train.py"]
        write_json(path, spec)
    return study


def test_the_gain_of_the_whole_run_is_told_beside_that_of_the_steps(tmp_path: Path) -> None:
    report = read_story(of_a_command(finished(tmp_path, evaluates)))
    facts = dict(facts_of(report))
    batches = [row and row.candidate.micro_batch for row in (report.baseline_row, report.best_row)]
    before_s, after_s = (2.0 / batch for batch in batches)
    beside_s = EVALUATION_S / 10
    gain = (before_s + beside_s) / (after_s + beside_s)
    assert facts["whole run"].startswith(f"{gain:.2f}x by the mean step")
    assert f"is {beside_s / (before_s + beside_s):.0%} of the baseline" in facts["whole run"]


def test_no_gain_of_the_whole_run_is_told_of_single_trials(tmp_path: Path) -> None:
    study = of_a_command(finished(tmp_path, evaluates))
    state = study.read_state()
    state["answer"] |= {"best": state["answer"]["ties"][0], "speedup": None}
    study.write_state(state)
    facts = dict(facts_of(read_story(study)))
    assert "no gain is claimed" in facts["verdict"]
    assert "whole run" not in facts


def test_even_steps_need_no_word(tmp_path: Path) -> None:
    even = finished(tmp_path / "even", lambda spec: ok(spec, 8.0 * spec.layout.micro_batch))
    assert "whole run" not in dict(facts_of(read_story(of_a_command(even))))
    built_in = finished(tmp_path / "built_in", evaluates)
    assert "whole run" not in dict(facts_of(read_story(built_in)))
