"""The rows of the page's table of trials."""

import dataclasses
from collections import Counter
from pathlib import Path

from autotune.contract import Role, TrialResult, TrialSpec
from autotune.record.study import Study
from autotune.report.page.tables import trials
from autotune.report.story import make_rows, read_story
from autotune.search.confirm import recorded_comparisons, verdict_of
from autotune.search.history import History
from autotune.search.race import BLOCK
from tests.report.test_terminal import finished
from tests.report.told import cells_of, facts_of
from tests.search.scripted import GIB, ok, rate_of
from tests.trials import changed


def test_rounds_are_counted_as_the_terminal_counts_them(wide: Study) -> None:
    report = read_story(wide)
    rounds = {
        trial.spec.identity.number: trial.spec.identity.confirm_round
        for trial in report.history.trials
        if trial.spec.identity.role is Role.CONFIRM
    }
    assert min(n for n in rounds.values() if n is not None) == 0
    said = {row["number"]: row["role"] for row in trials(report)}
    for number, from_0 in rounds.items():
        assert from_0 is not None
        assert said[number] == f"confirm, round {from_0 + 1}"


def test_runs_of_an_earlier_comparison_are_marked(wide: Study) -> None:
    report = read_story(wide)
    compared = [row for row in report.ranked_rows if row.compared]
    left_out = compared[1]
    tried_once = next(row for row in report.rows if row.figure and not row.compared)
    again = History(report.history.trials)
    for trial in report.history.trials:
        identity = trial.spec.identity
        if identity.confirm_round is None or identity.candidate_hash == left_out.candidate.hash:
            continue
        number = identity.number + len(report.history.trials)
        spec = changed(trial.spec, number=number, confirm_round=identity.confirm_round + BLOCK)
        assert trial.result is not None
        result = dataclasses.replace(trial.result, number=number)
        again = again.with_trial(dataclasses.replace(trial, spec=spec, result=result))
    comparison = verdict_of(recorded_comparisons(again, report.objective))
    rows_again = make_rows(again, comparison)
    twice = dataclasses.replace(report, history=again, rows=rows_again)
    rows = {row["number"]: row for row in trials(twice)}
    for number, row in rows.items():
        if row["role"].startswith("confirm"):
            is_last = number >= len(report.history.trials)
            assert row["role"].endswith("of an earlier comparison") is not is_last
    rests_on = cells_of(twice, "rests")
    assert rests_on[compared[0].trial] == f"{compared[0].figure.n_runs} runs compared"
    assert rests_on[left_out.trial] == "2 runs, not in the last comparison"
    assert rests_on[tried_once.trial] == "1 run, not compared"


def test_a_row_says_the_figure_of_the_answer(wide: Study) -> None:
    """Another release may have written it: the lines above the table and the table are one."""
    report = read_story(wide)
    assert report.answer is not None
    assert report.answer.best is not None
    best = dataclasses.replace(report.answer.best, samples_per_s_low=1.0)
    answer = dataclasses.replace(report.answer, best=best)
    rows = make_rows(report.history, report.comparison, answer)
    assert next(row for row in rows if row.trial == best.trial).figure == best


def test_who_ran_once_in_the_comparison_is_named(wide: Study) -> None:
    report = read_story(wide)
    roles = [trial.spec.identity for trial in report.history.trials]
    runs = Counter(i.candidate_hash for i in roles if i.confirm_round is not None)
    once = [str(row.trial) for row in report.rows if runs[row.candidate.hash] == 1]
    again = [str(row.trial) for row in report.rows if runs[row.candidate.hash] > 1]
    assert len(once) > 1
    assert dict(facts_of(report))["compared"] == (
        f"trials {', '.join(again)} ran again, in turns; trials {', '.join(once)} once more, and "
        "have the figure of that run; every other row is one trial, whose figure may be luck"
    )


def test_the_first_row_of_a_candidate_has_the_memory_that_the_headline_has(tmp_path: Path) -> None:
    def behave(spec: TrialSpec) -> TrialResult:
        is_again = spec.identity.role is Role.CONFIRM
        return ok(spec, rate_of(spec), peak=(7 if is_again else 5) * GIB)

    story = read_story(finished(tmp_path, behave))
    assert story.best is not None
    assert story.best.peak_memory_bytes == 7 * GIB
    first = next(row for row in trials(story) if row["mark"] == "best")
    assert first["peak_bytes"] == 7 * GIB
