"""The metrics of a running search: names that dashboards rely on, and a format."""

import dataclasses
import errno
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.app.metrics import MetricsWriter, check_writable
from autotune.base.errors import StudyError
from autotune.contract import Outcome, Phase
from autotune.record.study import Study, Trial
from autotune.report.metrics import MARK, METRICS, render_metrics
from autotune.search.base import Stage
from tests import site_pages
from tests.report import samples
from tests.report.diagnosed import diagnosed
from tests.report.test_terminal import finished
from tests.search.scripted import Notebook

NAMES = [
    "autotune_info",
    "autotune_stage",
    "autotune_trials_total",
    "autotune_trials_running",
    "autotune_search_trials_done",
    "autotune_search_trials_budget",
    "autotune_elapsed_seconds",
    "autotune_remaining_seconds",
    "autotune_best_samples_per_second",
    "autotune_best_peak_memory_bytes",
    "autotune_baseline_samples_per_second",
    "autotune_speedup_ratio",
    "autotune_phase_seconds_total",
    "autotune_running_trial_elapsed_seconds",
    "autotune_last_trial",
    "autotune_last_trial_step_seconds",
    "autotune_last_trial_samples_per_second",
    "autotune_last_trial_peak_memory_bytes",
    "autotune_last_trial_wall_seconds",
    "autotune_last_trial_step_share_ratio",
    "autotune_last_trial_cpu_utilization_ratio",
    "autotune_last_trial_gpu_utilization_ratio",
    "autotune_last_trial_gpu_power_watts",
    "autotune_last_trial_gpu_temperature_celsius",
    "autotune_last_trial_gpu_throttled_ratio",
    "autotune_last_trial_sample_energy_joules",
]

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return finished(tmp_path_factory.mktemp("metrics"), diagnosed)


def render(trials: tuple[Trial, ...], *, name: str = "mine", **changes: Any) -> str:
    snapshot = dataclasses.replace(samples.snapshot(), **changes)
    snapshot = dataclasses.replace(snapshot, trials=tuple(trials))
    return render_metrics(snapshot, study=name, version="1.0", accelerator="cpu")


def parsed(text: str) -> dict[tuple[str, str], float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            found[match[1], match[2]] = float(match[3])
    return found


def test_the_names_stay_and_the_page_lists_them() -> None:
    assert [metric.name for metric in METRICS] == NAMES
    page = site_pages.metrics()
    assert [name for name in NAMES if f"`{name}" not in page] == []


def test_names_say_unit_and_kind() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"autotune_[a-z_]+[a-z]", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not re.search(r"_(ms|mb|gib|percent|minutes)\b", metric.name)


def test_all_of_them_are_there_where_all_is_known(study: Study) -> None:
    text = render(study.trials())
    assert text.startswith(MARK)
    assert {name for name, _ in parsed(text)} == set(NAMES)
    for metric in METRICS:
        assert text.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
        assert text.count(f"# HELP {metric.name} ") == 1


def test_values_are_those_of_the_record(study: Study) -> None:
    trials = study.trials()
    found = parsed(render(trials))
    counted = [value for (name, _), value in found.items() if name == "autotune_trials_total"]
    assert sum(counted) == len(trials)
    last = max(trials, key=lambda trial: trial.result.started_at_s)  # type: ignore[union-attr]
    own = 'study="mine"'
    assert found["autotune_last_trial", own] == last.spec.identity.number
    assert found["autotune_last_trial_step_seconds", own] == last.result.step_time_s
    assert found["autotune_best_samples_per_second", own] == 60.0
    assert found["autotune_speedup_ratio", own] == pytest.approx(1.2)
    assert found["autotune_remaining_seconds", own] == 130.0
    assert found["autotune_stage", f'{own},stage="search"'] == 1
    assert found["autotune_stage", f'{own},stage="done"'] == 0
    running = f'{own},trial="9",role="search",phase="measured"'
    assert found["autotune_running_trial_elapsed_seconds", running] == 4.1
    shares = [v for (name, _), v in found.items() if name.endswith("step_share_ratio")]
    assert sum(shares) == pytest.approx(1)
    assert found["autotune_last_trial_sample_energy_joules", own] == pytest.approx(40.0)


def test_what_is_not_known_is_absent() -> None:
    found = parsed(render((), best=None, baseline=None, time_left_s=None, running=()))
    names = {name for name, _ in found}
    assert names == {
        "autotune_info",
        "autotune_stage",
        "autotune_trials_running",
        "autotune_search_trials_done",
        "autotune_search_trials_budget",
        "autotune_elapsed_seconds",
        "autotune_phase_seconds_total",
    }
    phases = [labels for name, labels in found if name == "autotune_phase_seconds_total"]
    assert len(phases) == len(Phase)


def test_prometheus_own_parser_reads_it(study: Study) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(render(study.trials(), name='x"\\\n')))
    read = {sample.name for family in families for sample in family.samples}
    assert read == set(NAMES)
    assert {s.labels["study"] for f in families for s in f.samples} == {'x"\\\n'}
    assert all(family.documentation for family in families)


class Clock:
    """In place of the time module."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("autotune.app.metrics.time", clock)
    return clock


def test_it_is_written_where_a_stage_begins_or_the_last_is_old(
    tmp_path: Path, clock: Clock
) -> None:
    study, extra = finished(tmp_path / "results"), tmp_path / "autotune.prom"
    notebook = Notebook()
    writer = MetricsWriter(study, notebook, accelerator="cpu", extra=extra)
    snapshot = samples.snapshot()

    def writes(**changes: Any) -> bool:
        extra.unlink(missing_ok=True)
        writer.on_snapshot(dataclasses.replace(snapshot, **changes))
        return extra.exists()

    assert writes()
    assert extra.read_text() == study.metrics_file.read_text()
    assert not writes(elapsed_s=63.0)
    clock.now_s += 6
    assert writes(elapsed_s=68.0)
    assert writes(stage=Stage.CONFIRM)
    assert not writes(stage=Stage.CONFIRM, counts={Outcome.OK: 7})
    assert notebook.notes == []
    assert len(notebook.snapshots) == 5, "all are handed on"


def test_a_file_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, clock: Clock
) -> None:
    study, notebook = finished(tmp_path / "results"), Notebook()
    gone = tmp_path / "gone" / "autotune.prom"
    writer = MetricsWriter(study, notebook, accelerator="cpu", extra=gone)
    for _ in range(3):
        clock.now_s += 10
        writer.on_snapshot(samples.snapshot())
    assert len(notebook.notes) == 1
    assert notebook.notes[0].startswith(f"{gone}: not kept up: cannot be written: ")
    assert study.metrics_file.exists(), "the other file is"
    gone.parent.mkdir()
    clock.now_s += 10
    writer.on_snapshot(samples.snapshot())
    assert gone.exists()


def test_no_error_of_rendering_ends_a_search(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> str:
        raise ZeroDivisionError("float division by zero")

    study, notebook = finished(tmp_path / "results"), Notebook()
    writer = MetricsWriter(study, notebook, accelerator="cpu", extra=None)
    with monkeypatch.context() as patch:
        patch.setattr("autotune.app.metrics.render_metrics", breaks)
        writer.on_snapshot(samples.snapshot())
        writer.close()
    assert len(notebook.notes) == 1
    clock.now_s += 10
    writer.on_snapshot(samples.snapshot())
    assert study.metrics_file.exists()


def test_the_last_state_is_done_however_the_search_ended(tmp_path: Path, clock: Clock) -> None:
    study = finished(tmp_path / "results")
    writer = MetricsWriter(study, Notebook(), accelerator="cpu", extra=None)
    writer.close()
    assert not study.metrics_file.exists(), "it never began"
    writer.on_snapshot(samples.snapshot())
    writer.close()
    found = parsed(study.metrics_file.read_text())
    own = 'study="scripted"'
    assert found["autotune_stage", f'{own},stage="done"'] == 1
    assert found["autotune_trials_running", own] == 0
    assert not [name for name, _ in found if name.startswith("autotune_running_trial")]


def test_somebody_elses_file_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "node.prom"
    theirs.write_text("node_load1 0.5\n")
    with pytest.raises(StudyError, match="not written as metrics by autotune"):
        check_writable(theirs)
    with pytest.raises(StudyError, match="there is no such folder"):
        check_writable(tmp_path / "none" / "x.prom")
    ours = tmp_path / "ours.prom"
    ours.write_text(render(()))
    check_writable(ours)
    check_writable(tmp_path / "new.prom")


def test_a_path_that_cannot_be_looked_at_is_not_taken_for_one_that_is_missing(
    tmp_path: Path,
) -> None:
    with pytest.raises(StudyError, match="cannot be read: File name too long"):
        check_writable(tmp_path / ("long" * 100) / "x.prom")


def test_a_folder_that_cannot_be_written_is_said_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    with pytest.raises(StudyError, match="cannot be written: No space left on device"):
        check_writable(tmp_path / "x.prom")
    assert list(tmp_path.iterdir()) == []
