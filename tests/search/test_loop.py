import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.base.errors import FleetError, NothingFeasibleError, StudyError
from autotune.contract import SPEC_FILE, Outcome, Role, TrialResult, TrialSpec, to_dict, write_json
from autotune.record.answer import SearchAnswer
from autotune.record.study import Study
from autotune.search.base import Stage, StopReason
from autotune.search.interrupt import Interrupt
from autotune.search.loop import ProposalStage, overridden
from autotune.search.runner import MAX_FAULTS_IN_A_ROW
from tests.search.scripted import (
    GIB,
    Behaviour,
    Notebook,
    Patient,
    ScriptedFleet,
    candidate,
    fault,
    lattice_of,
    make,
    ok,
    realistic,
    search,
)

EXPLORING = (Role.BASELINE, Role.SEARCH)


def explored(study: Study) -> list[str]:
    """Candidates of the conclusive trials before the final comparison."""
    return [
        trial.spec.identity.candidate_hash
        for trial in study.trials()
        if trial.spec.identity.role in EXPLORING
        and trial.result is not None
        and not trial.result.outcome.is_platform_fault
    ]


def first_time(behaviour: Behaviour, broken: Outcome) -> Behaviour:
    """The platform ends the first try of every candidate."""
    seen: set[tuple[str, int | None]] = set()

    def behave(spec: TrialSpec) -> TrialResult:
        key = (spec.identity.candidate_hash, spec.identity.confirm_round)
        if key in seen:
            return behaviour(spec)
        seen.add(key)
        return fault(spec, broken)

    return behave


def test_baseline_search_comparison_in_this_order(study: Study):
    fleet, notes = ScriptedFleet(realistic), Notebook()
    result = search(study, make(), fleet=fleet, observer=notes)
    roles = list(dict.fromkeys(spec.identity.role for spec in fleet.specs))
    assert roles == [Role.BASELINE, Role.SEARCH, Role.CONFIRM]
    assert list(dict.fromkeys(s.stage for s in notes.snapshots)) == list(Stage)
    assert len(fleet.ran(Role.SEARCH)) == 8
    assert (result.stop_reason, result.interrupted) == (StopReason.TRIALS, False)
    assert result.best.samples_per_s >= result.baseline.samples_per_s
    assert result.config_of(result.best).exists()


def test_what_is_answered_at_once_is_not_waited_for(study: Study):
    class Hurried(Patient):
        def wait(self, seconds: float) -> None:
            raise AssertionError("every answer was there")

    search(study, make(trials=4), fleet=ScriptedFleet(realistic, n_polls=1), interrupt=Hurried())
    assert len(explored(study)) >= 4


def test_platform_faults_are_repeated_and_teach_nothing(study: Study):
    fleet, notes = ScriptedFleet(first_time(realistic, Outcome.COMM)), Notebook()
    result = search(study, make(trials=3), fleet=fleet, observer=notes)
    assert max(Counter(explored(study)).values()) == 1
    for spec in fleet.specs:
        if spec.provenance.retry_of is not None:
            said = (
                f"repeats trial {spec.provenance.retry_of}, which the platform ended: comm: said"
            )
            assert any(f"trial {spec.identity.number} {said}" in note for note in notes.notes)
            repeated = fleet.specs[spec.provenance.retry_of]
            assert repeated.identity.candidate_hash == spec.identity.candidate_hash
            assert repeated.identity.role is spec.identity.role
    assert len({s.identity.candidate_hash for s in fleet.ran(Role.SEARCH)}) == 3
    assert result.speedup is not None


def test_a_candidate_that_the_platform_always_fails_is_left_after_two_retries(study: Study):
    job = make(trials=4)
    cursed = candidate(job, zero__stage=3, micro_batch=1)

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.candidate_hash == cursed.hash:
            return fault(spec, Outcome.CRASH)
        return ok(spec, 100.0)

    fleet = ScriptedFleet(behave)
    lattice = lattice_of(job, stages=(3,), recompute=("none",))
    result = search(study, job, fleet=fleet, lattice=lattice)
    tries = [
        s.provenance.retry_of for s in fleet.specs if s.identity.candidate_hash == cursed.hash
    ]
    assert tries == [None, *sorted(tries[1:])]
    assert len(tries) == 3
    assert result.counts[Outcome.CRASH] == 3
    again = ScriptedFleet(behave)
    search(study, make(trials=9), fleet=again, lattice=lattice)
    assert again.ran(Role.SEARCH) == []


def test_slots_that_are_left_out_are_said_once_and_fewer_trials_run_at_once(study: Study):
    fleet = ScriptedFleet(realistic, n_gangs=2, n_polls=2)
    behave = fleet.behave

    def loses_a_slot(spec: TrialSpec) -> TrialResult:
        if spec.identity.number == 3 and not fleet.left_out:
            fleet.left_out, fleet.n_gangs = ("localhost:0",), 1
        return behave(spec)

    fleet.behave = loses_a_slot
    notebook = Notebook()
    search(study, make(trials=8), fleet=fleet, observer=notebook)
    assert sum("localhost:0 is left out" in note for note in notebook.notes) == 1
    assert len(fleet.ran(Role.SEARCH)) == 8


def test_a_retry_leaves_the_final_comparison_its_time(study: Study):
    """120 s, 10 s each, half kept: what the last ones are owed would eat it up."""
    job = make(trials=4, budget="120s")

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.role is Role.SEARCH and spec.layout.micro_batch != 4:
            return fault(spec, Outcome.COMM)
        return ok(spec, 100.0 + spec.layout.micro_batch)

    fleet = ScriptedFleet(behave)
    lattice = lattice_of(job, stages=(0,), recompute=("none",))
    result = search(study, job, fleet=fleet, lattice=lattice)
    assert len(fleet.ran(Role.BASELINE)) + len(fleet.ran(Role.SEARCH)) == 6
    assert result.speedup is not None
    again = ScriptedFleet(behave)
    search(study, make(trials=4, budget="60s"), fleet=again, lattice=lattice)
    assert again.ran(Role.SEARCH) == []


def test_the_time_that_a_final_comparison_lacks_is_said(study: Study):
    notes = Notebook()
    search(study, make(trials=2, budget="35s"), observer=notes)
    said = [note for note in notes.notes if "shortest form takes up to" in note]
    assert [note.partition(":")[0] for note in said] == [
        "no time for a final comparison",
        "no final comparison",
    ]
    assert "are left after another trial. The same command with --budget 180s" in said[0]
    assert "The same command with --budget 180s goes on with it" in said[1]


def test_a_broken_platform_ends_the_search(study: Study):
    fleet = ScriptedFleet(lambda spec: fault(spec, Outcome.LAUNCH, "no such interpreter"))
    with pytest.raises(FleetError, match="no such interpreter"):
        search(study, make(), fleet=fleet)
    assert len(fleet.specs) == MAX_FAULTS_IN_A_ROW


@pytest.mark.parametrize("wall_s", [1.0, 700.0])
def test_where_all_trials_end_by_their_time_limit_that_is_named(study: Study, wall_s: float):
    fleet = ScriptedFleet(lambda spec: fault(spec, Outcome.LAUNCH, "no first step"))
    fleet.wall_s = wall_s
    with pytest.raises(FleetError) as caught:
        search(study, make(), fleet=fleet)
    is_told = "more than 10 min 00 s, search with a longer --trial-timeout" in caught.value.hint
    assert is_told == (wall_s > 600)


def test_trials_that_end_together_with_the_last_straw_are_recorded(study: Study):
    def behaviour(spec: TrialSpec) -> TrialResult:
        return fault(spec, Outcome.LAUNCH) if spec.identity.role is Role.SEARCH else ok(spec, 50.0)

    with pytest.raises(FleetError):
        search(study, make(trials=20), fleet=ScriptedFleet(behaviour, n_gangs=4))
    assert all(trial.result is not None for trial in study.trials())


def cut(study: Study, number: int, how: str) -> None:
    """Leave the record as a coordinator that died in the middle of trial `number` would."""
    for later in study.trials():
        if later.spec.identity.number > number:
            (later.folder / "result.json").unlink()
            (later.folder / "spec.json").unlink()
    folder = study.trial_folder(number)
    if how == "no spec":
        (folder / "result.json").unlink()
        (folder / "spec.json").unlink()
    elif how == "in flight":
        (folder / "result.json").unlink()
    else:
        text = (folder / "result.json").read_text()
        left = "\0" * len(text) if how == "zeros" else text[: len(text) // 2]
        (folder / "result.json").write_text(left)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, SearchAnswer]:
    """A whole search, of which each cut gets a copy."""
    study = Study(tmp_path_factory.mktemp("whole"), "scripted")
    return study, search(study, make(trials=6))


@pytest.mark.parametrize(
    ("number", "how"),
    [
        *itertools.product((0, 6, 12, 15), ("no spec", "in flight", "truncated result")),
        (6, "zeros"),
    ],
)
def test_resumes_from_a_cut_at_any_write(study: Study, searched, number: int, how: str):
    job, (known, whole) = make(trials=6), searched
    shutil.copytree(known.folder, study.folder, dirs_exist_ok=True)
    before = {
        t.spec.identity.number: t.result for t in study.trials() if t.spec.identity.number < number
    }
    cut(study, number, how)
    fleet, notes = ScriptedFleet(realistic), Notebook()
    result = search(study, job, fleet=fleet, observer=notes)
    after = {t.spec.identity.number: t.result for t in study.trials()}
    assert {n: after[n] for n in before} == before, "nothing finished is lost"
    assert max(Counter(explored(study)).values()) == 1, "nothing finished is run twice"
    searched = {
        t.spec.identity.candidate_hash
        for t in study.trials()
        if t.spec.identity.role is Role.SEARCH
    }
    assert len(searched) == 6
    assert result.baseline.candidate == whole.baseline.candidate
    assert result.speedup is not None
    if how != "no spec":
        assert after[number].outcome is Outcome.LOST
        assert [s.provenance.retry_of for s in fleet.specs].count(number) == 1
    if how in ("truncated result", "zeros"):
        assert "not readable" in after[number].evidence
        assert (study.trial_folder(number) / "result.json.damaged").exists()


def test_a_changed_space_continues_with_what_is_known(study: Study):
    job = make(trials=4)
    search(study, job, lattice=lattice_of(job, micro_batches=(1, 2), recompute=("none",)))
    fleet = ScriptedFleet(realistic)
    wider = lattice_of(make(trials=99), micro_batches=(1, 2, 4, 8), recompute=("none",))
    search(study, make(trials=99), fleet=fleet, lattice=wider)
    assert max(Counter(explored(study)).values()) == 1
    assert {c.hash for c in wider.candidates} <= set(explored(study))


def test_a_lost_candidate_that_has_become_illegal_is_left(study: Study):
    job = make(trials=4)
    search(study, job)
    last = [t for t in study.trials() if t.spec.identity.role is Role.SEARCH][-1]
    (last.folder / "result.json").unlink()
    fleet = ScriptedFleet(realistic)
    search(study, job, fleet=fleet, refused=lambda c: c.hash == last.spec.identity.candidate_hash)
    assert last.spec.identity.candidate_hash not in {
        s.identity.candidate_hash for s in fleet.specs
    }


def test_trials_of_another_job_are_left_out(study: Study):
    search(study, make(trials=3))
    for trial in study.trials()[::2]:  # their script has been edited since
        workload = replace(trial.spec.workload, digest="0" * 12, seq_len=32)
        write_json(trial.folder / SPEC_FILE, to_dict(replace(trial.spec, workload=workload)))
    notes, fleet = Notebook(), ScriptedFleet(realistic)
    result = search(study, make(trials=3, seq_len=32), fleet=fleet, observer=notes)
    assert len(fleet.ran(Role.SEARCH)) == 3
    assert any("another job" in note for note in notes.notes)
    assert result.best.trial >= fleet.specs[0].identity.number


def test_what_ended_beside_a_trial_that_could_not_start_is_written(study: Study):
    """A node's error against one trial comes after the results of the others."""
    fleet = ScriptedFleet(realistic, n_gangs=2)
    n_asked = 0

    def refuse(spec: TrialSpec) -> TrialResult:
        nonlocal n_asked
        n_asked += spec.identity.role is Role.SEARCH
        if n_asked == 1 and spec.identity.role is Role.SEARCH:
            raise FleetError("no port is free", "wait")
        return realistic(spec)

    fleet.behave = refuse
    with pytest.raises(FleetError, match="no port"):
        search(study, make(trials=4), fleet=fleet)
    ended = [t for t in study.trials() if t.spec.identity.role is Role.SEARCH and t.result]
    assert len(ended) == 1, "the other of the two that ran at once"


def test_a_folder_without_a_spec_is_said_and_left(study: Study):
    study.trial_folder(0).mkdir(parents=True)
    notes = Notebook()
    search(study, make(trials=1), observer=notes)
    assert any("0000: left out" in note for note in notes.notes)
    assert next(trial.spec.identity.number for trial in study.trials()) == 1


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_winner_whose_record_is_gone_runs_again_and_wins(study, sampler):
    job = make(trials=9, sampler=sampler)
    first = search(study, job)
    (study.trial_folder(first.best.trial) / "spec.json").write_text("{")
    fleet = ScriptedFleet(realistic)
    result = search(study, job, fleet=fleet)
    assert fleet.specs[0].identity.candidate_hash == first.best.candidate.hash
    assert fleet.ran(Role.CONFIRM) == [], "the comparison that was made still holds"
    assert result.best.candidate == first.best.candidate
    assert result.best.trial == fleet.specs[0].identity.number
    assert result.speedup == first.speedup
    third = ScriptedFleet(realistic)
    search(study, job, fleet=third)
    assert third.specs == [], "that was all there was to do"


def test_another_environment_is_said(study: Study):
    search(study, make(trials=1))
    state = json.loads(study.state_file.read_text())
    state["environments"][0]["deepspeed_version"] = "0.18.0"
    study.state_file.write_text(json.dumps(state))
    notes = Notebook()
    search(study, make(trials=2), observer=notes)
    assert any("deepspeed_version changed" in note for note in notes.notes)
    known = json.loads(study.state_file.read_text())["environments"]
    assert [e["deepspeed_version"] for e in known] == ["0.18.0", "0.19.8"]
    assert known[1]["since_trial"] > 0


def test_several_trials_at_once_but_never_in_baseline_and_comparison(study: Study):
    fleet = ScriptedFleet(realistic, n_gangs=3, n_polls=2)
    search(study, make(trials=12), fleet=fleet)
    assert fleet.most_at_once == {Role.BASELINE: 1, Role.SEARCH: 3, Role.CONFIRM: 1}
    assert len(fleet.ran(Role.SEARCH)) == 12
    assert max(Counter(explored(study)).values()) == 1


def test_nothing_starts_after_an_interrupt_that_came_while_it_was_proposed(study, monkeypatch):
    fleet, interrupt, propose = ScriptedFleet(realistic), Interrupt(), ProposalStage.next_run

    def interrupted(stage):
        interrupt.request()
        return propose(stage)

    monkeypatch.setattr(ProposalStage, "next_run", interrupted)
    assert search(study, make(), fleet=fleet, interrupt=interrupt).interrupted
    assert fleet.ran(Role.SEARCH) == []


def test_the_first_interrupt_drains_and_reports_what_there_is(study: Study):
    fleet, notes = ScriptedFleet(realistic, n_polls=9), Notebook()
    result = search(study, make(), fleet=fleet, observer=notes, interrupt=Patient(44))
    assert len([note for note in notes.notes if "waiting for the running trials" in note]) == 1
    assert (result.interrupted, result.stop_reason) == (True, StopReason.INTERRUPTED)
    assert fleet.ran(Role.CONFIRM) == []
    assert all(trial.result is not None for trial in study.trials())
    assert result.counts[Outcome.CANCELLED] == 0
    assert result.baseline is not None
    assert result.best is not None
    assert result.speedup is None


def test_a_trial_that_does_not_end_when_cancelled_is_lost_on_resume(study: Study):
    class Stuck(ScriptedFleet):
        def submit(self, spec, folder):
            trial = super().submit(spec, folder)
            trial.cancel = lambda: None
            return trial

    fleet = Stuck(realistic, n_polls=10**6)
    search(study, make(trials=1), fleet=fleet, interrupt=Patient(3, 4))
    assert [trial.result for trial in study.trials()] == [None]
    result = search(study, make(trials=1))
    assert result.counts[Outcome.LOST] == 1


def test_the_second_interrupt_ends_what_runs_and_it_is_tried_again(study: Study):
    for n in range(1, 5):
        fleet = ScriptedFleet(realistic, n_polls=10**6)
        ended = search(study, make(trials=2), fleet=fleet, interrupt=Patient(3, 4))
        assert (ended.interrupted, ended.counts) == (True, {Outcome.CANCELLED: n})
        assert fleet.running == []
    result = search(study, make(trials=2))
    assert result.counts[Outcome.CANCELLED] == 4
    assert result.speedup is not None


def test_interrupted_before_anything_ran_is_no_error(study: Study):
    interrupt = Patient()
    interrupt.request()
    fleet = ScriptedFleet(realistic)
    result = search(study, make(), fleet=fleet, interrupt=interrupt)
    assert fleet.specs == []
    assert (result.interrupted, result.best, result.speedup) == (True, None, None)


@pytest.mark.parametrize("write", ["write_spec", "write_result"])
def test_a_full_disk_ends_the_search_and_loses_nothing_that_was_written(study, monkeypatch, write):
    real, calls = getattr(Study, write), []

    def full(self, *args):
        calls.append(args)
        if len(calls) > 6:
            raise StudyError("no space left on device", "free some")
        return real(self, *args)

    fleet = ScriptedFleet(realistic, n_gangs=2, n_polls=2)
    with monkeypatch.context() as patch:
        patch.setattr(Study, write, full)
        with pytest.raises(StudyError, match="no space left"):
            search(study, make(), fleet=fleet)
    assert all(trial.cancelled for trial in fleet.running)
    kept = [t for t in study.trials() if t.result is not None]
    assert len(kept) >= 5
    again = ScriptedFleet(realistic)
    search(study, make(), fleet=again)
    assert not {t.spec.identity.candidate_hash for t in kept} & {
        s.identity.candidate_hash for s in again.specs if s.identity.role in EXPLORING
    }


def test_a_fleet_that_refuses_ends_the_search(study: Study):
    class Refusing(ScriptedFleet):
        def submit(self, spec, folder):
            if spec.identity.number == 2:
                raise FleetError("device 1 has gone")
            return super().submit(spec, folder)

    with pytest.raises(FleetError, match="has gone"):
        search(study, make(), fleet=Refusing(realistic))
    assert len([t for t in study.trials() if t.result is not None]) == 2
    assert search(study, make()).counts[Outcome.LOST] == 1


def test_nothing_feasible_says_what_was_seen_and_what_would_help(study: Study):
    with pytest.raises(NothingFeasibleError) as caught:
        search(study, make(trials=3, memory_limit="2GiB"))
    assert "oom x" in caught.value.message
    assert "CUDA out of memory" in caught.value.message
    assert "zero_offload" in caught.value.hint
    assert "more memory" in caught.value.hint


def test_nothing_within_the_head_room_says_the_smallest_peak(study: Study):
    def behave(spec: TrialSpec) -> TrialResult:
        return ok(spec, 100.0, peak=(9 + spec.layout.micro_batch) * GIB)

    with pytest.raises(NothingFeasibleError) as caught:
        search(study, make(trials=1, memory_limit="10GiB", head_room=0.2), behave)
    assert "smallest peak of a trial that ran is 10 GiB, allowed are 8 GiB" in caught.value.hint


def test_lowest_memory_at_no_less_than_the_floor(study: Study):
    job = make(objective="peak_memory", objective_floor=0.9, trials=99)
    result = search(study, job)
    ran = [t for t in study.trials() if t.result is not None and t.result.outcome.is_measured]
    fastest = max(t.result.samples_per_s for t in ran)
    kept = [t.result.peak_memory_bytes for t in ran if t.result.samples_per_s >= 0.9 * fastest]
    assert result.best.peak_memory_bytes == min(kept)
    assert result.best.samples_per_s >= 0.9 * fastest


def test_the_view_sees_every_trial_running(study: Study):
    fleet, notes = ScriptedFleet(realistic, n_gangs=2, n_polls=2), Notebook()
    search(study, make(), fleet=fleet, observer=notes)
    shown = {running.number for s in notes.snapshots for running in s.running}
    assert shown == {spec.identity.number for spec in fleet.specs}
    assert notes.snapshots[-1].running == ()
    assert [s.n_done for s in notes.snapshots] == sorted(s.n_done for s in notes.snapshots)


def test_the_state_says_why_it_ended_and_keeps_what_others_wrote(study: Study):
    study.write_state({"command": "search"})
    search(study, make(trials=1))
    state = study.read_state()
    assert state["command"] == "search"
    assert state["stop_reason"] == StopReason.TRIALS
    assert state["no_comparison"] == ""
    assert state["model"]["name"] == "tiny-gpt2"
    search(study, make(trials=1), compares=False)
    assert study.read_state()["no_comparison"] == "the table would only repeat itself"


@pytest.mark.parametrize("is_invalid", [True, False], ids=["invalid", "too large"])
def test_nothing_is_compared_where_only_the_baseline_ran_within_the_limits(study, is_invalid):
    first: list[str] = []

    def only_the_first(spec: TrialSpec) -> TrialResult:
        first.append(spec.identity.candidate_hash)
        if spec.identity.candidate_hash == first[0]:
            return ok(spec, 100.0)
        return fault(spec, Outcome.INVALID) if is_invalid else ok(spec, 200.0, peak=99 * GIB)

    answer = search(study, make(trials=3, memory_limit="24GiB"), only_the_first)
    assert answer.speedup is None
    assert answer.best.trial == answer.baseline.trial
    assert Role.CONFIRM not in {trial.spec.identity.role for trial in study.trials()}
    assert study.read_state()["no_comparison"] == "nothing but the baseline ran within the limits"


def test_a_key_of_the_user_s_that_gives_way_is_told_with_the_trial_that_it_gave_way_in() -> None:
    noted: dict[str, str] = {}
    for number, key, runs in ((3, "bucket", None), (4, "stage", 1), (5, "stage", 3)):
        spec: Any = SimpleNamespace(
            engine=SimpleNamespace(overridden={key: ["auto", runs]}),
            identity=SimpleNamespace(number=number),
        )
        for of, text in overridden(spec):
            noted.setdefault(of, text)
    assert list(noted.values()) == [
        "your configuration has bucket='auto': trial 3 runs without it, as its candidate needs",
        "your configuration has stage='auto': trial 4 runs with 1, as its candidate needs",
    ]
