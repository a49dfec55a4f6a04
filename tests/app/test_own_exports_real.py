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
from autotune.app.own_script import adopt_first_run, open_script_session, own_candidate
from autotune.app.run import begin_study
from autotune.contract import Role
from autotune.engines.deepspeed.extensions import environment
from autotune.job.observed import Observed
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate

pytestmark = pytest.mark.real

SCRIPTS = Path(__file__).resolve().parent / "scripts" / "ways"
TORCHRUN = ("torchrun", "--nproc-per-node", "1")
LONGEST_S = 600.0


def exported(
    folder: Path, command: Sequence[str], values: dict[str, Any]
) -> tuple[Path, Observed]:
    """The export of a candidate that one trial ran, and what the first run of its command showed.

    Args:
        folder: Gets the scripts, the study and the export.
        command: The user's.
        values: Knobs of the candidate that differ from the command as it is.
    """
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    project = shutil.copytree(SCRIPTS, folder / "project")
    os.chdir(project)
    flags = {"study": "own", "diagnose": False, "guard_steps": 0}
    session = open_script_session(list(command), flags, results=folder, note=print)
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
        assert result is not None
        assert result.outcome.is_measured, result.evidence
        session.study.take_result(trial, spec, result)
    finally:
        fleet.close()
        session.study.unlock()
    export_study(session.study, folder / "out", trial=1)
    assert job.script is not None
    return folder / "out", job.script


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
