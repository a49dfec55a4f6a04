"""Figures that cannot be: refused where a result comes into the record or is read from it."""

import dataclasses
import json
import math

import pytest

from autotune.contract import ContractError, Origin, Outcome, Role, check_result, read_json
from autotune.record.study import Study
from autotune.search.history import History
from tests.search.scripted import GIB, Notebook, make, ok, realistic, search
from tests.trials import spec

SPEC = spec()
RATE = 26.0
STEP_S = SPEC.layout.global_batch / RATE
GOOD = dataclasses.replace(
    ok(SPEC, RATE),
    wall_s=60.0,
    phases_s={"spawn": 57.0, "measured": 1.0},
    warmup_step_times_s=[2 * STEP_S],
    tokens_per_step=50.0,
    padded_tokens_per_step=60.0,
    devices=["localhost:0", "localhost:1"],
    host_construction_bytes=GIB,
)
NAN, INF = math.nan, math.inf


CANNOT_BE = [
    ("samples_per_s", {"samples_per_s": 5000.0}),
    ("samples_per_s", {"samples_per_s": RATE * 1.001}),
    ("samples_per_s", {"samples_per_s": None}),
    ("samples_per_s", {"samples_per_s": NAN}),
    ("samples_per_s", {"samples_per_s": INF}),
    ("samples_per_s", {"samples_per_s": -RATE}),
    ("samples_per_s", {"samples_per_s_low": RATE * 2}),
    ("samples_per_s", {"samples_per_s_high": RATE / 2}),
    ("samples_per_s", {"step_time_high_s": None}),
    ("step_time_s", {"step_time_s": STEP_S / 2, "samples_per_s": RATE * 2}),
    ("step_times_s", {"step_time_s": None}),
    ("step_time_s", {"step_times_s": [STEP_S / 200] * 5}),
    ("step_time_s", {"step_time_low_s": STEP_S * 1.1, "samples_per_s_high": RATE / 1.1}),
    ("step_time_s", {"step_time_high_s": STEP_S / 1.1, "samples_per_s_low": RATE * 1.1}),
    ("step_times_s", {"step_times_s": []}),
    ("step_times_s", {"step_times_s": [STEP_S] * (SPEC.measure.max_steps + 1)}),
    ("step_times_s, together", {"wall_s": 0.4, "phases_s": {}}),
    ("step_times_s: 0", {"warmup_step_times_s": [-1.0]}),
    ("step_times_s: 0", {"warmup_step_times_s": [NAN], "wall_s": 0.0, "phases_s": {}}),
    ("peak_memory_bytes", {"peak_memory_bytes": -1, "memory_bytes": {}}),
    ("memory_bytes: peak", {"memory_bytes": {"peak": -1}}),
    ("memory_bytes: peak", {"memory_bytes": {"peak": 2**40}}),
    ("memory_bytes: host_rss", {"memory_bytes": {"host_rss": -(2**40)}}),
    ("steps_skipped", {"steps_skipped": -1}),
    ("wall_s", {"wall_s": -1.0}),
    ("wall_s", {"wall_s": NAN}),
    ("wall_s", {"wall_s": INF}),
    ("phases_s: spawn", {"phases_s": {"spawn": -172_799.0}}),
    ("phases_s: import", {"phases_s": {"import": NAN}}),
    ("phases_s, together", {"phases_s": {"spawn": 40.0, "measured": 40.0}}),
    ("tokens_per_step", {"tokens_per_step": 2000.0}),
    ("tokens_per_step", {"tokens_per_step": -1.0}),
    ("role", {"role": Role.CONFIRM}),
]


def test_a_sound_result_passes():
    check_result(GOOD, SPEC)


@pytest.mark.parametrize(
    ("name", "changes"), CANNOT_BE, ids=[f"{n}-{name}" for n, (name, _) in enumerate(CANNOT_BE)]
)
def test_what_cannot_be_is_named(name, changes):
    with pytest.raises(ContractError, match=f"TrialResult: {name}: .*cannot be"):
        check_result(dataclasses.replace(GOOD, **changes), SPEC)


@pytest.mark.parametrize(
    "changes",
    [
        {"samples_per_s": RATE * (1 + 1e-9)},  # as JSON may round it
        {"wall_s": 57.0},  # two clocks' rounding
        # The driver's own, within the meter's room.
        {"peak_memory_bytes": 80 * GIB + GIB, "memory_bytes": {"peak": 80 * GIB + GIB}},
        {"peak_memory_bytes": None, "memory_bytes": {}},
        {"loss_last": NAN},
        {"wall_s": 0.0, "phases_s": {}, "devices": [], "origin": Origin.SIMULATED},
        {"phases_s": {}, "devices": [], "origin": Origin.REPLAYED},  # it ran that long elsewhere
        {"phases_s": {"measured": 50.0}, "steps_skipped": 40},  # those have no time
        {
            "step_time_low_s": None,
            "step_time_high_s": None,
            "samples_per_s_low": None,
            "samples_per_s_high": None,
            "origin": Origin.REPLAYED,
            **{"wall_s": 0.0, "phases_s": {}, "devices": []},
        },
    ],
)
def test_what_can_be_passes(changes):
    check_result(dataclasses.replace(GOOD, **changes), SPEC)


LIES = {
    "five thousand samples a second": {"samples_per_s": 5000.0},
    "less than nothing": {"peak_memory_bytes": -1, "memory_bytes": {"peak": -1}},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_result_that_cannot_be_is_damaged_and_its_candidate_runs_again(tmp_path, lie):
    """Edited on the disk after the search: as a file cut short is."""
    job, study = make(trials=2, sampler="grid"), Study(tmp_path, "s")
    answer = search(study, job)
    best = study.trials()[answer.best.trial]
    path = best.folder / "result.json"
    lied = {**read_json(path), **lie}
    path.write_text(json.dumps(lied))

    (trial,) = [t for t in study.trials() if t.problem]
    assert (trial.folder, trial.result) == (best.folder, None)
    assert next(iter(lie)) in trial.problem

    again = search(study, job)
    results = {t.spec.identity.number: t.result for t in study.trials()}
    assert results[answer.best.trial].outcome is Outcome.LOST
    assert "cannot be" in results[answer.best.trial].evidence
    assert read_json(path.with_name("result.json.damaged")) == json.loads(json.dumps(lied))
    assert again.best.candidate == answer.best.candidate
    assert again.best.samples_per_s == pytest.approx(answer.best.samples_per_s, rel=0.05)
    assert any(t.spec.provenance.retry_of == answer.best.trial for t in study.trials())


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_fleet_that_says_what_cannot_be_is_not_believed(tmp_path, lie):
    """Once: the candidate runs again. The figures never enter the standings."""
    study, notes, lied = Study(tmp_path, "s"), Notebook(), []

    def behave(told):
        result = realistic(told)
        if result.outcome is Outcome.OK and not lied:
            lied.append(told.identity.number)
            return dataclasses.replace(result, **lie)
        return result

    answer = search(study, make(trials=2, sampler="grid"), behave, observer=notes)
    trial = study.trials()[lied[0]]
    assert trial.result.outcome is Outcome.LOST
    assert next(iter(lie)) in trial.result.evidence
    assert (trial.folder / "result.json.damaged").is_file()
    found = History(study.trials()).find(answer.best.candidate)
    assert found.measured.samples_per_s < 1000
    assert answer.best.trial != lied[0]
