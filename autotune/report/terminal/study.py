"""The report and the plan as people read them in a terminal, down to 80 columns."""

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from autotune.base.templates import Templates, tell
from autotune.record.gate import Gate
from autotune.record.worth import Ladder
from autotune.report.explain.trial import Explanation, describe
from autotune.report.parts import tables_in, tell_parts
from autotune.report.story import Story
from autotune.report.terminal.tables import print_facts, print_told
from autotune.report.verdict import details_of, verdict_of
from autotune.search.plan import Plan
from autotune.space.candidate import format_value
from autotune.space.knobs import (
    describe_candidate,
    describe_change,
    describe_settings,
    settings_of,
)


def print_report(console: Console, story: Story, *, details: bool = False) -> None:
    """Print the verdict, the table, then notes: evidence, the end, where the files are.

    With `details` also the figures behind the verdict.
    """
    verdict = verdict_of(story)
    console.print(Text("\n".join(filter(None, (story.study, verdict.title)))), soft_wrap=False)
    print_facts(console, verdict.facts)
    baseline = story.baseline_row
    rows = zip(story.ranked_rows, _changes(story) if baseline else _varying(story), strict=True)
    last = "change of the baseline" if baseline else "settings that vary"
    values = {"story": story, "rows": [*rows], "last": last, "has_evidence": True}
    print_told(console, "candidates", values)
    print_facts(console, [*(details_of(story) if details else ()), *verdict.notes])


def print_answer(console: Console, story: Story, ladder: Ladder | None) -> None:
    """Print the report of a search, and what each change is worth where that was measured."""
    print_report(console, story)
    if ladder is not None:
        console.print()
        print_told(console, "ladder", {"ladder": ladder})


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print where a trial's time went, what bounds it and what addresses that."""
    knobs = " ".join(f"{k}={format_value(v)}" for k, v in explanation.spec.knobs.items())
    console.print(Text(f"trial {explanation.trial}: {knobs}", style="bold"), soft_wrap=False)
    print_facts(console, describe(explanation))


def print_plan(console: Console, plan: Plan, *, reasons: bool) -> None:
    """Print what a search would run, and its price; with `reasons` also why rules refuse."""
    found = {"ways": _names_by(plan.ways), "left_out": _names_by(plan.left_out)}
    print_facts(console, tell("plan", {"plan": plan, "reasons": reasons, **found}))


def _changes(story: Story) -> Iterator[str]:
    """What a user changes in the baseline; of the baseline itself, what it is."""
    baseline = story.baseline_row
    assert baseline is not None
    for row in story.ranked_rows:
        before = None if row == baseline else baseline.candidate
        yield describe_change(row.candidate, before, story.context)


def _varying(story: Story) -> Iterator[str]:
    """Settings that are not the same everywhere: while there is no baseline to differ from."""
    settings = [settings_of(row.candidate, story.context) for row in story.ranked_rows]
    knobs = story.context.knobs
    varying = {name for name in knobs if len({chosen.get(name) for chosen in settings}) > 1}
    for chosen in settings:
        vary = {name: value for name, value in chosen.items() if name in varying}
        yield describe_settings(vary, knobs)


def _names_by(words: Mapping[str, str]) -> dict[str, list[str]]:
    return {
        text: [name for name, other in words.items() if other == text]
        for text in dict.fromkeys(words.values())
    }


_LOCAL = ("table", "files", "page", "next")
"""Facts that mean something on this machine alone."""


def render_markdown(story: Story) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    verdict = verdict_of(story)
    described = [(r, describe_candidate(r.candidate, story.context)) for r in story.ranked_rows]
    rows = {"story": story, "rows": described, "last": "settings", "has_evidence": False}
    values = {
        "story": story,
        "title": verdict.title,
        "table": tables_in(tell_parts("candidates", rows))["candidates"],
        "facts": [fact for fact in (*verdict.facts, *verdict.notes) if fact[0] not in _LOCAL],
    }
    return Templates().text("report/text/study.md.j2", values)


def gate_in_markdown(gate: Gate) -> str:
    """The verdict of a gate, and its facts as a list."""
    (_, verdict), *facts = tell("gate", {"gate": gate})
    values = {"gate": gate, "verdict": verdict, "facts": facts}
    return Templates().text("report/text/gate.md.j2", values)
