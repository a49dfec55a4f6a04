"""Fleets without devices: a table or the model answers, and what they say is marked."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import FleetError
from autotune.contract import Fidelity, Origin, Outcome, TrialResult, TrialSpec, to_dict
from autotune.fleet.base import AnsweringFleet
from autotune.fleet.replay import replayed
from autotune.fleet.simulate import Luck, simulated
from autotune.replay.groups import Configuration
from autotune.replay.rows import MeasuredRow
from tests.replay.tables import row
from tests.search.scripted import GIB, make, ok
from tests.search.test_sampler import spec_of
from tests.trials import changed


def spec(number: int = 0, **knobs: int) -> TrialSpec:
    return spec_of(make(), number, **{"zero__stage": 1, "micro_batch": 2, **knobs})


def test_a_trial_is_answered_when_it_is_looked_at(tmp_path: Path) -> None:
    fleet = AnsweringFleet(lambda s: ok(s, 100.0), Origin.REPLAYED)
    first = fleet.submit(spec(), tmp_path)
    with pytest.raises(FleetError, match="a trial is in flight"):
        fleet.submit(spec(1), tmp_path)
    result = first.poll()
    assert result.outcome is Outcome.OK
    assert result.started_at_s > 0
    assert first.poll() is result
    second = fleet.submit(spec(1), tmp_path)
    second.cancel()
    cancelled = second.poll()
    assert cancelled.outcome is Outcome.CANCELLED
    assert fleet.capacity(2) == 1
    assert fleet.quarantined() == ()


def test_closing_cancels_what_is_in_flight(tmp_path: Path) -> None:
    fleet = AnsweringFleet(lambda s: ok(s, 100.0), Origin.REPLAYED)
    trial = fleet.submit(spec(), tmp_path)
    fleet.close()
    result = trial.poll()
    assert result.outcome is Outcome.CANCELLED


def configuration(**changes: object) -> Configuration:
    cells = {name: str(value) for name, value in row(**changes).items()}
    return Configuration(knobs={}, rows=(MeasuredRow(where="runs.csv:7", cells=cells),))


def test_a_replay_says_what_the_table_says_and_where() -> None:
    asked = spec()
    answer = replayed(
        {
            asked.identity.candidate_hash: configuration(
                step_time_s=4, peak_mem_gb=3, peak_mem_unit="GiB"
            )
        }
    )
    result = answer(asked)
    assert result.origin is Origin.REPLAYED
    assert result.step_time_s == 4
    assert result.samples_per_s == asked.layout.global_batch / 4
    assert result.peak_memory_bytes == 3 * GIB
    assert result.evidence_source == "runs.csv:7"


def test_a_replayed_row_that_ran_out_of_memory_does_so_again() -> None:
    asked = spec()
    answer = replayed({asked.identity.candidate_hash: configuration(status="OOM", step_time_s="")})
    result = answer(asked)
    assert (result.outcome, result.origin) == (Outcome.OOM, Origin.REPLAYED)
    assert result.evidence == "the table says OOM"


def test_a_candidate_outside_the_table_is_refused() -> None:
    result = replayed({})(spec())
    assert (result.outcome, result.origin) == (Outcome.INVALID, Origin.REPLAYED)
    assert result.evidence == "the table has no run of this configuration"


SURE = Luck(seed=1, p_platform_fault=0.0)


def simulation(luck: Luck = SURE, *, peak: float = 4 * GIB):  # type: ignore[no-untyped-def]
    return simulated(lambda _: (2.0, peak), luck, device_memory_bytes=64 * GIB)


def test_a_simulation_is_near_what_the_model_says_and_marked() -> None:
    rates = []
    for size in (1, 2, 4, 8):
        for stage in range(4):
            result = simulation()(spec(micro_batch=size, zero__stage=stage))
            assert result.origin is Origin.SIMULATED
            assert result.outcome is Outcome.OK
            assert result.step_time_s is not None
            rates.append(np.log(result.step_time_s / 2.0))
    assert np.std(rates) == pytest.approx(SURE.time_error, rel=0.5)
    assert abs(np.mean(rates)) < 3 * SURE.time_error


def test_a_candidate_has_an_error_of_its_own_and_a_run_noise() -> None:
    first, again = (simulation()(spec(n)) for n in (0, 1))
    other = simulation()(spec(0, micro_batch=4))
    assert first.step_time_s is not None
    assert again.step_time_s is not None
    assert other.step_time_s is not None
    assert first.step_time_s != again.step_time_s
    between = abs(np.log(first.step_time_s / again.step_time_s))
    assert between < 6 * SURE.run_noise < abs(np.log(first.step_time_s / other.step_time_s))


def test_the_same_seed_simulates_the_same() -> None:
    asked = spec()
    assert simulation()(asked) == simulation()(asked)
    assert simulation(dataclasses.replace(SURE, seed=2))(asked) != simulation()(asked)


def test_a_reduced_run_errs_nearly_as_its_candidate_does() -> None:
    def error(asked: TrialSpec) -> float:
        step_time_s = simulation()(asked).step_time_s
        assert step_time_s is not None
        return float(np.log(step_time_s / 2.0))

    apart = []
    for size in (1, 2, 4, 8):
        for stage in range(4):
            whole = spec(micro_batch=size, zero__stage=stage)
            form = changed(
                whole,
                number=1,
                fidelity=Fidelity(layers=1),
                reduced_of=whole.identity.candidate_hash,
                candidate_hash="f" * 12,
            )
            apart.append(error(form) - error(whole))
    assert 0 < np.std(apart) < SURE.time_error / 2


def test_what_needs_more_than_there_is_runs_out_of_memory() -> None:
    result = simulation(peak=100 * GIB)(spec())
    assert result.outcome is Outcome.OOM
    assert result.evidence.startswith("simulated: out of memory")
    assert result.step_time_s is None


def test_the_platform_fails_as_often_as_it_is_told_to() -> None:
    often = dataclasses.replace(SURE, p_platform_fault=0.3)
    outcomes = [simulation(often)(spec(n)).outcome for n in range(200)]
    assert outcomes.count(Outcome.COMM) == pytest.approx(60, abs=20)
    assert set(outcomes) == {Outcome.COMM, Outcome.OK}


def test_the_origin_is_in_the_record_and_measured_where_an_older_one_does_not_say() -> None:
    result = simulation()(spec())
    data = to_dict(result)
    assert TrialResult.from_dict(data).origin is Origin.SIMULATED
    del data["origin"]
    assert TrialResult.from_dict(data).origin is Origin.MEASURED
