"""A rank of a user's script: what lies between two steps is done for several at once."""

import dataclasses
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.contract import Measure
from autotune.trial.faults import NonFiniteLossError
from autotune.trial.guest import watch
from autotune.trial.guest.edits import Edits
from autotune.trial.guest.watch import GuestStopwatch
from tests import trials
from tests.trial.fake_rank import Ended, fake_rank

MEASURE = Measure(warmup_steps=2, min_steps=6, max_steps=100, target_half_width=1e-9, budget_s=1e9)


class Rank:
    """A script whose steps take as long as a test says, of one sample of four tokens each."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_loss_scaled: bool = False
    ) -> None:
        self.now_s = 0.0
        self.n_steps = self.n_agreed = 0
        self.n_tokens = 4
        self.losses: tuple[torch.Tensor, ...] = ()
        """One of each step; none: nothing gives any."""
        self.skips: tuple[int, ...] = ()
        """Steps that the engine does not apply."""
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.agree)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
        monkeypatch.setattr(watch, "describe", lambda engine, seen: seen)
        self.module: Any = torch.nn.Identity()
        self.module.fp16_enabled = lambda: is_loss_scaled
        live = SimpleNamespace(
            engine=self.module,
            device="cpu",
            was_applied=lambda: self.n_steps - 1 not in self.skips,
            synchronize=lambda: None,
            on_losses=lambda note: None,
            on_steps=lambda call: None,
            own_log=lambda report: None,
        )
        monkeypatch.setattr(
            watch,
            "driver",
            SimpleNamespace(live=lambda engine: live, read_back=lambda engine, expected: {}),
        )
        edits = Edits(observes=True)
        spec = dataclasses.replace(trials.spec(expected={}), measure=MEASURE)
        seen = {"recomputes": False, "loader_batches": ()}
        guest = fake_rank(folder, spec, edits=edits, seen=seen, on_step=lambda: None)
        guest.watched = self.module
        self.report = guest.reporter.report
        self.stopwatch = GuestStopwatch(guest, self.module, self.module)
        self.stopwatch.attach()

    def agree(self, facts: torch.Tensor, *, async_op: bool = False, **_: Any) -> Any:
        """The facts are those of all ranks once the next step is made, if nobody waits before."""
        self.n_agreed += 1
        self.now_s += 1.0  # what lies between two steps is no part of any
        if not async_op:
            return None
        n_steps, agreed = self.n_steps, facts.clone()
        facts.fill_(math.nan)

        def wait() -> None:
            assert self.n_steps == n_steps + 1
            facts.copy_(agreed)

        return SimpleNamespace(wait=wait)

    def step(self, seconds: float) -> None:
        """Take so long, and up to a tenth more: steps that are all alike are soon enough."""
        self.module(torch.ones(1, self.n_tokens, dtype=torch.long))
        self.stopwatch._micro_losses += self.losses[self.n_steps : self.n_steps + 1]
        self.n_steps += 1
        self.now_s += seconds * (1 + 0.1 * (0.618 * self.n_steps % 1))
        self.stopwatch._on_step()

    def run(self, n_steps: int, seconds: float) -> None:
        for _ in range(n_steps):
            self.step(seconds)


def test_short_steps_are_agreed_on_together_and_none_is_lost(tmp_path, monkeypatch):
    rank = Rank(tmp_path, monkeypatch)
    with pytest.raises(Ended):
        rank.run(1000, 0.01)
    report = rank.report
    assert len(report.warmup_step_times_s) + len(report.step_times_s) == 2 + 100
    assert max(report.step_times_s) < 0.012, "no step holds what lies between"
    assert rank.n_agreed < 30
    assert (report.tokens, report.padded_tokens) == (4 * len(report.step_times_s),) * 2


@pytest.mark.parametrize(
    ("seconds", "is_loss_scaled"), [(0.3, False), (0.01, True)], ids=["long", "scaled"]
)
def test_steps_that_are_long_or_may_be_skipped_are_agreed_on_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, is_loss_scaled: bool
) -> None:
    rank = Rank(tmp_path, monkeypatch, is_loss_scaled=is_loss_scaled)
    rank.run(40, seconds)
    assert rank.n_agreed == 40


def test_a_script_that_ends_is_measured_by_the_steps_that_were_agreed_on(tmp_path, monkeypatch):
    rank = Rank(tmp_path, monkeypatch)
    rank.run(24, 0.01)
    with pytest.raises(Ended):
        rank.stopwatch.cut_short()
    report = rank.report
    assert 18 <= len(report.warmup_step_times_s) + len(report.step_times_s) <= 24
    assert report.tokens == 4 * len(report.step_times_s)


def test_a_step_that_is_skipped_among_others_costs_its_own_loss_and_tokens(tmp_path, monkeypatch):
    rank = Rank(tmp_path, monkeypatch)
    rank.losses = tuple(torch.arange(1000.0))
    rank.run(80, 0.01)
    assert rank.stopwatch._steps_at_once() > 4
    while rank.stopwatch._held:
        rank.step(0.01)
    skipped = rank.n_steps + 1
    rank.skips = (skipped,)
    rank.step(0.01)
    rank.n_tokens = 400
    rank.step(0.01)  # the one that is skipped
    rank.n_tokens = 4
    assert len(rank.stopwatch._held) == 2
    with pytest.raises(Ended):
        rank.run(1000, 0.01)
    report = rank.report
    assert report.skipped == [skipped]
    assert report.steps_skipped == 1
    assert (report.tokens, report.padded_tokens) == (4 * len(report.step_times_s),) * 2


def test_a_loss_among_others_that_is_not_finite_is_named(tmp_path, monkeypatch):
    rank = Rank(tmp_path, monkeypatch)
    rank.losses = (torch.tensor(1.0),) * 1000
    rank.run(80, 0.01)
    while rank.stopwatch._held:
        rank.step(0.01)
    bad = rank.n_steps + 1
    one, nan = torch.tensor(1.0), torch.tensor(math.nan)
    rank.losses = (*[one] * bad, nan, *[one] * 100)
    with pytest.raises(NonFiniteLossError, match=f"^loss nan in optimizer step {bad + 1}$"):
        rank.run(100, 0.01)
    assert rank.n_steps > bad + 1, "it was agreed on with later ones"


@pytest.mark.parametrize(("n_cores", "is_watched"), [(2, True), (4, False)])
def test_other_work_is_looked_for_where_no_other_trial_may_run(monkeypatch, n_cores, is_watched):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)))
    spec = SimpleNamespace(layout=SimpleNamespace(world=2))
    stopwatch: Any = SimpleNamespace(_rank=SimpleNamespace(spec=spec))
    assert GuestStopwatch._has_cores(stopwatch) == is_watched


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_flag_for_recomputation_that_does_nothing_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recomputes: bool
) -> None:
    rank = Rank(tmp_path, monkeypatch)
    guest = rank.stopwatch._guest
    guest.edits, guest.seen["recomputes"] = Edits(observes=True, recomputes=True), recomputes
    (*found,) = rank.stopwatch._more_differences()
    assert found == ([] if recomputes else ["recompute: asked full, the model runs none"])
    assert rank.report.read_back["recomputes"] == recomputes
