"""What the next search makes of a study: every finished trial is there, and told once."""

from collections import Counter
from typing import Any

from autotune.app.session import open_session
from autotune.contract import Outcome
from autotune.fleet.node.ports import sweep_segments
from autotune.fleet.node.processes import processes_of
from autotune.search.history import History
from autotune.search.interrupt import Interrupt
from autotune.search.objective import Objective
from autotune.search.optuna_study import frozen_trials, make_axes
from autotune.search.runner import Runner
from tests.chaos.faults import must
from tests.chaos.invariants import Digests, check_record, unleased_segments
from tests.searches import Search
from tests.trials import wait_until


def check_no_process(search: Search) -> None:
    """No process of the study's trials is left, a moment after what they belonged to ended."""
    wait_until(lambda: not processes_of(search.study.folder), "a process is left")


def resume(search: Search, before: Digests) -> History:
    """Take the study over as the next search does, up to its first trial.

    Args:
        search: Whose study.
        before: Digests of the results that had been written before the fault.
    """
    session = open_session(None, search.flags, results=search.study.root)
    study = session.study
    study.lock()
    try:
        study.sweep()
        runner = Runner(record=study, fleet=_NoFleet(), interrupt=Interrupt(), note=lambda _: None)
        runner.recover(session.why_left_out)
    finally:
        study.unlock()
    sweep_segments()  # as a fleet does when it is made
    must(not (left := unleased_segments()), f"shared memory is left of ports {left}")
    check_record(study, before)
    half = [str(path) for path in study.folder.rglob(".*.json.*")]
    must(not half, f"half-written files are left: {half}")
    must(not runner.left_out, f"trials of this very job are left out: {runner.left_out}")
    axes = make_axes(session.lattice.values, runner.history)
    objective = Objective.of(session.job, session.environment)
    check_told(runner.history, frozen_trials(axes, runner.history, objective))
    return runner.history


def check_told(history: History, told: list[Any]) -> None:
    """Each candidate is told once, complete if one of its trials answers; none answered twice.

    A disturbed trial does not answer any more once its repeat does.
    """
    answering = [
        trial.spec
        for trial in history.explored.trials
        if trial.result is not None
        and not trial.result.outcome.is_platform_fault
        and trial.result.outcome is not Outcome.CANCELLED
    ]
    replaced = {spec.provenance.repeat_of for spec in answering}
    answers = Counter(
        s.identity.candidate_hash for s in answering if s.identity.number not in replaced
    )
    twice = [candidate for candidate, n in answers.items() if n > 1]
    complete = sum(trial.state.name == "COMPLETE" for trial in told)
    answered = sum(t.measured is not None or t.fault is not None for t in history.tried)
    must(not twice, f"ran twice: {twice}")
    told_of = f"{len(told)} told of {len(history.tried)} candidates, {complete} as complete"
    must(len(told) == len(history.tried) and complete == answered, f"{told_of} of {answered}")


class _NoFleet:
    """A fleet that is not asked for anything."""

    def capacity(self, world: int) -> int:
        return 1

    def quarantined(self) -> tuple[str, ...]:
        return ()

    def submit(self, *_: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError
