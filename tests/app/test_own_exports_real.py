"""What an export of a user's own command starts is what its trial measured, however it reads."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.app.exports import export_study
from autotune.app.own_script import adopt_first_run, open_command_session, own_candidate
from autotune.app.run import begin_study
from autotune.contract import Role
from autotune.engines.deepspeed.extensions import environment
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from tests.cases import data_beside

DATA = data_beside(__file__)

pytestmark = pytest.mark.real

SCRIPTS = Path(__file__).resolve().parent / "scripts" / "ways"
LONGEST_S = 600.0


def exported(folder: Path, command: Sequence[str], values: dict[str, Any]) -> Path:
    """The export of a candidate that one trial ran, of a command in the current folder.

    Args:
        folder: Gets the study and the export.
        command: The user's.
        values: Knobs of the candidate that differ from the command as it is.
    """
    flags = {"study": "own", "diagnose": False, "guard_steps": 0}
    session = open_command_session(list(command), flags, results=folder, note=print)
    session.study.lock()
    begin_study(session, print)
    adopt_first_run(session)
    own, job = own_candidate(session), session.job
    candidate = Candidate.of(
        {**own.values, **values}, world=job.world, global_batch=job.global_batch
    )
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="own",
        number=1,
        job=job,
        engine=session.engine,
        environment=session.environment,
    )
    fleet = session.make_fleet()
    try:
        fleet.prepare(session.engine.preparation([candidate]), print)
        trial = session.study.write_spec(spec, session.engine.files(candidate))
        result = fleet.submit(spec, trial).wait(LONGEST_S)
        assert result.outcome.is_measured, result.evidence
        session.study.take_result(trial, spec, result)
    finally:
        fleet.close()
        session.study.unlock()
    export_study(session.study, folder / "out", trial=1)
    return folder / "out"


def live(out: Path, folder: Path) -> dict[str, Any]:
    """What the live engine of an export's start says."""
    told = folder / "live.json"
    ways = {"WAYS_STEPS": "1", "WAYS_LIVE": str(told), "WAYS_OUT": str(folder / "trained")}
    subprocess.run(
        ["bash", str(out / "launch.sh")],
        env={**os.environ, **environment("cpu"), **ways},
        cwd="/",
        check=True,
        timeout=LONGEST_S,
    )
    found: dict[str, Any] = json.loads(told.read_text())
    return found


WAYS: dict[str, list[Any]] = DATA["WAYS"]
"""Command, knobs that change -> what the live engine of its export is, or what the README says
that the user changes."""


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.thorough] * (way != "yaml of its own")) for way in WAYS],
)
def test_an_export_trains_what_was_measured_or_is_not_started(tmp_path, monkeypatch, way):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(shutil.copytree(SCRIPTS, tmp_path / "project"))
    command, values, expected = WAYS[way]
    out = exported(tmp_path, command, values)
    if isinstance(expected, str):
        assert not (out / "launch.sh").exists()
        assert f"| `{expected}` |" in (out / "README.md").read_text()
    else:
        assert live(out, tmp_path) == expected
    for path in SCRIPTS.rglob("*.*"):
        ours = tmp_path / "project" / path.relative_to(SCRIPTS)
        assert ours.read_text() == path.read_text(), "the user's own files stay"
