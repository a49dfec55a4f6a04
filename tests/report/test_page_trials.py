"""The rows of the page's table of trials."""

from autotune.contract import Role
from autotune.record.study import Study
from autotune.report.page.trials import trials
from autotune.report.results.study import read_report


def test_rounds_are_counted_as_the_terminal_counts_them(wide: Study) -> None:
    report = read_report(wide)
    rounds = {
        trial.spec.identity.number: trial.spec.identity.confirm_round
        for trial in report.history.trials
        if trial.spec.identity.role is Role.CONFIRM
    }
    assert min(n for n in rounds.values() if n is not None) == 0
    said = {row["number"]: row["role"] for row in trials(report, {"best": None, "baseline": None})}
    for number, from_0 in rounds.items():
        assert from_0 is not None
        assert said[number] == f"confirm, round {from_0 + 1}"
