"""Faults of the coordinator: killed at every phase, interrupted, doubled, without its folder."""

import contextlib
import functools
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.contract import RESULT_FILE, Outcome, Phase
from autotune.fleet.node.processes import processes_of
from autotune.fleet.reports import read_reports
from autotune.search.history import MAX_RETRIES, History
from tests.chaos.arena import Ground
from tests.chaos.disks import fill, make_read_only, needs_mounts, small_disk
from tests.chaos.faults import Fault, must
from tests.chaos.invariants import digests
from tests.chaos.resume import check_no_process, resume
from tests.searches import Search
from tests.trials import wait_until

_SEARCHING = ("--trials", "6")
"""More than the two trials that are there: it goes on with the search."""
_CONFIRMING = ("--trials", "1")
"""As many as there are: it goes on with the final comparison."""
_ANSWERING = ("--trials", "1", "--budget", "1s")
"""And no time for that: it answers at once."""
_DURING = {_SEARCHING: "search", _CONFIRMING: "final comparison", _ANSWERING: "answer"}
_ANSWER_S = 300.0

_MOMENTS = (
    ("after", "autotune.app.session:open_session", _SEARCHING),
    ("after", "autotune.record.study:Study.lock", _SEARCHING),
    ("before", "replace=job.yaml", _SEARCHING),
    ("after", "replace=job.yaml", _SEARCHING),
    ("before", "replace=study.json", _SEARCHING),
    ("after", "replace=study.json", _SEARCHING),
    ("after", "autotune.fleet.gang_fleet:GangFleet.prepare", _SEARCHING),
    ("after", "autotune.search.runner:Runner.recover", _SEARCHING),
    ("before", "replace=report.html", _SEARCHING),
    ("after", "mkdir=config", _SEARCHING),
    ("after", "write=ds_config.json", _SEARCHING),
    ("before", "replace=spec.json", _SEARCHING),
    ("after", "replace=spec.json", _SEARCHING),
    ("before", "autotune.fleet.gang_fleet:GangFleet.submit", _SEARCHING),
    ("after", "autotune.fleet.gang_fleet:GangFleet.submit", _SEARCHING),
    ("before", "autotune.fleet.gang_fleet:collect", _SEARCHING),
    ("before", "replace=result.json", _SEARCHING),
    ("after", "replace=result.json", _SEARCHING),
    ("before", "replace=spec.json", _CONFIRMING),
    ("before", "replace=result.json", _CONFIRMING),
    ("after", "autotune.app.run:run_search", _ANSWERING),
    ("before", "replace=table.parquet", _ANSWERING),
    ("before", "replace=table.csv", _ANSWERING),
    ("before", "autotune.app.run:export_study", _ANSWERING),
    ("after", "mkdir=best", _ANSWERING),
    ("after", "replace=ds_config.json", _ANSWERING),
    ("after", "replace=README.md", _ANSWERING),
    ("after", "autotune.app.run:export_study", _ANSWERING),
)
"""When a coordinator is killed by itself: (when, what, what it was about to do)."""
_AT_THE_START = "autotune.app.session:check_space_is_read"
FUNCTIONS = (*(what for _, what, _ in _MOMENTS if ":" in what), _AT_THE_START)
"""Those before or after which a coordinator sends a signal to itself."""


ASKED = {
    "coordinator killed": "tests/search/test_search_real.py::"
    "test_kill_9_loses_nothing_and_the_search_answers",
    "result cut short": "tests/search/test_loop.py::test_resumes_from_a_cut_at_any_write",
    "two coordinators": "tests/record/test_study.py::"
    "test_a_second_coordinator_is_refused_and_told_who_holds_it",
}
"""Tests that ask the same in every run: the short form does not ask again."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for when, what, doing in _MOMENTS:
        yield Fault(
            name=f"coordinator killed: {_DURING[doing]}, {when} {what}",
            inject=functools.partial(_killed_at, when, what, doing),
        )
    for phase in Phase:
        yield Fault(
            name=f"coordinator killed: ranks in {phase}",
            inject=functools.partial(_killed_in, phase),
            rounds=2,
        )
    for which in ("a candidate of the search", "the baseline"):
        yield Fault(
            name=f"coordinator killed: four times, while {which} runs",
            inject=functools.partial(_killed_again_and_again, which),
        )
    for name, inject, rounds in (
        ("Ctrl-C: once, while it starts", _interrupted_at_start, 1),
        ("Ctrl-C: once, a trial runs", functools.partial(_interrupted, 1), 3),
        ("Ctrl-C: twice, a trial runs", functools.partial(_interrupted, 2), 3),
        ("Ctrl-C: once, at the final comparison", _interrupted_at_last, 1),
        ("Ctrl-C: the terminal hangs up, and nobody reads what is said", _hung_up, 1),
        ("two coordinators: the second while the first runs", _second, 2),
        ("two coordinators: at the same time", _both_at_once, 2),
        ("results folder moved: while a trial runs", _moved, 2),
        ("result cut short: at any byte", _cut_short, 12),
        ("result cut short: nothing but zeros", _zeros, 2),
        ("result cut short: and the search goes on", _cut_and_run, 1),
    ):
        yield Fault(name=name, inject=inject, rounds=rounds, in_short=name in _SHORT)
    for name, inject in (
        ("results folder read-only: before it starts", _read_only),
        ("disk full: before the coordinator starts", _full_before),
        ("disk full: while the coordinator runs a trial", _full_meanwhile),
    ):
        yield Fault(name=name, inject=inject, needs=needs_mounts, in_short=name in _SHORT)


_SHORT = {
    "Ctrl-C: once, a trial runs",
    "disk full: while the coordinator runs a trial",
    "results folder moved: while a trial runs",
    "results folder read-only: before it starts",
}


def begun(ground: Ground, folder: Path | None = None) -> Search:
    """A search with a baseline and one trial or more in its record, in a folder of its own."""
    if ground.begun is None:
        first = Search(ground.folder())
        _kill_once(first, lambda _: lone_trial(first) is not None, "two have run")
        check_no_process(first)
        resume(first, first.finished())
        ground.begun = first.study.root.parent
    folder = folder or ground.folder()
    shutil.copytree(ground.begun, folder, dirs_exist_ok=True)
    return Search(folder)


@contextlib.contextmanager
def _unharmed(ground: Ground, folder: Path | None = None) -> Iterator[Search]:
    """A search that has begun; after what happens to it the next one has all that was there."""
    search = begun(ground, folder)
    before = digests(search.study)
    yield search
    _check_after(search, before)


def _killed_at(when: str, what: str, doing: tuple[str, ...], ground: Ground) -> None:
    search = begun(ground)
    before = digests(search.study)
    under = ("tests.chaos.coordinator", "SIGKILL", when, what)
    process = search.start(*doing, under=under)
    _, stderr = process.communicate(timeout=_ANSWER_S)
    must(process.returncode == -signal.SIGKILL, f"it was not killed: {stderr[-500:]}")
    _check_after(search, before)
    if doing is _ANSWERING:  # what it was about to hand out is whole the next time
        code, stdout, stderr = search.run(*doing)
        must(code == 0, f"the same search again: {code}: {stderr[-500:]}")
        must(json.loads(stdout.splitlines()[-1])["best"], "no best")
        _check_after(search, before)


def _killed_in(phase: Phase, ground: Ground) -> None:
    with _unharmed(ground) as search:
        _kill_once(search, lambda folder: _has_come_to(phase, folder), f"a trial comes to {phase}")


def _kill_once(search: Search, is_so: Callable[[Path], bool], what: str) -> int:
    """Kill a search once something is so of its next trial, whose number is returned."""
    number = search.study.next_number()
    folder = search.study.trial_folder(number)
    process = search.start(*_SEARCHING)
    try:
        wait_until(lambda: is_so(folder), what, _ANSWER_S)
    finally:
        process.kill()
        process.communicate()
    return number


def _killed_again_and_again(which: str, ground: Ground) -> None:
    """More often than a candidate may fail: it is nobody's fault, and nobody takes its place."""
    is_baseline = which == "the baseline"
    search = Search(ground.folder()) if is_baseline else begun(ground)
    ran = []
    for _ in range(MAX_RETRIES + 2):
        number = _kill_once(search, lambda at: bool(read_reports(at, 2)), "a trial runs")
        (spec,) = [t.spec for t in search.study.trials() if t.spec.identity.number == number]
        ran.append(spec.identity.candidate_hash)
    must(len(set(ran)) == 1, f"another took its place: {ran}")
    history = resume(search, {})
    (tried,) = [t for t in history.tried if t.candidate.hash == ran[0]]
    must(tried.is_owed, "its candidate is given up")
    check_no_process(search)


def _has_come_to(phase: Phase, folder: Path) -> bool:
    if phase is Phase.SPAWN:
        return folder.exists() and bool(processes_of(folder))
    order = list(Phase)
    reports = read_reports(folder, 2)
    return any(order.index(r.phase) >= order.index(phase) for r in reports)


def _check_after(search: Search, before: dict[int, str]) -> None:
    """Nothing is left, and the next search has all that was there."""
    check_no_process(search)
    resume(search, before)


def _until_a_trial_runs(search: Search, doing: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start it; returns once it has a trial with ranks."""
    process = search.start(*doing)
    folder = search.study.trial_folder(search.study.next_number())
    wait_until(lambda: read_reports(folder, 2), "a trial runs", _ANSWER_S)
    return process


def _interrupted_at_start(ground: Ground) -> None:
    with _unharmed(ground) as search:
        under = ("tests.chaos.coordinator", "SIGINT", "before", _AT_THE_START)
        _ended(search.start(*_SEARCHING, under=under), 130)


def _interrupted(times: int, ground: Ground) -> None:
    with _unharmed(ground) as search:
        process = _until_a_trial_runs(search, _SEARCHING)
        process.send_signal(signal.SIGINT)
        if times == 2:
            # A second SIGINT would merge with the first while that is pending.
            process.send_signal(signal.SIGTERM)
        stdout = _ended(process, 130)
        must(json.loads(stdout.splitlines()[-1])["interrupted"], "its answer does not say so")
        _check_results(search, is_drained=times == 1)


def _check_results(search: Search, *, is_drained: bool) -> None:
    """Every trial has a result, and none was cancelled where the last one was to end."""
    results = [trial.result for trial in search.study.trials()]
    must(None not in results, "a trial has no result")
    outcomes = [result.outcome for result in results if result is not None]
    must(not is_drained or Outcome.CANCELLED not in outcomes, "the running trial was not drained")


def _hung_up(ground: Ground) -> None:
    """Drained as by one Ctrl-C, although every word of it goes nowhere."""
    with _unharmed(ground) as search:
        process = _until_a_trial_runs(search, _SEARCHING)
        if process.stderr is not None:
            process.stderr.close()
        process.send_signal(signal.SIGHUP)
        code = process.wait(_ANSWER_S)
        must(code == 130, f"it ended with {code}")
        _check_results(search, is_drained=True)


def _interrupted_at_last(ground: Ground) -> None:
    with _unharmed(ground) as search:
        process = _until_a_trial_runs(search, _CONFIRMING)
        process.send_signal(signal.SIGINT)
        _ended(process, 130)


def _second(ground: Ground) -> None:
    with _unharmed(ground) as search:
        first = _until_a_trial_runs(search, _SEARCHING)
        code, _, stderr = search.run(*_SEARCHING)
        must(code == 2, f"the second ended with {code}")
        must(f"process {first.pid}" in stderr, f"it does not say who holds the study: {stderr}")
        first.send_signal(signal.SIGINT)
        _ended(first, 130)


def _both_at_once(ground: Ground) -> None:
    with _unharmed(ground) as search:
        both = [search.start(*_ANSWERING) for _ in range(2)]
        ends = [(each.communicate(timeout=_ANSWER_S)[1], each.returncode) for each in both]
        for stderr, code in ends:
            held = code == 2 and "another search holds this study" in stderr
            must(code == 0 or held, f"{code}: {stderr[-500:]}")
        must(any(code == 0 for _, code in ends), "neither of them did it")


def _moved(ground: Ground) -> None:
    """Away and back again: whatever was there before is there then."""
    with _unharmed(ground) as search:
        process = _until_a_trial_runs(search, _SEARCHING)
        results, away = search.study.root, search.study.root.with_name("moved")
        results.rename(away)
        _, stderr = process.communicate(timeout=_ANSWER_S)
        _check_refusal(process.returncode, stderr, "cannot be written")
        check_no_process(search)
        if results.exists():
            must(not any(results.rglob("*")), f"written anew: {[*results.rglob('*')]}")
            results.rmdir()
        away.rename(results)


def _cut_short(ground: Ground) -> None:
    share = (1 + ground.n_cuts % 12) / 13
    ground.n_cuts += 1
    _damage(ground, lambda text: text[: int(len(text) * share)])


def _zeros(ground: Ground) -> None:
    """What a power cut leaves on many a file system."""
    _damage(ground, lambda text: bytes(len(text)))


def _damage(ground: Ground, change: Callable[[bytes], bytes]) -> None:
    """It is no result any more, says so, is kept, and its candidate is owed another trial."""
    search = begun(ground)
    number = to_damage(search)
    result = _result_of(search, number)
    damaged = change(result.read_bytes())
    result.write_bytes(damaged)
    others = {n: digest for n, digest in digests(search.study).items() if n != number}
    history = resume(search, others)
    (lost,) = [t.result for t in history.trials if t.spec.identity.number == number]
    must(lost.outcome is Outcome.LOST, f"{lost.outcome}: {lost.evidence}")
    must("not readable as JSON" in lost.evidence, f"evidence: {lost.evidence!r}")
    must(result.with_name("result.json.damaged").read_bytes() == damaged, "it was not kept")
    (owed,) = [t for t in history.tried if any(x.spec.identity.number == number for x in t.trials)]
    must(owed.is_owed, "its candidate is not tried again")


def _cut_and_run(ground: Ground) -> None:
    search = begun(ground)
    number = to_damage(search)
    others = {n: digest for n, digest in digests(search.study).items() if n != number}
    result = _result_of(search, number)
    result.write_bytes(result.read_bytes()[:40])
    process = search.start(*_SEARCHING)

    def is_run_again() -> bool:
        trials = search.study.trials()
        return any(t.spec.provenance.retry_of == number and t.result is not None for t in trials)

    wait_until(is_run_again, "it is run again", _ANSWER_S)
    process.send_signal(signal.SIGINT)
    _ended(process, 130)
    again = [
        t.spec.identity.number
        for t in search.study.trials()
        if t.spec.provenance.retry_of == number
    ]
    must(len(again) == 1, f"run again as {again}")
    _check_after(search, others)


def to_damage(search: Search) -> int:
    """The number of a trial whose candidate has no other."""
    number = lone_trial(search)
    assert number is not None, "a search was not begun before it has one"
    return number


def lone_trial(search: Search) -> int | None:
    """One of the search that is settled and the only one of its candidate; None: none yet.

    The first two need not be: a disturbed trial is repeated next.
    """
    for tried in History(search.study.trials()).tried:
        is_lone = len(tried.trials) == 1 and tried.is_searched and tried.is_settled
        if is_lone and tried.measured is not None:
            return tried.measured.number
    return None


def _result_of(search: Search, number: int) -> Path:
    return search.study.trial_folder(number) / RESULT_FILE


@contextlib.contextmanager
def _on_disk(ground: Ground) -> Iterator[tuple[Path, Search]]:
    """A small disk, and a search on it that goes on once the disk is as it was.

    It has begun, unless no other fault has needed such a one yet.
    """
    with small_disk(ground.folder()) as disk:
        search = Search(disk) if ground.begun is None else begun(ground, disk)
        before = digests(search.study)
        yield disk, search
        _check_after(search, before)


def _read_only(ground: Ground) -> None:
    with _on_disk(ground) as (disk, search):
        make_read_only(disk)
        _refused(search, "Read-only file system")
        make_read_only(disk, read_only=False)


def _full_before(ground: Ground) -> None:
    with _on_disk(ground) as (disk, search):
        filler = fill(disk)
        _refused(search, "No space left")
        filler.unlink()


def _full_meanwhile(ground: Ground) -> None:
    with _on_disk(ground) as (disk, search):
        process = _until_a_trial_runs(search, _SEARCHING)
        filler = fill(disk)
        _, stderr = process.communicate(timeout=_ANSWER_S)
        _check_refusal(process.returncode, stderr, "No space left")
        filler.unlink()


def _refused(search: Search, why: str) -> None:
    code, _, stderr = search.run(*_SEARCHING)
    _check_refusal(code, stderr, why)


def _check_refusal(code: int, stderr: str, why: str) -> None:
    must(code == 2, f"it ended with {code}: {stderr[-500:]}")
    must("Traceback" not in stderr, f"a traceback: {stderr[-1500:]}")
    # Wherever the terminal's width broke it.
    must(why in " ".join(stderr.split()), f"it does not say {why!r}: {stderr[-500:]}")


def _ended(process: subprocess.Popen[str], code: int) -> str:
    stdout, stderr = process.communicate(timeout=_ANSWER_S)
    must(process.returncode == code, f"it ended with {process.returncode}: {stderr[-500:]}")
    must("Traceback" not in stderr, f"a traceback: {stderr[-1500:]}")
    return stdout
