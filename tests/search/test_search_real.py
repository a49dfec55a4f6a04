"""Reduced trials of a search, on real DeepSpeed."""

import pytest

from autotune.contract import Start
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
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
from tests.jobs import CPU, tiny_job
from tests.search.scripted import Notebook

pytestmark = pytest.mark.real


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
