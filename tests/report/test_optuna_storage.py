"""The storage is read back by Optuna, and opened by its dashboard."""

import errno
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autotune.app.exports import export_study
from autotune.base.errors import StudyError
from autotune.contract import Outcome
from autotune.record.study import Study
from autotune.report.story import read_story
from tests.report.test_terminal import finished


@pytest.fixture(scope="module")
def journal(wide: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("optuna") / "study.journal"
    return export_study(wide, out, to="optuna", trial=None)[0]


@pytest.fixture
def loaded(journal: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.load_study(study_name="scripted", storage=storage)


def test_the_best_trial_is_the_report_s(loaded: optuna.Study, wide: Study) -> None:
    report = read_story(wide)
    best = loaded.best_trial
    assert best.user_attrs["trial"] == report.best_trial
    assert best.user_attrs["is_best"]
    assert best.value == pytest.approx(report.answer.best.samples_per_s)
    row = report.row_of(best.user_attrs["trial"])
    assert best.params == row.candidate.values


def test_states_and_constraints_say_what_happened(loaded: optuna.Study, wide: Study) -> None:
    assert len(loaded.trials) == len(read_story(wide).rows)
    for trial in loaded.trials:
        outcome = Outcome(trial.user_attrs["outcome"])
        if outcome.is_platform_fault:
            assert trial.state is TrialState.FAIL
            continue
        assert trial.state is TrialState.COMPLETE
        named = {k: v for k, v in trial.constraints.items() if not k.isdecimal()}
        assert list(named.values()) == trial.system_attrs["constraints"]
        assert any(value > 0 for value in named.values()) is outcome.is_config_fault
        assert trial.user_attrs.get("evidence", "") == "" or outcome.is_config_fault


def test_a_fast_candidate_over_the_limit_is_not_the_best(tmp_path: Path) -> None:
    from tests.search.scripted import GIB, ok

    study = finished(
        tmp_path,
        lambda spec: ok(
            spec, 50.0 * spec.layout.micro_batch, peak=spec.layout.micro_batch * 6 * GIB
        ),
        memory_limit="24GiB",
    )
    out = export_study(study, tmp_path / "o.journal", to="optuna", trial=None)[0]
    loaded = optuna.load_study(
        study_name="scripted", storage=JournalStorage(JournalFileBackend(str(out)))
    )
    rates = {t.params["micro_batch"]: t.value for t in loaded.trials}
    assert rates[8] > rates[4] == loaded.best_trial.value


def test_an_older_file_is_replaced(wide: Study, tmp_path: Path) -> None:
    out = tmp_path / "again.journal"
    sizes = []
    for _ in range(2):
        export_study(wide, out, to="optuna", trial=None)
        sizes.append(len(out.read_text(encoding="utf-8").splitlines()))
    assert sizes[0] == sizes[1]
    assert [path.name for path in tmp_path.iterdir()] == ["again.journal"]


def test_what_a_storage_cannot_be_is_refused(wide: Study, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="whole study"):
        export_study(wide, tmp_path / "o", to="optuna", trial=3)
    with pytest.raises(StudyError, match="is a folder"):
        export_study(wide, tmp_path, to="optuna", trial=None)
    theirs = tmp_path / "theirs.journal"
    optuna.create_study(storage=JournalStorage(JournalFileBackend(str(theirs)))).ask()
    before = theirs.read_text(encoding="utf-8")
    with pytest.raises(StudyError, match=r"theirs.journal: is there and was not written by"):
        export_study(wide, theirs, to="optuna", trial=None)
    assert theirs.read_text(encoding="utf-8") == before


def test_a_full_disk_names_the_file_that_is_not_there(wide, tmp_path, monkeypatch) -> None:
    """Optuna writes its journal into a temporary folder first."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.mkdir", full)
    out = tmp_path / "study.journal"
    with pytest.raises(StudyError, match=r"study\.journal: cannot be written: No space left"):
        export_study(wide, out, to="optuna", trial=None)
    assert not out.exists()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def dashboard(journal: Path) -> Iterator[str]:
    """The dashboard itself, on a free port of this machine."""
    optuna_dashboard = pytest.importorskip("optuna_dashboard")
    app = optuna_dashboard.wsgi(JournalStorage(JournalFileBackend(str(journal))))
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/api"
        server.shutdown()
        thread.join()


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.dashboard
def test_the_dashboard_reads_trials_and_constraints(dashboard: str, wide: Study) -> None:
    (study,) = get(f"{dashboard}/studies")["study_summaries"]
    detail = get(f"{dashboard}/studies/{study['study_id']}")
    assert len(detail["trials"]) == len(read_story(wide).rows)
    feasible = []
    for trial in detail["trials"]:
        attributes = {a["key"]: a["value"] for a in trial["user_attrs"]}
        if trial["state"] == "Fail":
            continue
        assert len(trial["constraints"]) == 5
        if all(value <= 0 for value in trial["constraints"]):
            feasible.append((trial["values"][0], int(attributes["trial"])))
    answer = read_story(wide).answer
    assert max(feasible)[1] == answer.best.trial
