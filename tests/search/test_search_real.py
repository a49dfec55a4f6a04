"""Whole searches on real DeepSpeed: one is killed, then answers.

`tests/chaos` has the other rude ways of ending one early.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.app.exports import export_study
from autotune.contract import Role, Start
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.fleet.node.processes import processes_of
from autotune.fleet.transports.local import local_fleet
from autotune.job.model import with_layers
from autotune.planning.lattice import build_lattice
from autotune.record.study import Study
from autotune.search.history import History
from autotune.search.interrupt import Interrupt
from autotune.search.loop import run_search
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import steering_of
from autotune.space.space_file import load_space
from tests.command_line import autotune
from tests.jobs import CPU, tiny_job
from tests.search.scripted import Notebook
from tests.searches import Search
from tests.trials import wait_until

pytestmark = pytest.mark.real


def micro_batch_in(folder: Path) -> int:
    ds_config = json.loads((folder / "ds_config.json").read_text())
    return ds_config["train_micro_batch_size_per_gpu"]


@pytest.fixture
def search(tmp_path):
    search = Search(tmp_path)
    yield search
    wait_until(lambda: processes_of(search.study.folder) == [], "a search left processes behind")


def test_kill_9_loses_nothing_and_the_search_answers(search, tmp_path):
    """In the middle of the second trial; `make chaos` kills it at every other moment."""
    flags = ("--trials", "1", "--budget", "3m", "--compare", "best", "--no-diagnose")
    flags += ("--guard-steps", "0")
    process = search.start(*flags)
    wait_until(lambda: search.is_under_way(1), "the second trial runs")
    process.kill()
    process.communicate()
    wait_until(lambda: processes_of(search.study.folder) == [], "an orphan is left")
    finished = search.finished()
    assert 0 in finished
    results = search.study.root
    report = ("report", "--study", "it", "--json", "--results", str(results))
    done = autotune(*report, folder=results)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)

    code, stdout, stderr = search.run(*flags)
    assert code == 0, stderr
    assert finished.items() <= search.finished().items()
    trials = search.study.trials()
    ran = [
        t.spec.identity.candidate_hash
        for t in trials
        if t.spec.identity.role is not Role.CONFIRM
        and t.spec.provenance.repeat_of
        is None  # a busy machine disturbs a trial, which is run once more
        and t.result is not None
        and not t.result.outcome.is_platform_fault
    ]
    assert len(ran) == len(set(ran)), "a candidate was run twice"
    answer = json.loads(stdout.splitlines()[-1])
    check_answer(answer, search.study)
    export_study(search.study, tmp_path / "out")
    chosen = dict(answer["best"]["candidate"]["knobs"])
    assert micro_batch_in(tmp_path / "out") == chosen["micro_batch"]


def check_answer(answer: dict[str, Any], study: Study) -> None:
    """Check that the answer of a search is of its trials, and confirmed."""
    assert answer["study"] == "it"
    assert sum(answer["counts"].values()) == len(study.trials())
    trials = {t.spec.identity.number: t.spec.identity for t in study.trials()}
    for name in ("baseline", "best"):
        standing = answer[name]
        low, high = standing["samples_per_s_low"], standing["samples_per_s_high"]
        assert low <= standing["samples_per_s"] <= high
        assert standing["peak_memory_bytes"] > 0
        assert dict(standing["candidate"]["knobs"]) == trials[standing["trial"]].knobs
    assert answer["speedup"]["low"] <= answer["speedup"]["ratio"] <= answer["speedup"]["high"]
    confirmed = {i.candidate_hash for i in trials.values() if i.role is Role.CONFIRM}
    assert trials[answer["best"]["trial"]].candidate_hash in confirmed
    assert study.table_file.exists()
    assert study.best_folder.exists()


@pytest.mark.thorough
def test_reduced_trials_train_what_they_say_and_the_best_is_a_whole_one(tmp_path):
    """One fleet for both searches: its templates make a model of any depth."""
    study = Study(tmp_path / "results", "it")
    study.trials_folder.mkdir(parents=True)
    fleet = local_fleet(CPU, world=2)
    try:
        for trials, fidelity in ((2, "layers=1"), (4, "layers=1,world=1")):
            job = tiny_job(
                tmp_path,
                precision="fp32",
                fidelity=fidelity,
                space="smoke",
                trials=trials,
                diagnose=False,
            )
            engine = DeepSpeedEngine(job, CPU)
            session = Session(
                job=job,
                engine=engine,
                place=RecordedPlace(CPU, {}),
                study=study,
                known_lattice=build_lattice(load_space(job.space, KNOBS), engine),
            )
            session.place.compares = False  # it takes longer than it tells here
            done = run_search(
                session,
                fleet,
                observer=Notebook(),
                interrupt=Interrupt(),
                steering=steering_of(session),
            )
    finally:
        fleet.close()
    tried = History(study.trials()).reduced.tried  # what was disturbed has run twice
    fidelities = [vars(t.trials[0].spec.identity.fidelity) for t in tried]
    assert fidelities == [{"layers": 1, "world": None}, {"layers": 1, "world": 1}]
    for each, n_ranks in zip(tried, (2, 1), strict=True):
        assert each.measured is not None, each.trials[-1].result.evidence
        assert each.measured.start is Start.WARM
        assert each.measured.read_back["n_params"] == with_layers(job.model, 1).shape.n_params
        assert each.measured.read_back["dp"] == n_ranks == len(each.measured.devices)
    best = next(t for t in study.trials() if t.spec.identity.number == done.best.trial)
    assert best.spec.identity.fidelity is None
    assert best.result.read_back["n_params"] == job.model.shape.n_params
