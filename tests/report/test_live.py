import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from autotune.contract import Fidelity, Outcome, Role, TrialResult
from autotune.record.study import Trial
from autotune.report.terminal.live import LineView, LiveView, draw, view_for
from autotune.search.base import Snapshot, Stage
from tests.report import samples
from tests.report.samples import CONTEXT, SPEED
from tests.trials import changed, spec


@pytest.fixture
def snapshot() -> Snapshot:
    return samples.snapshot()


def console(width: int = 80, *, terminal: bool = False) -> Console:
    # An environment of its own: NO_COLOR, TERM and COLUMNS of whoever runs this must not matter.
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system=None,
        _environ={"TERM": "xterm"},
    )


def ended(number: int, outcome: Outcome) -> Trial:
    result = TrialResult(
        number=number,
        role=Role.SEARCH,
        candidate_hash="",
        outcome=outcome,
        evidence="" if outcome is Outcome.OK else "why it ended",
    )
    return Trial(folder=Path(), spec=spec(number), result=result)


def text_of(a_console: Console) -> str:
    return a_console.file.getvalue()


def test_animation_only_on_a_terminal() -> None:
    assert isinstance(view_for(console(terminal=True), CONTEXT, SPEED), LiveView)
    assert isinstance(view_for(console(), CONTEXT, SPEED), LineView)


def test_a_long_candidate_does_not_change_the_height(snapshot: Snapshot) -> None:
    heights = []
    for running in (snapshot.running, (dataclasses.replace(
        snapshot.running[0], candidate=snapshot.best.candidate
    ),)):  # fmt: skip
        screen = console(60)
        screen.print(draw(dataclasses.replace(snapshot, running=running), CONTEXT, SPEED))
        heights.append(len(text_of(screen).splitlines()))
    assert heights[0] == heights[1]


def test_the_view_is_shown_before_anything_is_known(snapshot: Snapshot) -> None:
    screen = console()
    screen.print(
        draw(
            dataclasses.replace(
                snapshot, counts={}, running=(), baseline=None, best=None, time_left_s=None
            ),
            CONTEXT,
            SPEED,
        )
    )
    assert "none yet" in text_of(screen)


@pytest.mark.parametrize(
    ("usual_s", "said"),
    [(10.5, "4.1 s, about 6.4 s left "), (4.0, "4.1 s, longer than most "), (None, "4.1 s  ")],
)
def test_a_running_trial_says_how_much_longer_such_trials_take(snapshot, usual_s, said) -> None:
    running = dataclasses.replace(snapshot.running[0], usual_s=usual_s)
    screen = console(200)
    screen.print(draw(dataclasses.replace(snapshot, running=(running,)), CONTEXT, SPEED))
    assert f"trial 9   measured {said}" in text_of(screen)


def test_the_best_is_not_compared_with_a_baseline_that_does_not_run(snapshot: Snapshot) -> None:
    screen = console()
    screen.print(draw(dataclasses.replace(snapshot, baseline=None), CONTEXT, SPEED))
    assert "the baseline so far" not in text_of(screen)


def test_one_line_per_event_off_a_terminal(snapshot: Snapshot) -> None:
    screen = console()
    reduced = dataclasses.replace(snapshot.running[0], fidelity=Fidelity(layers=1))
    with LineView(screen, CONTEXT, SPEED) as view:
        view.on_snapshot(dataclasses.replace(snapshot, running=(reduced,)))
        view.on_snapshot(dataclasses.replace(snapshot, running=(reduced,)))
        view.on_snapshot(
            dataclasses.replace(
                snapshot, running=(), trials=(ended(5, Outcome.OK), ended(9, Outcome.OOM))
            )
        )
        view.on_note("why")
        view.on_snapshot(
            dataclasses.replace(
                snapshot,
                running=(),
                stage=Stage.CONFIRM,
                best=samples.standing(9, 70.0, micro_batch=2),
            )
        )
    said = [line.partition("] ")[2] for line in text_of(screen).splitlines()]
    assert said == [
        "search: searching",
        "trial 9 started: 1 layer only: zero.stage=3 micro_batch=4 recompute=every_2 "
        "offload.optimizer=cpu offload.param=cpu reduce_bucket_size=1000",
        "best so far: 60.0 samples/s (58.8 to 61.2), peak 800 MiB, trial 5",
        "trial 9 ended: 1 layer only: oom: why it ended",
        "why",
        "confirm: running the finalists and the baseline again",
        "best so far: 70.0 samples/s (68.6 to 71.4), peak 800 MiB, trial 9",
    ]


def test_of_a_front_the_chosen_one_is_the_knee_and_no_best(snapshot: Snapshot) -> None:
    """It may be slower than the one before it: the fastest is not what is sought."""
    lower = dataclasses.replace(snapshot, best=samples.standing(9, 40.0, micro_batch=2))
    screen = console()
    with LineView(screen, CONTEXT, "pareto") as view:
        view.on_snapshot(snapshot)
        view.on_snapshot(lower)
    screen.print(draw(lower, CONTEXT, "pareto"))
    text = text_of(screen)
    assert text.count("knee so far: ") == 2
    assert "\nknee " in text
    assert "best" not in text


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (Outcome.OK, "trial 5, 60.0, was disturbed: its repeat, trial 9, counts (40.0)"),
        (Outcome.OOM, "trial 5, 60.0, does not count any more: trial 9 of it ended with oom"),
    ],
)
def test_a_best_that_is_slower_than_before_says_why(snapshot, after, why) -> None:
    its = snapshot.best.candidate.hash
    repeat = ended(9, after)
    assert repeat.result is not None
    repeat = Trial(
        folder=repeat.folder,
        spec=changed(repeat.spec, candidate_hash=its, repeat_of=5),
        result=dataclasses.replace(repeat.result, samples_per_s=40.0),
    )
    lower = dataclasses.replace(
        snapshot, trials=(repeat,), best=samples.standing(9, 40.0, micro_batch=2)
    )
    higher = dataclasses.replace(lower, best=samples.standing(11, 70.0, micro_batch=1))
    screen = console(300)
    with LineView(screen, CONTEXT, SPEED) as view:
        for one in (snapshot, lower, higher):
            view.on_snapshot(one)
    said = [line.partition("best so far: ")[2] for line in text_of(screen).splitlines()]
    first, second, third = filter(None, said)
    assert second == f"40.0 samples/s (39.2 to 40.8), peak 800 MiB, trial 9; {why}"
    assert ";" not in first + third
    screen = console(300, terminal=True)
    with LiveView(screen, CONTEXT, SPEED) as live:
        live.on_snapshot(snapshot)
        live.on_snapshot(lower)
    assert f"trial 9; {why}" in text_of(screen)


def test_a_note_is_text_and_never_markup() -> None:
    screen = console(terminal=True)
    with LiveView(screen, CONTEXT, SPEED) as view:
        view.on_note("key [bold]x[/bold] at trials[3]")
    assert "[bold]x[/bold] at trials[3]" in text_of(screen)
