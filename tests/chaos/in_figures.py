"""Faults of what is told: figures that no trial can have measured, and a clock that is set."""

import functools
import json
from collections.abc import Iterator
from typing import Any

from autotune.contract import Outcome, Start, read_json
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.in_coordinators import begun, check_damaged, to_damage
from tests.chaos.invariants import digests
from tests.chaos.resume import check_no_process, resume

_ANSWER_S = 300.0
_LIES: dict[str, dict[str, Any]] = {
    "samples_per_s of another step time": {"samples_per_s": 5000.0},
    "peak_memory_bytes below nothing": {"peak_memory_bytes": -1, "memory_bytes": {"peak": -1}},
    "peak_memory_bytes above its meters'": {"peak_memory_bytes": 10**17},
    "phases_s of days before": {"phases_s": {"spawn": -172_799.0}},
    "phases_s longer than the trial": {"phases_s": {"measured": 172_799.0}},
    "step_time_s that is not the median": {"step_time_s": 1e-6},
    "step_times_s that are not there": {"step_times_s": []},
    "wall_s that is no number": {"wall_s": float("nan")},
    "memory_bytes of another peak": {"memory_bytes": {"peak": 2**40}},
}
_JUMPS = ("back", "on", "before", "after")
"""Of `tests.chaos.false_clock`: two days back and on, before 1970, after the year 9998."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for name, lie in _LIES.items():
        yield Fault(
            name=f"figures that cannot be: {name}",
            inject=functools.partial(_lied, lie),
            in_short=name.startswith("samples_per_s"),
        )
    for jump in _JUMPS:
        for start in Start:
            yield Fault(
                name=f"clock set: {jump}, by a rank while it trains, {start}",
                inject=functools.partial(_set_in_a_rank, jump, start),
                in_short=(jump, start) == ("back", Start.WARM),
            )
        yield Fault(
            name=f"clock set: {jump}, in the coordinator",
            inject=functools.partial(_set_in_the_coordinator, jump),
        )


def _lied(lie: dict[str, Any], ground: Ground) -> None:
    search = begun(ground)
    number = to_damage(search)
    path = search.study.trial_folder(number) / "result.json"
    path.write_text(json.dumps({**read_json(path), **lie}), encoding="utf-8")
    check_damaged(search, number, f"TrialResult: {next(iter(lie))}")


def _set_in_a_rank(jump: str, start: Start, ground: Ground) -> None:
    arena = ground.arena
    result = arena.run(f"clock{jump}_in_first", start)
    must(result.outcome is Outcome.OK, f"{result.outcome}: {result.evidence}")
    least_s, total_s = min(result.phases_s.values()), sum(result.phases_s.values())
    must(least_s >= 0, f"a phase took {least_s} s: {result.phases_s}")
    must(total_s <= result.wall_s + 0.5, f"phases of {total_s} s in {result.wall_s} s")
    arena.check()


def _set_in_the_coordinator(jump: str, ground: Ground) -> None:
    search = begun(ground)
    before = digests(search.study)
    under = ("tests.chaos.false_clock", jump)
    process = search.start("--trials", "1", "--budget", "10min", under=under)
    stdout, stderr = process.communicate(timeout=_ANSWER_S)
    must("Traceback" not in stderr, f"a traceback: {stderr[-1500:]}")
    must(process.returncode == 0, f"it ended with {process.returncode}: {stderr[-500:]}")
    must(json.loads(stdout.splitlines()[-1])["best"], "no best")
    for trial in search.study.trials():
        ran = trial.result
        must(ran is not None and ran.wall_s >= 0, f"{trial.folder}: {ran and ran.wall_s} s")
    check_no_process(search)
    resume(search, before)
