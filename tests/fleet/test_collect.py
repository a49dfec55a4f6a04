import dataclasses

import pytest

from autotune.contract import (
    MOST_LOSSES,
    NodeReport,
    Outcome,
    Phase,
    RankReport,
    Surroundings,
    TrialResult,
    to_dict,
    write_json,
)
from autotune.fleet.collect import collect
from autotune.fleet.node.environment import allowed_environment
from tests.cases import data_beside
from tests.trials import QUICK, spec

DATA = data_beside(__file__)


def ending(outcome=Outcome.LAUNCH, **seen):
    """How a trial on one node ended, by its coordinator and by what the node saw of it."""
    known = TrialResult.of(spec().identity, outcome, started_at_s=100.0, wall_s=20.0)
    return known, NodeReport(**{"launcher_code": 1, **seen})


def report(rank, *, phase=Phase.ENGINE_INIT, **fields):
    return RankReport(rank=rank, phase=phase, ended_at_s=10.0 + rank, **fields)


def collected(trial, folder, an_ending):
    known, node = an_ending
    return collect(trial, folder, known, [node])


def result_of(tmp_path, reports, an_ending, stderr="", trial=None):
    (tmp_path / "ranks").mkdir()
    for report in reports:
        write_json(tmp_path / "ranks" / f"{report.rank:02d}.json", to_dict(report))
    (tmp_path / "stderr.log").write_text(stderr)
    return collected(trial or spec(), tmp_path, an_ending)


def typed(fields):
    kinds = {"phase": Phase, "outcome": Outcome}
    return {name: kinds.get(name, lambda as_it_is: as_it_is)(v) for name, v in fields.items()}


@pytest.mark.cases("ranks", "end", "stderr", "expected")
def test_what_a_trial_came_to(tmp_path, ranks, end, stderr, expected):
    reports = [report(rank, **typed(fields)) for rank, fields in enumerate(ranks)]
    an_ending = ending(**{"launcher_code": 1, **typed(end)})
    result = result_of(tmp_path, reports, an_ending, stderr)
    assert {name: getattr(result, name) for name in expected} == expected


def test_one_that_stopped_early_is_measured_and_says_why(tmp_path):
    steps = [0.1, 0.101, 0.099] * 4
    stopped = {"step_times_s": steps, "warmup_step_times_s": [0.5, 0.2], "stopped_early": True}
    reports = [report(rank, phase=Phase.TEARDOWN, **stopped) for rank in (0, 1)]
    losing = spec(measure=dataclasses.replace(QUICK, losing_step_time_s=0.05))
    result = result_of(tmp_path, reports, ending(launcher_code=0), trial=losing)
    assert result.outcome is Outcome.STOPPED_EARLY
    assert result.outcome.is_measured
    assert (result.step_time_s, result.samples_per_s) == (0.1, pytest.approx(40.0))
    assert "at least 0.099 s" in result.evidence
    assert "after 12 steps" in result.evidence


def test_a_disturbed_trial_is_measured_and_marked(tmp_path):
    seen = Surroundings(cores=[0], elapsed_s=2.0, busy_s=1.8, stolen_s=0.0, throttled_s=0.0)
    fields = {"phase": Phase.TEARDOWN, "step_times_s": [0.1] * 20, "is_steady": False}
    reports = [report(0, cpu_s=1.0, surroundings=seen, **fields), report(1, **fields)]
    result = result_of(tmp_path, reports, ending(launcher_code=0))
    assert result.outcome is Outcome.OK
    assert result.disturbed == "other processes took 40% of core 0"
    assert not result.is_steady


def test_sigkill_is_out_of_memory_only_if_the_kernel_says_so(tmp_path):
    result = result_of(tmp_path, [report(0), report(1)], ending(exit_codes={"1": -9}))
    assert result.outcome is Outcome.CRASH
    assert "may have sent it" in result.evidence


@pytest.mark.cases("code", "how")
def test_a_launcher_that_ends_without_a_word_says_how(tmp_path, code, how):
    result = result_of(tmp_path, [], ending(launcher_code=code))
    assert (result.outcome, result.evidence) == (Outcome.LAUNCH, f"the launcher {how}")


@pytest.mark.cases("phase", "steps", "outcome", "said")
def test_a_timeout_teaches_only_after_the_first_step(tmp_path, phase, steps, outcome, said):
    slow = report(1, phase=Phase(phase), warmup_step_times_s=steps)
    quick = report(0, phase=Phase.MEASURED, warmup_step_times_s=[0.1])
    result = result_of(tmp_path, [quick, slow], ending(Outcome.TIMEOUT))
    assert result.outcome == outcome
    assert result.outcome.is_config_fault is bool(steps)
    assert said in result.evidence


def test_a_bounded_number_of_losses_is_kept(tmp_path):
    steps = {"phase": Phase.TEARDOWN, "step_times_s": [0.5] * 6, "losses": [1.0] * 900}
    result = result_of(tmp_path, [report(0, **steps), report(1, **steps)], ending(launcher_code=0))
    assert len(result.losses) == MOST_LOSSES


def test_a_half_written_report_is_not_a_crash_of_ours(tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "00.json").write_text('{"rank": 0, "phase"')
    result = collected(spec(), tmp_path, ending())
    assert result.outcome is Outcome.LAUNCH


def test_only_listed_variables_are_recorded_and_no_secret():
    recorded = allowed_environment(
        {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "NCCL_SECRET": "x", "HOME": "/x", "PATH": "x"}
    )
    assert recorded == {"NCCL_DEBUG": "INFO"}


STACKS = DATA["STACKS"]


def test_a_hung_rank_is_told_with_the_line_it_stood_at_and_not_one_that_waits_for_it(tmp_path):
    (tmp_path / "ranks").mkdir()
    for rank, file in enumerate(("distributed_c10d.py", "file_baton.py")):
        (tmp_path / "ranks" / f"{rank:02d}.stacks").write_text(STACKS.format(file=file))
        write_json(tmp_path / "ranks" / f"{rank:02d}.json", to_dict(report(rank)))
    result = collected(spec(), tmp_path, ending(Outcome.TIMEOUT))
    assert result.evidence == (
        "no first step after 120 s, hung in engine_init, at file_baton.py:61 in wait"
    )
    asked = dataclasses.replace(
        spec(), workload=dataclasses.replace(spec().workload, command=["python", "train.py"])
    )
    result = collected(asked, tmp_path, ending(Outcome.TIMEOUT))
    assert "hung in engine_init or after it, at" in result.evidence


def test_a_rank_that_was_stopped_from_outside_is_the_platforms_fault(tmp_path):
    steps = {"phase": Phase.MEASURED, "warmup_step_times_s": [0.1]}
    cut_off = ending(Outcome.TIMEOUT, stopped_ranks=[1])
    result = result_of(tmp_path, [report(0, **steps), report(1, **steps)], cut_off)
    assert result.outcome is Outcome.CRASH
    assert "SIGSTOP" in result.evidence
    assert result.evidence_source == "rank 1 in measured"
