"""The parts of `benchmarks/search_wall_clock.py` that start no processes."""

import json
import sys
from pathlib import Path

import pytest

from autotune.app.session import open_session
from autotune.contract import Outcome, Role, TrialResult
from tests.jobs import TINY

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import deepspeed_autotuner
from wall_clock_searches import Row, Search, Table, search_table, summarize_searches

SPACE = {
    "name": "few",
    "description": "for a test",
    "knobs": {"zero.stage": [0, 1, 2, 3], "micro_batch": {"powers_of_two": [1, 4]}},
}


@pytest.fixture
def session(tmp_path):
    model, space = tmp_path / "tiny" / "config.json", tmp_path / "few.yaml"
    model.parent.mkdir()
    model.write_text(json.dumps(TINY))
    space.write_text(json.dumps(SPACE))
    job = {"model": str(model), "seq_len": 16, "global_batch": 8, "world": 2, "study": "every"}
    return open_session(None, {**job, "space": str(space)}, results=tmp_path / "results")


def table_of(session, rate):
    rows = {}
    for number, candidate in enumerate(session.lattice.candidates):
        samples_per_s = rate(candidate)
        result = TrialResult(
            number=number,
            role=Role.SEARCH,
            candidate_hash=candidate.hash,
            outcome=Outcome.OK if samples_per_s else Outcome.OOM,
            wall_s=2.0,
        )
        rows[candidate.hash] = Row(
            candidate=candidate, samples_per_s=samples_per_s, n_runs=1, result=result
        )
    return Table(rows=rows, deviation=0.01)


def test_a_table_says_what_is_near_its_best(session):
    table = table_of(session, lambda c: 100.0 if c["zero.stage"] == 1 else 99.0 - c.micro_batch)
    assert table.best.candidate["zero.stage"] == 1
    near = [row.candidate for row in table.rows.values() if table.is_near(row.candidate)]
    assert len(near) == table.n_near == 3 + 3, "1% below, and micro-batch 1: 2% below"
    assert {c.micro_batch for c in near if c["zero.stage"] != 1} == {1}


@pytest.mark.parametrize("sampler", ["calibrated", "tpe"])
def test_a_search_ends_once_it_is_near_the_best(session, sampler):
    n = len(session.lattice.candidates)

    def rate(candidate):
        return 100.0 if candidate.values == best.values else 50.0

    best = next(c for c in session.lattice.candidates if c["zero.stage"] == 3)
    found = search_table(session, table_of(session, rate), sampler=sampler, seed=1, cap=n)
    assert found.trials_to_near == found.n_trials <= n
    assert found.seconds_to_near == found.seconds == 2.0 * found.n_trials


def test_a_search_that_is_not_near_says_so(session):
    rates = iter(range(10, 200, 10))
    table = table_of(session, lambda _: float(next(rates)))
    found = search_table(session, table, sampler="grid", seed=0, cap=1)
    assert (found.trials_to_near, found.n_trials) == (None, 2), "the baseline, and one"


def test_unsolved_searches_count_with_what_they_had():
    searches = [
        Search(
            sampler="grid",
            seed=seed,
            trials_to_near=near,
            seconds_to_near=None if near is None else 3.0 * near,
            n_trials=10,
            seconds=30.0,
        )
        for seed, near in enumerate((4, None))
    ]
    assert summarize_searches(searches) == {
        "searches": 2,
        "mean_trials_to_2pct": 7,
        "max_trials_to_2pct": 10,
        "mean_seconds_to_2pct": 21,
        "unsolved": 1,
    }


@pytest.fixture
def tuned(tmp_path):
    """What the autotuner leaves after two experiments, one of which failed."""

    def leave(*, chooses):
        results = tmp_path / "results"
        for name, stage, rate in (("z0_a", 0, 12.5), ("z2_b", 2, 20.0), ("z3_c", 3, None)):
            folder = results / name
            folder.mkdir(parents=True)
            config = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 3}
            (folder / "ds_config.json").write_text(json.dumps(config))
            (folder / "stderr.log").write_text("Traceback\nKeyError: 'hostfile'\n\n")
            if rate is not None:
                (folder / "metrics.json").write_text(json.dumps({"throughput": rate}))
            if chooses and stage == 0:
                (results / "ds_config_optimal.json").write_text(json.dumps(config))
        return tmp_path

    return leave


def test_what_the_autotuner_chose_is_read_back(tuned):
    found = deepspeed_autotuner.judged(tuned(chooses=True), 0, 60.0, "one\n\rtwo\n")
    assert (found.outcome, found.chosen_by) == ("chose", "autotuner")
    assert (found.stage, found.micro_batch) == (0, 3)
    assert found.last_lines == ("one", "two")
    failed = [each for each in found.experiments if each["samples_per_s"] is None]
    assert [each["said"] for each in failed] == ["KeyError: 'hostfile'"]


@pytest.mark.parametrize(
    ("returncode", "outcome"), [(None, "out of time"), (1, "failed"), (0, "chose nothing")]
)
def test_without_a_choice_its_fastest_experiment_stands_for_it(
    tuned, returncode, outcome, tmp_path
):
    found = deepspeed_autotuner.judged(tuned(chooses=False), returncode, 60.0, "")
    assert (found.outcome, found.chosen_by) == (outcome, "its fastest experiment")
    assert found.stage == 2
    nothing = deepspeed_autotuner.judged(tmp_path / "elsewhere", 1, 1.0, "no gpu")
    assert (nothing.outcome, nothing.chosen_by, nothing.stage) == ("failed", "", None)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    assert deepspeed_autotuner.run(command, {}, log, tmp_path, limit_s=0.5) is None
