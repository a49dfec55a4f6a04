"""Warm starts: each trial has processes of its own, and nothing of one reaches the next."""

import os
import signal
import time
from dataclasses import replace

import psutil
import pytest

from autotune.contract import STDERR_FILE, Outcome, Start
from autotune.fleet.node import warm
from autotune.fleet.node.processes import NodePart, processes_of
from autotune.fleet.node.ranks import LocalRanks
from autotune.fleet.reports import read_reports
from autotune.fleet.transports.local import local_fleet
from tests.trials import CPU, QUICK, agents, ds_config, files, spec, wait_until

pytestmark = pytest.mark.real

EIGHT = replace(QUICK, min_steps=8)
"""As many steps in each trial, so that their losses compare."""


@pytest.fixture
def fleet():
    fleet = local_fleet(CPU, world=2)
    yield fleet
    fleet.close()
    assert templates() == [], "a template outlives its fleet"


def templates() -> list[psutil.Process]:
    """The templates of this process's agents; the trials forked from them are their children."""
    children = [child for agent in agents() for child in agent.children()]
    return [c for c in children if "autotune.trial.warm" in c.cmdline()]


def submit(fleet, study, trial_spec):
    return fleet.submit(trial_spec, study.write_spec(trial_spec, files(ds_config())))


def run(fleet, study, number, start=Start.WARM, **changes):
    return submit(fleet, study, spec(number, start=start, measure=EIGHT, **changes)).wait()


def take_as_much(fleet, study, *results, within):
    """Whether two trials have the same peak of memory, or the lower of each and its repeat.

    A thread's stack counts whole while the thread lives, which on a busy machine may be longer.
    """
    one, other = (result.peak_memory_bytes for result in results)
    if one == pytest.approx(other, rel=within):
        return True
    again = [run(fleet, study, study.next_number(), start=result.start) for result in results]
    first, second = (
        min(a.peak_memory_bytes, b.peak_memory_bytes) for a, b in zip(results, again, strict=True)
    )
    return first == pytest.approx(second, rel=within)


def test_what_goes_wrong_in_a_trial_does_not_reach_the_next(fleet, study):
    """And all train as one that starts cold."""
    before = run(fleet, study, 0)
    broken = [
        run(fleet, study, 1, factory="hoards", memory_limit_bytes=200 * 2**20),
        run(fleet, study, 2, factory="is_killed"),
        run(fleet, study, 3, factory="hangs", timeout_s=5.0),
    ]
    after, cold = run(fleet, study, 4), run(fleet, study, 5, start=Start.COLD)

    assert [r.outcome for r in broken] == [Outcome.OOM, Outcome.CRASH, Outcome.TIMEOUT]
    assert {before.outcome, after.outcome, cold.outcome} == {Outcome.OK}
    assert {r.start for r in (before, *broken, after)} == {Start.WARM}
    assert cold.start is Start.COLD
    for other in (after, cold):
        assert (before.loss_first, before.loss_last) == (other.loss_first, other.loss_last)
        assert before.read_back == other.read_back
    assert take_as_much(fleet, study, after, before, within=0.02)
    assert take_as_much(fleet, study, after, cold, within=0.03), "2.1% were seen"
    assert len(templates()) == 1
    assert templates()[0].num_threads() == 1


@pytest.mark.thorough
def test_an_environment_has_a_template_of_its_own_and_an_idle_one_gives_way(study, monkeypatch):
    monkeypatch.setattr(warm, "MAX_TEMPLATES", 1)
    made = warm.WarmTemplates()
    try:
        evidence, pids = [], []
        for number, environment in enumerate(({}, {"MALLOC_TRIM_THRESHOLD_": "-1"})):
            asked = {
                "factory": "tells_environment",
                "start": Start.WARM,
                "environment": environment,
            }
            folder = study.write_spec(spec(number, **asked), files(ds_config()))
            part = NodePart(
                folder=str(folder.resolve()), devices=["0", "1"], began_at_s=time.monotonic()
            )
            ranks = LocalRanks(part, made)
            wait_until(ranks.advance, "it ends")
            # The launcher ends the slower rank once one has failed: either may have told.
            evidence.append("".join(report.evidence for report in read_reports(folder, 2)))
            pids += [t._process.pid for t in made._templates.values()]
    finally:
        made.close()
    assert "MALLOC_TRIM_THRESHOLD_ is None" in evidence[0]
    assert "MALLOC_TRIM_THRESHOLD_ is -1" in evidence[1]
    assert len(set(pids)) == 2, "one after the other"


def test_a_killed_template_takes_its_trial_along_and_another_takes_its_place(fleet, study):
    handle = submit(fleet, study, spec(0, factory="hangs", start=Start.WARM))
    wait_until(lambda: len(processes_of(study.folder)) >= 3, "launcher and two ranks are up")
    (template,) = templates()
    os.kill(template.pid, signal.SIGKILL)
    lost = handle.wait()
    wait_until(lambda: processes_of(study.folder) == [], "the trial ends with its template")

    assert lost.outcome.is_platform_fault, lost.evidence
    again = run(fleet, study, 1)
    assert (again.outcome, again.start) == (Outcome.OK, Start.WARM)


@pytest.mark.thorough
def test_where_a_template_cannot_start_trials_start_cold_and_their_log_says_why(
    fleet, study, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if 'autotune.trial.warm' in ' '.join(sys.orig_argv):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    first = run(fleet, study, 0, environment={"PYTHONPATH": path})
    assert (first.outcome, first.start) == (Outcome.OK, Start.COLD)
    log = (study.trial_folder(0) / STDERR_FILE).read_text()
    assert "importing left 2 threads, and only one may fork" in log

    after = run(fleet, study, 1)
    assert (after.outcome, after.start) == (Outcome.OK, Start.COLD), "it is not tried again"
    assert templates() == []


@pytest.mark.thorough
def test_a_trial_is_cancelled_after_its_template_died(fleet, study):
    handle = submit(fleet, study, spec(0, start=Start.WARM))
    wait_until(templates, "its template starts")
    (template,) = templates()
    template.kill()
    handle.cancel()
    assert handle.wait().outcome is Outcome.CANCELLED
    assert processes_of(study.folder) == []


@pytest.mark.thorough
def test_what_binds_threads_when_it_is_loaded_starts_cold(fleet, study):
    bound = run(fleet, study, 0, environment={"OMP_PROC_BIND": "true"})
    assert (bound.outcome, bound.start) == (Outcome.OK, Start.COLD)


@pytest.mark.thorough
def test_one_trial_is_cancelled_or_late_and_its_neighbour_goes_on(study):
    fleet = local_fleet(CPU, world=1)
    try:
        alone = {"world": 1, "dp": 1, "global_batch": 2, "start": Start.WARM}
        cancelled = submit(fleet, study, spec(0, **alone))
        neighbour = submit(fleet, study, spec(1, **alone))
        cancelled.cancel()  # while their template imports
        assert cancelled.wait().outcome is Outcome.CANCELLED
        result = neighbour.wait()
        assert (result.outcome, result.start) == (Outcome.OK, Start.WARM), result.evidence

        (template,) = templates()
        template.suspend()
        late = submit(fleet, study, spec(2, timeout_s=1.0, **alone)).wait()
        template.resume()
        assert (late.outcome, late.evidence) == (Outcome.LAUNCH, "no rank had started after 1 s")
        after = submit(fleet, study, spec(3, **alone)).wait()
        assert (after.outcome, after.start) == (Outcome.OK, Start.WARM), after.evidence
        assert template not in templates(), "one that hung is not used again"
    finally:
        fleet.close()
