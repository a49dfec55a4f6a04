import json

from autotune.contract import Outcome, Phase, RankReport, read_json
from autotune.trial.reporter import Reporter


def test_phases_add_up_and_the_file_is_always_whole(tmp_path, monkeypatch):
    (tmp_path / "ranks").mkdir()
    clock = iter(range(95, 200, 5))
    monkeypatch.setattr("autotune.trial.reporter.time.monotonic", lambda: float(next(clock)))
    reporter = Reporter(tmp_path, 1, submitted_at_s=90.0)
    reporter.enter(Phase.IMPORT)  # the clock says 100, then 105 for the report's own time
    reporter.enter(Phase.MODEL)  # 110, 115
    reporter.enter(Phase.MODEL)  # nothing changes
    reporter.finish()  # 120, 125

    report = RankReport.from_dict(read_json(tmp_path / "ranks" / "01.json"))
    assert report.phases_s == {"spawn": 10.0, "import": 10.0, "model": 10.0}
    assert report.ended_at_s == 35.0
    assert report.outcome is None


def test_a_failure_keeps_its_outcome_evidence_and_traceback(tmp_path):
    (tmp_path / "ranks").mkdir()
    reporter = Reporter(tmp_path, 0, submitted_at_s=0.0)
    reporter.enter(Phase.ENGINE_INIT)
    try:
        raise ValueError("stage 7")
    except ValueError as error:
        reporter.fail(error)

    data = json.loads((tmp_path / "ranks" / "00.json").read_text())
    assert data["outcome"] == Outcome.INVALID
    assert data["evidence"] == "ValueError: stage 7"
    assert "test_reporter.py" in data["traceback"]
