"""What is said before the first trial: what fits, for how long a trial runs, what cannot be."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.app.planning import open_outlook
from autotune.app.session import open_session
from autotune.app.steering import prospect
from autotune.base.units import parse_seconds
from autotune.contract import Origin
from autotune.cost.knowledge import Lesson, columns_of, keep_lessons, study_name
from autotune.cost.plans import Plans
from autotune.cost.problem import situation_of
from autotune.engines.base import bind_engine
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice
from autotune.record.study import Study
from autotune.search.history import History
from autotune.search.prospect import START_S, prospect_of
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import steering_of
from tests.jobs import CPU, tiny_job

LARGE = {"model": "llama-3-70b", "seq_len": 4096, "global_batch": 64, "space": "smoke"}


def session(tmp_path: Path, fleet: str, **changes: object) -> Session:
    return open_session(None, {**LARGE, **changes}, results=tmp_path, fleet=fleet)


def lesson_of(searched: Session, plans: Plans, row: int, seconds: float) -> Lesson:
    return Lesson(
        situation=situation_of(searched.job, searched.environment),
        study="one",
        plan=columns_of(plans, row),
        seconds=float(seconds),
        peak_bytes=2e9,
        is_out_of_memory=False,
        limit_bytes=80e9,
    )


def test_what_cannot_fit_is_said_with_changes_that_do(tmp_path: Path):
    said = prospect(session(tmp_path, "simulate:4xA100"), fresh=True, knowledge=None)
    assert said.n_fit == 0
    assert "nothing is predicted to fit" in said.problem
    assert "offload" in said.nearest
    assert "--world: `autotune plan`" in said.nearest
    wider = prospect(session(tmp_path, "simulate:8xA100", world=32), fresh=True, knowledge=None)
    assert wider.problem == ""
    offloaded = prospect(
        session(tmp_path, "simulate:4xA100", space="zero_offload"), fresh=True, knowledge=None
    )
    assert (offloaded.n_fit > 0, offloaded.problem) == (True, "")
    assert (said.may_fit, offloaded.may_fit) == (False, True)


def test_where_only_the_space_of_a_plan_has_what_fits_it_is_named(tmp_path: Path):
    keys = {**LARGE, "world": 8}
    del keys["space"]
    found = open_session(None, keys, results=tmp_path, fleet="simulate:8xH100")
    said = prospect(found, fresh=True, knowledge=None)
    assert said.n_fit == 0
    assert "offload.optimizer=cpu" in said.plan_first


def test_the_first_row_of_a_plan_is_named_as_the_plan_has_it(tmp_path: Path, monkeypatch):
    """Also where what fits less surely is worth its chance."""
    monkeypatch.setattr("autotune.planning.ranking.worthwhile_fit", lambda *_: 0.5)
    keys = {**LARGE, "model": "llama-3-8b", "world": 8}
    del keys["space"]
    here = open_session(None, keys, results=tmp_path, fleet="simulate:8xL40S")
    said = prospect(here, fresh=True, knowledge=None)
    ranking = rank_lattice(open_outlook(None, keys, FleetWishes(gpu="L40S")))
    first = int(ranking.order[0])
    chance = ranking.prediction.fit_probability[first]
    assert 0.5 <= chance < 0.9
    assert said.plan_first == ranking.outlook.engine.describe(ranking.candidates[first])
    assert said.plan_fit == pytest.approx(chance)
    # Trials that took five times as long as predicted slow the plan's first row as well.
    ran = here.lattice.candidates[:8]
    plans, seconds = here.engine.plans(ran), steering_of(here).forecast(ran).seconds
    lessons = [lesson_of(here, plans, row, 5 * seconds[row]) for row in range(len(ran))]
    monkeypatch.setattr("autotune.app.steering.read_lessons", lambda _: lessons)
    monkeypatch.setattr(here.place, "origin", Origin.MEASURED)
    taught = prospect(here, fresh=True, knowledge=tmp_path)
    assert taught.plan_gain < said.plan_gain / 2


def test_the_host_memory_of_the_job_limits_a_search(tmp_path: Path):
    space = tmp_path / "space.yaml"
    knobs = "  zero.stage: [3]\n  offload.optimizer: [cpu]\n  recompute: [full]\n"
    space.write_text(f"name: mine\ndescription: few\nknobs:\n{knobs}", encoding="utf-8")
    offload = {"space": str(space), "world": 8}
    wide, tight = (
        session(tmp_path, "simulate:8xA100", **offload, host_memory=host)
        for host in ("2TiB", "1GiB")
    )
    assert prospect(wide, fresh=True, knowledge=None).n_fit > 0
    said = prospect(tight, fresh=True, knowledge=None)
    assert said.n_fit == 0
    assert re.search(r"processes are predicted to need .* of the 1 GiB of the host", said.problem)
    assert "nodes with more host memory" in said.nearest
    # The smaller of the job's and the place's limit counts.
    wide.place.host_memory_bytes = 2**30
    tight.place.host_memory_bytes = 2**41
    for one in (wide, tight):
        assert prospect(one, fresh=True, knowledge=None).n_fit == 0


def test_what_cannot_end_in_time_is_said(tmp_path: Path):
    slow = {"model": "qwen2.5-0.5b", "global_batch": 128, "world": 2, "memory_limit": "64GiB"}
    said = prospect(session(tmp_path, "simulate:2xcpu", **slow), fresh=True, knowledge=None)
    assert "no trial is predicted to end in time" in said.problem
    named = re.search(r"--trial-timeout (\S+) or more", said.nearest)
    assert parse_seconds(named[1], where="the hint") > 600
    patient = session(tmp_path, "simulate:2xcpu", **slow, trial_timeout="1000h")
    again = prospect(patient, fresh=True, knowledge=None)
    assert again.problem == ""
    assert again.trial_s > START_S[again.start] + 7 * again.fastest_step_s


def test_what_was_measured_corrects_the_time_of_a_step_and_nothing_else(tmp_path: Path):
    job = tiny_job(tmp_path, world=2, global_batch=8, space="smoke")
    searched = Session(
        job=job,
        engine=bind_engine(job, CPU),
        place=RecordedPlace(CPU, {}),
        study=Study(tmp_path, "s"),
    )
    ran = searched.lattice.candidates[:4]
    plans = searched.engine.plans(ran)
    plain = steering_of(searched)
    seconds = plain.forecast(ran).seconds
    lessons = [lesson_of(searched, plans, row, 20 * seconds[row]) for row in range(len(ran))]
    taught = steering_of(searched, lessons=lessons)
    before, after = (prospect_of(steering, History(), searched) for steering in (plain, taught))
    assert 10 < after.step_s / before.step_s < 25
    assert replace(after, step_s=before.step_s) == before


def test_the_lessons_of_a_study_count_where_it_begins_anew(tmp_path: Path):
    """Those of a record that goes on are in its own trials."""
    one = session(tmp_path, "local", model="tiny-llama", global_batch=8, world=2)
    knowledge = tmp_path / "knowledge.json"
    lattice, name = one.lattice, study_name(one.study.folder)
    plans = bind_engine(one.job, one.environment).plans(lattice.candidates[:1])
    lesson = replace(lesson_of(one, plans, 0, 3600.0), study=name)
    keep_lessons(knowledge, name, [lesson])
    steps_s = [
        said.step_s
        for fresh in (False, True)
        if (said := prospect(one, fresh=fresh, knowledge=knowledge)) is not None
    ]
    assert steps_s[0] * 5 < steps_s[1]


@pytest.mark.parametrize(("gib", "is_started"), [(1024, True), (1, False)])
def test_what_the_host_cannot_hold_is_not_started(tmp_path: Path, gib: int, is_started: bool):
    job = tiny_job(tmp_path, world=8, global_batch=8, space="smoke")
    machine = replace(CPU, n_devices=8)
    place = RecordedPlace(machine, {})
    place.host_memory_bytes = gib * 2**30
    searched = Session(
        job=job, engine=bind_engine(job, machine), place=place, study=Study(tmp_path, "s")
    )
    lattice, steering = searched.lattice, steering_of(searched)
    # Eight ranks hold their imports at least: 300 MiB each.
    assert bool(steering.above_host) is not is_started
    if not is_started:
        assert steering.above_host == {c.hash for c in lattice.candidates}
