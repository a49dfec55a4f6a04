"""What a soak finds wrong, from reports and from whole soaks on a scripted fleet."""

import dataclasses
import json
from pathlib import Path

import pytest

from autotune.base.errors import StudyError
from autotune.contract import (
    RANKS_DIR,
    RESULT_FILE,
    Outcome,
    Phase,
    RankReport,
    Role,
    TrialResult,
    TrialSpec,
    to_dict,
    write_json,
)
from autotune.record.study import Study
from autotune.search.interrupt import Interrupt
from autotune.search.soak import STEPS_COMPARED, Soak, _slope, check_space, soak_trials
from autotune.trial.statistics import MIN_SAMPLES
from tests.search.scripted import GIB, Patient, ScriptedFleet, fault, ok, runner_of
from tests.trials import ds_config, files, spec

MIB = 2**20
SOAKED = 20
"""Steps before the checkpoint, with two of warm-up."""


def loss_of(step: int, rank: int) -> float:
    return 5.5 - 0.01 * step + 0.001 * rank


def report_of(
    trial: TrialSpec, rank: int, *, growth_bytes_per_s: float = 0.0, forgets: float = 0.0
) -> RankReport:
    """A rank that trained 20 steps, one per second."""
    begun = trial.measure.checkpoint.resumes_at or 0
    n_steps = SOAKED + trial.measure.checkpoint.steps_after
    return RankReport(
        rank=rank,
        phase=Phase.TEARDOWN,
        losses=[loss_of(begun + n, rank) * (1 + forgets * bool(begun)) for n in range(n_steps)],
        step_times_s=[1.0] * (SOAKED - 2),
        memory_samples=[
            {"elapsed_s": float(s), "host_rss": GIB, "private_data": GIB + s * growth_bytes_per_s}
            for s in range(SOAKED)
        ],
        checkpoint={"steps": begun or SOAKED, "seconds": 0.5},
    )


class SoakFleet(ScriptedFleet):
    """Leaves what the ranks of a soak leave."""

    how: dict[str, float] = {}  # noqa: RUF012  set per test, on an instance
    n_samples: int | None = None
    """Samples of memory of each rank; None: all."""

    def submit(self, spec: TrialSpec, folder: Path):
        self.wall_s = 30.0  # its ranks step for most of that
        saved = Path(spec.measure.checkpoint.folder)
        if spec.measure.checkpoint.resumes_at is None:
            saved.mkdir()
            (saved / "weights").write_bytes(b"w" * 1000)
        else:
            assert (saved / "weights").exists(), "the second half finds the checkpoint"
        (folder / RANKS_DIR).mkdir()
        for rank in range(spec.layout.world):
            path = folder / RANKS_DIR / f"{rank:02d}.json"
            report = report_of(spec, rank, **self.how)
            samples = report.memory_samples[: self.n_samples]
            write_json(path, to_dict(dataclasses.replace(report, memory_samples=samples)))
        return super().submit(spec, folder)


def steady(trial: TrialSpec) -> TrialResult:
    made = ok(trial, float(trial.layout.global_batch))  # a step a second
    return dataclasses.replace(made, step_times_s=[1.0] * (SOAKED - 2))


def record(folder: Path) -> Study:
    study = Study(folder, "soak")
    study.trials_folder.mkdir(parents=True)
    return study


def soak(
    folder: Path, behave=steady, how: dict[str, float] | None = None, n_samples: int | None = None
) -> tuple[Soak, SoakFleet]:
    fleet = SoakFleet(behave)
    fleet.how, fleet.n_samples = how or {}, n_samples
    ran = soak_trials(
        spec(memory_limit_bytes=8 * GIB, timeout_s=100.0),
        files(ds_config()),
        minutes=2.0,
        runner=runner_of(record(folder), fleet),
    )
    assert ran is not None
    return ran, fleet


def test_two_halves_in_fresh_processes_with_a_checkpoint_between(tmp_path: Path):
    ran, fleet = soak(tmp_path)
    first, second = fleet.specs
    assert {s.identity.role for s in fleet.specs} == {Role.SOAK}
    assert (first.measure.budget_s, second.measure.budget_s) == (60.0, 60.0)
    assert first.measure.timeout_s == 60 + 200
    saved, resumed = first.measure.checkpoint, second.measure.checkpoint
    assert (saved.resumes_at, resumed.resumes_at) == (None, SOAKED)
    assert saved.steps_after == STEPS_COMPARED
    assert ran.size_bytes == 1000
    assert not Path(saved.folder).exists(), "checkpoints are not left on the disk"
    assert ran.failures == []
    assert ran.unknown == []
    assert ran.loss_deviation == 0
    kept = ran.checkpoint
    assert (kept.steps, kept.load_s, kept.steps_compared) == (SOAKED, 0.5, STEPS_COMPARED)
    trials = Study(tmp_path, "soak").trials()
    assert [t.result.outcome for t in trials if t.result is not None] == [Outcome.OK] * 2
    assert TrialSpec.from_dict(json.loads(json.dumps(to_dict(second)))) == second


@pytest.mark.parametrize(
    ("behave", "how", "failures"),
    [
        (steady, {"growth_bytes_per_s": MIB}, []),  # as heaps gain
        (
            steady,
            {"growth_bytes_per_s": 4 * MIB},
            ["memory grows: private_data by 14.1 GiB per hour over 15.0 s"],
        ),
        (
            lambda s: fault(s, Outcome.INVALID, "no resume") if s.identity.number else steady(s),
            {},
            ["second half: invalid: no resume [script]"],
        ),
        (steady, {"forgets": 0.01}, ["does not hold all of the training"]),
        (
            lambda s: ok(s, 4.0, peak=9 * GIB),
            {},
            [f"{one} half: peak memory 9 GiB is above the 8 GiB" for one in ("first", "second")],
        ),
        (
            lambda s: fault(s, Outcome.OOM, "out of memory"),
            {},
            ["first half: oom: out of memory [script]"],
        ),
    ],
)
def test_what_fails_a_soak(tmp_path: Path, behave, how: dict[str, float], failures: list[str]):
    ran, fleet = soak(tmp_path, behave, how)
    assert len(fleet.specs) == len(ran.halves)
    assert all(part in text for part, text in zip(failures, ran.failures, strict=True))
    assert (ran.loss_deviation or 0.0) == pytest.approx(how.get("forgets", 0.0))


def test_memory_that_was_not_judged_is_no_pass(tmp_path: Path):
    (first, _) = soak(tmp_path / "whole")[1].specs
    ran, _ = soak(tmp_path, n_samples=first.measure.min_steps)
    assert (ran.failures, ran.unknown) == ([], []), "the fewest steps suffice"
    short = [
        dataclasses.replace(report, memory_samples=report.memory_samples[:6])
        for report in ran.halves[1].reports
    ]
    ran.halves[1] = dataclasses.replace(ran.halves[1], reports=short)
    (unknown,) = ran.unknown
    assert unknown.startswith("second half: whether memory grows is not known: 5 samples")
    assert unknown.endswith("it takes 6: give more --minutes")
    assert ran.failures == []


def test_losses_that_were_not_compared_are_no_pass(tmp_path: Path):
    ran, _ = soak(tmp_path)
    silent = [dataclasses.replace(report, losses=[1.0]) for report in ran.halves[1].reports]
    ran.halves[1] = dataclasses.replace(ran.halves[1], reports=silent)
    (unknown,) = ran.unknown
    assert "not every rank has 4 losses" in unknown
    assert ran.failures == []


def test_one_jump_is_no_growth():
    times = [float(t) for t in range(20)]
    for n in (MIN_SAMPLES, 9, 20):
        for at in range(n + 1):
            assert _slope(times[:n], [100.0] * at + [200.0] * (n - at)) == 0, (n, at)
    assert _slope(times, [3 * t for t in times]) == pytest.approx(3)
    assert _slope(times, [100.0 * (t // 5) for t in times]) > 0, "a leak in three jumps"
    assert _slope([1.0], [2.0]) == 0


def test_an_interrupt_ends_what_runs_and_the_record_says_so(tmp_path: Path):
    fleet = SoakFleet(steady, n_polls=10**6)
    interrupt = Interrupt()
    interrupt.request()
    ran = soak_trials(
        spec(),
        files(ds_config()),
        minutes=1.0,
        runner=runner_of(record(tmp_path), fleet, interrupt),
    )
    assert ran is None
    assert fleet.running == []
    results = [trial.result for trial in Study(tmp_path, "soak").trials()]
    assert [r.outcome for r in results if r is not None] == [Outcome.CANCELLED]


def test_a_soak_that_was_interrupted_goes_on_with_its_second_half(tmp_path: Path):
    kept, fleet = record(tmp_path), SoakFleet(steady, n_polls=3)
    given = (spec(), files(ds_config()))
    runner = runner_of(kept, fleet, Patient(3))
    assert soak_trials(*given, minutes=1.0, runner=runner) is None
    assert [s.measure.checkpoint.resumes_at for s in fleet.specs] == [None, SOAKED]
    again = SoakFleet(steady)
    ran = soak_trials(*given, minutes=1.0, runner=runner_of(kept, again))
    assert [s.measure.checkpoint.resumes_at for s in again.specs] == [SOAKED]
    assert (len(ran.halves), ran.failures, ran.size_bytes) == (2, [], 1000)
    assert not list(kept.folder.rglob("weights"))


def test_a_record_that_cannot_be_read_costs_no_checkpoint(tmp_path, monkeypatch):
    kept = record(tmp_path)
    given = (spec(), files(ds_config()))
    cut_short = runner_of(kept, SoakFleet(steady, n_polls=3), Patient(3))
    assert soak_trials(*given, minutes=1.0, runner=cut_short) is None

    def refuse(_: Study) -> None:
        raise StudyError("spec.json: not valid JSON")

    monkeypatch.setattr(Study, "trials", refuse)
    with pytest.raises(StudyError, match="not valid JSON"):
        soak_trials(*given, minutes=1.0, runner=runner_of(kept, SoakFleet(steady)))
    assert list(kept.folder.rglob("weights"))


def test_a_soak_that_was_killed_in_its_first_half_begins_anew(tmp_path: Path):
    kept, given = record(tmp_path), (spec(), files(ds_config()))
    assert soak_trials(*given, minutes=1.0, runner=runner_of(kept, SoakFleet(steady))) is not None
    cut_short = runner_of(kept, SoakFleet(steady, n_polls=3), Patient(3))
    assert soak_trials(*given, minutes=1.0, runner=cut_short) is None
    for trial in kept.trials()[2:]:
        (trial.folder / RESULT_FILE).unlink()
    again = SoakFleet(steady)
    ran = soak_trials(*given, minutes=1.0, runner=runner_of(kept, again))
    assert [s.measure.checkpoint.resumes_at for s in again.specs] == [None, SOAKED]
    assert [half.spec.identity.number for half in ran.halves] == [4, 5]


def test_a_disk_without_room_is_said_before_minutes_are_spent(tmp_path: Path):
    check_space(tmp_path / "not" / "there", 1000)
    with pytest.raises(StudyError, match="a checkpoint of 100,000,000,000,000 parameters"):
        check_space(tmp_path, 10**14)
