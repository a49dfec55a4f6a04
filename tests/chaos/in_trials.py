"""Faults of a rank, and what a trial must come to: the outcome with its evidence."""

import functools
from collections.abc import Iterator
from typing import Any

from autotune.contract import RANKS_DIR, STACKS_FILE, Outcome, Start, TrialResult
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must

_SIGNALS = ("sigkill", "sigsegv", "sigabrt")
_MEASURED = ("forward", "backward", "optimizer")
_PHASES = {
    "build": "model",
    "initialize": "engine_init",
    "first": "warm_up",
    **dict.fromkeys(_MEASURED, "measured"),
}
_LIMIT_BYTES = 200 * 2**20

_HANGS = {
    ("hang", "build"): "models.py",
    ("hang", "first"): "models.py",
    ("hang", "forward"): "models.py",
    ("hang", "backward"): "models.py",
    ("hang", "optimizer"): "models.py",
    ("collective", "first"): "distributed_c10d.py",
    ("collective", "forward"): "distributed_c10d.py",
    ("data", "build"): "dataloader.py",
    ("lock", "initialize"): "file_baton.py",
    ("compiler", "initialize"): "subprocess.py",
    ("sigstop", "first"): "models.py",
    ("sigstop", "forward"): "models.py",
}
"""Where the last rank hangs: (action, place) -> the file that its stacks must name."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for start in Start:
        for signal in _SIGNALS:
            for place in _PHASES:
                yield _fault("rank killed", signal, place, start, Outcome.CRASH, signal.upper())
        for place in _PHASES:
            yield _fault(
                *("out of memory", "oom", place, start, Outcome.OOM, "memory"),
                memory_limit_bytes=_LIMIT_BYTES,
            )
            # What the engine raises while it is set up or in its first steps, it would again.
            raised = Outcome.CRASH if place in _MEASURED else Outcome.INVALID
            evidence = "this model cannot be trained so"
            yield _fault("exception on one rank", "raise", place, start, raised, evidence)
        for place in ("first", "forward"):
            evidence = "in optimizer step"
            yield _fault("non-finite loss", "nan", place, start, Outcome.NONFINITE, evidence)
        for place in ("build", "forward"):
            evidence = "No space left on device"
            yield _fault("disk full", "nospace", place, start, Outcome.CRASH, evidence)
        for action, place in _HANGS:
            yield _hang(action, place, start)


def _fault(
    subject: str,
    action: str,
    place: str,
    start: Start,
    outcome: Outcome,
    evidence: str,
    **changes: Any,
) -> Fault:
    return Fault(
        name=f"{subject}: {action} in {place}, {start}",
        inject=functools.partial(
            _inject, f"{action}_in_{place}", start, outcome, evidence, _PHASES[place], changes
        ),
        in_short=(action, place, start) in _SHORT,
    )


def _hang(action: str, place: str, start: Start) -> Fault:
    is_stopped = action == "sigstop"
    stepped = place in _MEASURED or action == "data"
    outcome = Outcome.TIMEOUT if stepped else Outcome.COMM
    subject = "rank killed" if is_stopped else "hang"
    return Fault(
        name=f"{subject}: {action} in {place}, {start}",
        inject=functools.partial(
            _inject_hang,
            f"{action}_in_{place}",
            start,
            Outcome.CRASH if is_stopped else outcome,
            "SIGSTOP" if is_stopped else ", at ",
            _HANGS[action, place],
        ),
        in_short=(action, place, start) in _SHORT,
    )


_SHORT = {
    ("sigstop", "forward", Start.WARM),
    ("collective", "forward", Start.WARM),
    ("compiler", "initialize", Start.WARM),
}
"""One place for each."""
_ENDINGS = "tests/fleet/test_local.py::test_an_ending_is_told_by_its_cause"
ASKED = dict.fromkeys(("out of memory", "exception on one rank", "non-finite loss"), _ENDINGS)
"""Tests that ask the same in every run: the short form does not ask again."""


def _inject(
    factory: str,
    start: Start,
    outcome: Outcome,
    evidence: str,
    phase: str,
    changes: dict[str, Any],
    ground: Ground,
) -> None:
    arena = ground.arena
    result = arena.run(factory, start, **changes)
    expect(result, outcome, evidence, start)
    must(phase in result.evidence_source, f"said to be in {result.evidence_source!r}")
    arena.check()


def _inject_hang(
    factory: str, start: Start, outcome: Outcome, evidence: str, file: str, ground: Ground
) -> None:
    arena = ground.arena
    result = arena.run(factory, start)
    expect(result, outcome, evidence, start)
    ranks = arena.study.trial_folder(result.number) / RANKS_DIR
    for rank in range(2):
        stacks = (ranks / STACKS_FILE.format(rank=rank)).read_text(errors="replace")
        must("most recent call first" in stacks, f"rank {rank} left no stacks")
    must(file in stacks, f"the stacks of the rank that hangs do not name {file}")
    arena.check()


def expect(result: TrialResult, outcome: Outcome, evidence: str, start: Start) -> None:
    """See that a trial ended as it must, with evidence, the way it was to start."""
    said = f"{result.outcome}: {result.evidence!r} ({result.evidence_source})"
    must(result.outcome is outcome, f"not {outcome} but {said}")
    must(evidence in result.evidence, f"{evidence!r} is not in {said}")
    must(result.evidence_source, f"no source: {said}")
    must(result.start is start, f"started {result.start}, not {start}")
