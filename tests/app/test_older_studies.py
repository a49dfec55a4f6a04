"""A study that an older release wrote still opens, reports, and resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract import SPEC_SCHEMA_VERSION, Role, read_json
from autotune.record.study import Study
from autotune.record.table import load_table

SCHEMA_1 = Path(__file__).parents[1] / "golden" / "studies" / "schema_1.json"
"""Files of a simulated study whose specs have every field at the top: path -> content."""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for name, content in json.loads(SCHEMA_1.read_text(encoding="utf-8")).items():
        path = tmp_path / "old" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Study(tmp_path, "old")


def autotune(study: Study, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *arguments, "--results", str(study.root)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "NO_COLOR": "1"}
    )


def test_its_trials_are_read(study: Study) -> None:
    recorded = study.read()
    assert recorded.unreadable == ()
    assert len(recorded.trials) == 17
    first = recorded.trials[0].spec
    assert (first.schema_version, first.workload.digest) == (SPEC_SCHEMA_VERSION, "")
    assert first.workload.settings["recompute"] == "none"
    assert first.measure.max_steps == 1000
    frame = load_table(study.folder).set_index("trial")
    assert frame.loc[0, "knob.zero.stage"] == 0
    assert frame.loc[0, "seq_len"] == 64


def test_it_reports_and_the_same_search_resumes_it(study: Study) -> None:
    assert "zero.stage" in autotune(study, "report", "--study", "old").stdout
    n_trials = study.next_number()
    best = read_json(study.state_file)["answer"]["best"]["trial"]
    resumed = autotune(
        study,
        *("search", "--study", "old", "--job", str(study.job_file)),
        *("--fleet", "simulate:2xH100", "--json"),
    )
    assert resumed.returncode == 0, resumed.stderr
    later = [trial.spec.identity.role for trial in study.read().trials[n_trials:]]
    # The baseline has the knobs of this release, so it runs anew.
    assert set(later) <= {Role.BASELINE, Role.CONFIRM}, "no trial of the search is run again"
    assert json.loads(resumed.stdout)["best"]["trial"] == best
