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


def test_the_first_cause_wins_over_the_errors_that_it_made(tmp_path):
    comm = report(0, outcome=Outcome.COMM, evidence="closed by peer")
    oom = report(1, outcome=Outcome.OOM, evidence="can't allocate")
    result = result_of(tmp_path, [comm, oom], ending())
    assert result.outcome is Outcome.OOM
    assert (result.evidence, result.evidence_source) == ("can't allocate", "rank 1 in engine_init")


def test_what_differs_on_any_rank_is_told_once(tmp_path):
    differences = (["tp: asked 2"], ["stage: asked 1", "tp: asked 2"])
    reports = [
        report(rank, outcome=Outcome.INVALID, differences=differences[rank]) for rank in (0, 1)
    ]
    result = result_of(tmp_path, reports, ending())
    assert result.differences == ["stage: asked 1", "tp: asked 2"]


def test_what_is_cut_out_of_the_logs_is_recorded(tmp_path):
    assert result_of(tmp_path, [], ending(log_bytes_left_out=9)).log_bytes_left_out == 9


def test_a_driver_that_stopped_answering_is_said_and_the_outcome_stays(tmp_path):
    oom = report(1, outcome=Outcome.OOM, evidence="can't allocate")
    result = result_of(tmp_path, [report(0), oom], ending(driver_error="GPU is lost"))
    assert result.outcome is Outcome.OOM
    assert result.evidence == "can't allocate; GPU is lost"
    assert result.evidence_source == "rank 1 in engine_init"


def test_a_rank_that_a_signal_ended_is_the_cause_of_the_others(tmp_path):
    comm = report(0, outcome=Outcome.COMM, evidence="closed by peer")
    result = result_of(tmp_path, [comm, report(1)], ending(exit_codes={"0": 1, "1": -11}))
    assert (result.outcome, result.evidence) == (Outcome.CRASH, "ended by SIGSEGV")


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


@pytest.mark.parametrize(("oom_killed", "outcome"), [(True, Outcome.OOM), (False, Outcome.CRASH)])
def test_sigkill_is_out_of_memory_only_if_the_kernel_says_so(tmp_path, oom_killed, outcome):
    reports = [report(0), report(1)]
    result = result_of(tmp_path, reports, ending(exit_codes={"1": -9}, oom_killed=oom_killed))
    assert result.outcome is outcome
    assert ("may have sent it" in result.evidence) == (not oom_killed)


@pytest.mark.parametrize(
    ("exit_codes", "outcome", "evidence"),
    [
        ({"1": -15}, Outcome.CRASH, "ended by SIGTERM"),
        ({"0": 0, "1": -15}, Outcome.CRASH, "ended by SIGTERM"),
        # The launcher's own, to the ranks beside one that failed.
        ({"0": 1, "1": -15}, Outcome.LAUNCH, "the launcher ended with code 1"),
        ({"0": -15, "1": -11}, Outcome.CRASH, "ended by SIGSEGV"),
    ],
)
def test_sigterm_is_the_cause_only_where_no_rank_ended_otherwise(
    tmp_path, exit_codes, outcome, evidence
):
    reports = [report(0), report(1)]
    result = result_of(tmp_path, reports, ending(exit_codes=exit_codes, launcher_code=1))
    assert (result.outcome, result.evidence) == (outcome, evidence)


@pytest.mark.cases("code", "how")
def test_a_launcher_that_ends_without_a_word_says_how(tmp_path, code, how):
    result = result_of(tmp_path, [], ending(launcher_code=code))
    assert (result.outcome, result.evidence) == (Outcome.LAUNCH, f"the launcher {how}")


@pytest.mark.parametrize(
    ("phase", "steps", "outcome", "said"),
    [
        (Phase.IMPORT, [], Outcome.LAUNCH, "hung in import"),
        (Phase.ENGINE_INIT, [], Outcome.COMM, "hung in engine_init"),
        (Phase.WARM_UP, [], Outcome.COMM, "hung in warm_up"),
        (Phase.WARM_UP, [0.1], Outcome.TIMEOUT, "ended while warming up"),
        (Phase.MEASURED, [0.1], Outcome.TIMEOUT, "ended while measuring"),
    ],
)
def test_a_timeout_teaches_only_after_the_first_step(tmp_path, phase, steps, outcome, said):
    slow = report(1, phase=phase, warmup_step_times_s=steps)
    quick = report(0, phase=Phase.MEASURED, warmup_step_times_s=[0.1])
    result = result_of(tmp_path, [quick, slow], ending(Outcome.TIMEOUT))
    assert result.outcome is outcome
    assert result.outcome.is_config_fault is bool(steps)
    assert said in result.evidence


def test_a_log_full_of_the_word_error_is_no_failure(tmp_path):
    steps = {"phase": Phase.TEARDOWN, "step_times_s": [0.5] * 6, "losses": [4.0, 3.0]}
    reports = [report(0, **steps), report(1, **steps)]
    result = result_of(tmp_path, reports, ending(launcher_code=0), stderr="error: 0 errors\n" * 9)
    assert result.outcome is Outcome.OK
    assert result.evidence == ""
    assert result.samples_per_s == pytest.approx(2 * 1 * 2 / 0.5)
    assert (result.loss_first, result.loss_last) == (4.0, 3.0)


def test_losses_are_those_of_the_global_batch_in_the_steps_that_were_applied(tmp_path):
    steps = {"phase": Phase.TEARDOWN, "step_times_s": [0.5] * 6}
    reports = [
        report(0, **steps, losses=[9.0, 4.0, 3.0, 2.0], skipped=[0, 2]),
        report(1, **steps, losses=[9.0, 5.0, 9.0, 4.0, 1.0], skipped=[0, 2, 4]),
    ]
    result = result_of(tmp_path, reports, ending(launcher_code=0))
    assert result.outcome is Outcome.OK
    assert (result.losses, result.losses_skipped) == ([4.5, 3.0], 2)


def test_a_bounded_number_of_losses_is_kept(tmp_path):
    steps = {"phase": Phase.TEARDOWN, "step_times_s": [0.5] * 6, "losses": [1.0] * 900}
    result = result_of(tmp_path, [report(0, **steps), report(1, **steps)], ending(launcher_code=0))
    assert len(result.losses) == MOST_LOSSES


def test_a_trial_that_never_started_shows_the_last_error_line(tmp_path):
    stderr = "INFO fine\nModuleNotFoundError: No module named 'torch'\nbye\n"
    result = result_of(tmp_path, [], ending(launcher_code=1), stderr=stderr)
    assert result.outcome is Outcome.LAUNCH
    assert result.evidence == "ModuleNotFoundError: No module named 'torch'"
    assert result.evidence_source == "stderr.log"


def test_a_launcher_that_refuses_its_arguments_is_quoted(tmp_path):
    stderr = "usage: torchrun ...\ntorchrun: error: argument --node-rank: expected one argument\n"
    result = result_of(tmp_path, [], ending(launcher_code=2), stderr=stderr)
    assert result.evidence == "torchrun: error: argument --node-rank: expected one argument"


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


@pytest.mark.parametrize(
    "cut_off",
    [
        {"exit_codes": {"1": -11}},
        {"exit_codes": {"1": -9}, "oom_killed": True},
        {"outcome": Outcome.TIMEOUT},
        {"outcome": Outcome.CANCELLED},
    ],
)
def test_what_happens_after_the_last_measured_step_costs_no_figure(tmp_path, cut_off):
    measured = {"step_times_s": [0.5] * 6, "losses": [4.0]}
    reports = [
        report(0, phase=Phase.TEARDOWN, **measured),
        report(1, phase=Phase.DIAGNOSE, **measured),
    ]
    result = result_of(tmp_path, reports, ending(**cut_off))
    assert (result.outcome, result.step_time_s) == (Outcome.OK, 0.5)


def test_a_rank_that_still_measured_has_no_figure(tmp_path):
    measured = {"step_times_s": [0.5] * 6, "losses": [4.0]}
    reports = [
        report(0, phase=Phase.DIAGNOSE, **measured),
        report(1, phase=Phase.MEASURED, **measured),
    ]
    result = result_of(tmp_path, reports, ending(exit_codes={"1": -11}))
    assert (result.outcome, result.step_time_s) == (Outcome.CRASH, None)


def test_a_rank_that_was_stopped_from_outside_is_the_platforms_fault(tmp_path):
    steps = {"phase": Phase.MEASURED, "warmup_step_times_s": [0.1]}
    cut_off = ending(Outcome.TIMEOUT, stopped_ranks=[1])
    result = result_of(tmp_path, [report(0, **steps), report(1, **steps)], cut_off)
    assert result.outcome is Outcome.CRASH
    assert "SIGSTOP" in result.evidence
    assert result.evidence_source == "rank 1 in measured"
