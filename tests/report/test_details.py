"""The figures behind the verdict: those of the page, in words."""

from pathlib import Path

from autotune.contract import Phase
from autotune.record.study import Study
from autotune.report.optuna_storage import importance_of
from autotune.report.story import read_story
from autotune.report.verdict import details_of
from tests.report.test_terminal import finished


def test_they_say_what_the_page_shows(wide: Study) -> None:
    report = read_story(wide)
    facts = details_of(report, importance_of(report))
    by_knob = [text for name, text in facts if name == "by knob"]
    assert [text.split(":")[0] for text in by_knob] == ["zero.stage 0 -> 1", "micro_batch 2 -> 4"]
    assert "memory -6 GiB" in by_knob[0]
    said = dict(facts)
    assert all(str(row.trial) in said["front"] for row in report.front)
    assert said["importance"].startswith("micro_batch ")
    assert "below 0.5%: " in said["importance"]
    assert all(phase.value in said["time"] for phase in Phase)


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    # No phases in this record, and too few candidates for importance.
    report = read_story(finished(tmp_path))
    assert {name for name, _ in details_of(report, None)} <= {"by knob", "front"}
