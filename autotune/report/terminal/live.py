"""Progress of a running search on stderr: a live view, or one line per event."""

import math
import time
from contextlib import AbstractContextManager
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.base.templates import tell
from autotune.base.units import format_seconds
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import Standing
from autotune.report.shown import as_html
from autotune.report.story import chosen_word, outcome_counts, why_lower
from autotune.search.base import Observer, Snapshot, Stage
from autotune.search.runner import Running
from autotune.space.knob import Context
from autotune.space.knobs import describe_candidate, describe_change

_TITLES = {
    Stage.BASELINE: "measuring the baseline",
    Stage.SEARCH: "searching",
    Stage.CONFIRM: "running the finalists and the baseline again",
    Stage.DONE: "all trials have ended",
}
_STYLES = {"best": "green", "knee": "green", "compared": "green"}
"""Styles of the first line of a fact."""
_REDRAW_S = 0.25
"""Seconds between two drawings in a notebook, which has to be sent each."""


class View(Observer, AbstractContextManager["View"]):
    """An observer that owns a part of the terminal while it is entered."""

    def __init__(self, console: Console, context: Context, objective: str) -> None:
        self._console = console
        self._context = context
        self._objective = objective
        self._best: Standing | None = None
        self._why = ""

    def __exit__(self, *_: object) -> None:
        return None

    def _see_best(self, snapshot: Snapshot) -> str:
        """Why the best is slower than the one before it; empty: it is not."""
        best, before = snapshot.best, self._best
        if best is not None and before is not None and best.trial != before.trial:
            is_lower = best.samples_per_s < before.samples_per_s
            self._why = why_lower(before, snapshot.trials) if is_lower else ""
        self._best = best
        return self._why


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
        super().__init__(console, context, objective)
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Draw the state of the search."""
        why = self._see_best(snapshot)
        self._live.update(draw(snapshot, self._context, self._objective, why=why), refresh=True)

    def on_note(self, note: str) -> None:
        self._live.console.print(Text(note, style="dim"))


class NotebookView(View):
    """Redraws itself below the cell that searches, with the last note."""

    def __init__(self, console: Console, context: Context, objective: str) -> None:
        super().__init__(console, context, objective)
        self._handle: Any = None
        self._drawn_at_s = -math.inf

    def __enter__(self) -> Self:
        from IPython.display import display  # whoever has a notebook has it

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Draw the state of the search; what follows too soon is left to the next one."""
        why, now_s = self._see_best(snapshot), time.monotonic()
        if now_s - self._drawn_at_s < _REDRAW_S and snapshot.stage is not Stage.DONE:
            return
        self._drawn_at_s = now_s
        drawn = draw(snapshot, self._context, self._objective, why=why)
        page = as_html(lambda console: console.print(drawn))
        self._handle.update({"text/html": page, "text/plain": ""}, raw=True)

    def on_note(self, note: str) -> None:
        """Leave it to the next drawing."""


class LineView(View):
    """One plain line per event: a log that a file or a pipe can take."""

    def __init__(self, console: Console, context: Context, objective: str) -> None:
        super().__init__(console, context, objective)
        self._started_at_s = time.monotonic()
        self._stage: Stage | None = None
        self._running: dict[int, Running] = {}
        self._n_rounds = 0

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Say what is new since the last one."""
        running = {trial.number: trial for trial in snapshot.running}
        results = {trial.number: trial.result for trial in snapshot.trials}
        before = None if self._best is None else self._best.trial
        is_new = snapshot.best is not None and snapshot.best.trial != before
        compared = snapshot.comparison
        has_round = compared is not None and compared.race.n_rounds != self._n_rounds
        values = {
            "stage": "" if snapshot.stage is self._stage else snapshot.stage.value,
            "title": _TITLES[snapshot.stage],
            "ended": [
                (number, result, trial.fidelity and describe_fidelity(trial.fidelity))
                for number, trial in self._running.items()
                if number not in running and (result := results.get(number)) is not None
            ],
            "started": [
                (trial, _described(trial, self._context))
                for number, trial in running.items()
                if number not in self._running
            ],
            "best_word": chosen_word(self._objective),
            "why": self._see_best(snapshot),
            "best": snapshot.best if is_new else None,
            "compared": compared if has_round and compared and compared.leader else None,
        }
        for _, text in tell("events", values):
            self.on_note(text)
        self._stage, self._running = snapshot.stage, running
        if compared is not None:
            self._n_rounds = compared.race.n_rounds

    def on_note(self, note: str) -> None:
        elapsed_s = time.monotonic() - self._started_at_s
        line = f"[{elapsed_s:7.1f} s] {note}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def draw(snapshot: Snapshot, context: Context, objective: str, *, why: str = "") -> Group:
    """The live view of one moment; `why` the best is slower than one before it, if it is."""
    left_s = None if snapshot.stage is Stage.DONE else snapshot.time_left_s
    left = "" if left_s is None else f", about {format_seconds(left_s)} left"
    head = Text(_TITLES[snapshot.stage], style="bold")
    head.append(f"  {format_seconds(snapshot.elapsed_s)}{left}", style="dim")
    progress = Table.grid(padding=(0, 1))
    done = min(snapshot.n_done, snapshot.n_budget)
    bar = ProgressBar(total=max(1, snapshot.n_budget), completed=done, width=40)
    progress.add_row(bar, f"{snapshot.n_done} of {snapshot.n_budget} of the search")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("trials", progress)
    for name, text in tell("live", _values(snapshot, context, objective, why)):
        # One line, however long the candidate: the view must not jump from trial to trial.
        is_line = name.startswith("trial ")
        style = "dim" if name == "note" else _STYLES.get(name, "")
        cell = Text(text, style=style, no_wrap=is_line, overflow="ellipsis" if is_line else "fold")
        grid.add_row(name, cell)
    return Group(head, grid)


def _values(snapshot: Snapshot, context: Context, objective: str, why: str) -> dict[str, object]:
    """What `live.j2` tells."""
    compared = snapshot.comparison
    best = snapshot.best if compared is None else compared.leader
    baseline = (compared and compared.start) or snapshot.baseline
    change = ""
    before = baseline if compared is None else compared.start
    if best is not None and (compared is None or before not in (None, best)):
        change = describe_change(
            best.candidate, None if before is None else before.candidate, context
        )
    return {
        "snapshot": snapshot,
        "outcome_counts": outcome_counts(snapshot.counts),
        "baseline": baseline,
        "best": best,
        "best_word": chosen_word(objective),
        "why": why,
        "change": change,
        "compared": compared,
        "running": [(trial, _described(trial, context)) for trial in snapshot.running],
    }


def _described(trial: Running, context: Context) -> str:
    text = describe_candidate(trial.candidate, context)
    return text if trial.fidelity is None else f"{describe_fidelity(trial.fidelity)} only: {text}"
