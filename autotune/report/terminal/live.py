"""Progress of a running search on stderr: a live view, or one line per event."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_rate, format_seconds
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import Standing
from autotune.report.words import (
    chosen_word,
    describe_counts,
    describe_ending,
    describe_others,
    describe_race,
    describe_standing,
    why_lower,
)
from autotune.search.base import Observer, Running, Snapshot, Stage
from autotune.search.confirm import Comparison
from autotune.space.knob import Context
from autotune.space.knobs import describe_candidate, describe_difference

_TITLES = {
    Stage.BASELINE: "measuring the baseline",
    Stage.SEARCH: "searching",
    Stage.CONFIRM: "running the finalists and the baseline again",
    Stage.DONE: "all trials have ended",
}


class View(Observer, AbstractContextManager["View"]):
    """An observer that owns a part of the terminal while it is entered."""


def view_for(console: Console, context: Context, objective: str) -> View:
    """The live view on a terminal, lines elsewhere.

    Args:
        console: Where it goes.
        context: Tells settings from defaults.
        objective: Name of what is searched for.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, context, objective)
    return LineView(console, context, objective)


class LiveView(View):
    """Redraws itself in place; notes scroll past above it."""

    def __init__(self, console: Console, context: Context, objective: str) -> None:
        self._context = context
        self._objective = objective
        self._best = _BestSoFar()
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Draw the state of the search."""
        why = self._best.see(snapshot)
        self._live.update(draw(snapshot, self._context, self._objective, why=why), refresh=True)

    def on_note(self, note: str) -> None:
        """Print a note above the view."""
        self._live.console.print(Text(note, style="dim"))


class LineView(View):
    """One plain line per event: a log that a file or a pipe can take."""

    def __init__(self, console: Console, context: Context, objective: str) -> None:
        self._console = console
        self._context = context
        self._objective = objective
        self._started_at_s = time.monotonic()
        self._stage: Stage | None = None
        self._running: dict[int, Running] = {}
        self._best = _BestSoFar()
        self._n_rounds = 0

    def __exit__(self, *_: object) -> None:
        return None

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Say what is new since the last one."""
        if snapshot.stage is not self._stage:
            self._stage = snapshot.stage
            self._say(f"{snapshot.stage.value}: {_TITLES[snapshot.stage]}")
        running = {trial.number: trial for trial in snapshot.running}
        ended = {trial.spec.identity.number: trial.result for trial in snapshot.trials}
        for number, was in self._running.items():
            result = ended.get(number)
            if result is not None and number not in running:
                said = _reduced_or_not(was, describe_ending(result))
                self._say(f"trial {number} ended: {said}")
        for number, trial in running.items():
            if number not in self._running:
                self._say(f"trial {number} started: {_described(trial, self._context)}")
        before, why = self._best.trial, self._best.see(snapshot)
        if snapshot.best is not None and snapshot.best.trial != before:
            said = f"{chosen_word(self._objective)} so far: {describe_standing(snapshot.best)}"
            self._say(f"{said}; {why}" if why else said)
        compared = snapshot.comparison
        if compared is not None and compared.race.n_rounds != self._n_rounds:
            self._n_rounds = compared.race.n_rounds
            if compared.leader is not None:
                leader = describe_standing(compared.leader)
                parts = [describe_race(compared), leader, describe_others(compared)]
                self._say(f"comparison: {'; '.join(filter(None, parts))}")
        self._running = running

    def on_note(self, note: str) -> None:
        """Say it."""
        self._say(note)

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_at_s
        line = f"[{elapsed_s:7.1f} s] {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _BestSoFar:
    """The best of the search's trials, and why it is slower than one before it."""

    def __init__(self) -> None:
        self._standing: Standing | None = None
        self._why = ""

    @property
    def trial(self) -> int | None:
        """Its trial; None: there is none."""
        return None if self._standing is None else self._standing.trial

    def see(self, snapshot: Snapshot) -> str:
        """Why the best is slower than the one before it; empty: it is not."""
        best, before = snapshot.best, self._standing
        if best is not None and before is not None and best.trial != before.trial:
            is_lower = best.samples_per_s < before.samples_per_s
            self._why = why_lower(before, snapshot.trials) if is_lower else ""
        self._standing = best
        return self._why


def draw(snapshot: Snapshot, context: Context, objective: str, *, why: str = "") -> Group:
    """The live view of one moment; `why` the best is slower than one before it, if it is."""
    left_s = snapshot.time_left_s
    left = "" if left_s is None else f", about {format_seconds(left_s)} left"
    head = Text(_TITLES[snapshot.stage], style="bold")
    head.append(f"  {format_seconds(snapshot.elapsed_s)}{left}", style="dim")
    progress = Table.grid(padding=(0, 1))
    done = min(snapshot.n_done, snapshot.n_budget)
    bar = ProgressBar(total=max(1, snapshot.n_budget), completed=done, width=40)
    progress.add_row(bar, f"{snapshot.n_done} of {snapshot.n_budget}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("trials", progress)
    compared = snapshot.comparison
    baseline = (compared and compared.start) or snapshot.baseline
    facts.add_row("baseline", describe_standing(baseline) if baseline else "none yet")
    if compared is not None:
        facts.add_row("compared", _race(compared, context))
        if others := describe_others(compared):
            facts.add_row("others", others)
    else:
        facts.add_row(chosen_word(objective), _best(snapshot, context, why))
        if line := sparkline([*accumulate(snapshot.rates, max)]):
            facts.add_row("fastest", Text(line, no_wrap=True, style="green"))
    facts.add_row("outcomes", describe_counts(snapshot.counts))
    for trial in snapshot.running:
        facts.add_row(f"trial {trial.number}", _running(trial, context))
    if snapshot.note:
        facts.add_row("note", Text(snapshot.note, style="dim"))
    return Group(head, facts)


_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40


def sparkline(values: Sequence[float]) -> str:
    """`▁▁▃▅▅█  50.0 to 60.0 samples/s`: a bar per value, the last ones where there are many.

    Empty for fewer than two values: one bar says nothing.
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    bars = "".join(_BARS[round((value - low) / step)] for value in values[-_MOST_BARS:])
    return f"{bars}  {format_rate(low)} to {format_rate(high)} samples/s, trial by trial"


def _race(comparison: Comparison, context: Context) -> Text:
    """Who leads the final comparison, and its settings."""
    leader, baseline = comparison.leader, comparison.start
    if leader is None:
        return Text(describe_race(comparison))
    text = Text(describe_standing(leader), style="green").append(f"\n{describe_race(comparison)}")
    if baseline is None or baseline == leader:
        return text
    changes = describe_difference(leader.candidate, baseline.candidate, context)
    return text.append(f"\n{changes}")


def _best(snapshot: Snapshot, context: Context, why: str) -> Text:
    best, baseline = snapshot.best, snapshot.baseline
    if best is None:
        return Text("none yet")
    text = Text(describe_standing(best), style="green")
    if why:
        text.append(f"; {why}")
    if baseline is None:
        return text.append(f"\n{describe_candidate(best.candidate, context)}")
    text.append(f"\n{best.samples_per_s / baseline.samples_per_s:.2f}x the baseline so far: ")
    return text.append(describe_difference(best.candidate, baseline.candidate, context))


def _running(trial: Running, context: Context) -> Text:
    """One line, however long the candidate: the view must not jump from trial to trial."""
    text = Text(f"{trial.phase.value} {format_seconds(trial.elapsed_s)}  ", no_wrap=True)
    text.append(_described(trial, context), style="dim")
    text.overflow = "ellipsis"
    return text


def _described(trial: Running, context: Context) -> str:
    return _reduced_or_not(trial, describe_candidate(trial.candidate, context))


def _reduced_or_not(trial: Running, text: str) -> str:
    return text if trial.fidelity is None else f"{describe_fidelity(trial.fidelity)} only: {text}"
