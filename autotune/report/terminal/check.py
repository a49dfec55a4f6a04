"""What `check` found, for people."""

import sys
import textwrap
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from autotune.check import CheckReport, Found
from autotune.check.fixes import Option, Question
from autotune.space.rule import Consequence

_SAID: dict[Consequence, tuple[str, str, str, str]] = {
    "raised": ("would raise", "would raise", "would have raised", "red"),
    "differs": ("runs differently", "run differently", "ran differently", "yellow"),
    "ignored": ("is ignored", "ignored", "{was} ignored", "yellow"),
    "converted": ("is converted", "converted", "{was} converted", "dim"),
}
"""What is said of one finding, of several, of those that are fixed, and in which style; the worst
comes first."""


def print_check(console: Console, report: CheckReport, *, fixed: bool) -> None:
    """The findings, the fix as a diff, and one line that concludes."""
    _print_text(console, _about(report), style="dim")
    if report.version_note:
        _print_text(console, report.version_note, style="yellow")
    if report.unknown:
        said = f'known at run time only ("auto"): {", ".join(report.unknown)}'
        _print_text(console, said, style="dim")
    order = list(_SAID)
    for found in sorted(report.found, key=lambda one: order.index(one.violation.consequence)):
        _print_found(console, found)
    _print_questions(console, report)
    if report.diff:
        _print_text(console, _above_the_diff(report, fixed=fixed))
        _print_diff(console, report.diff)
    elif report.not_edited and any(one.violation.changes for one in report.found):
        console.print(Text(f"no diff: {report.not_edited}"))
    _print_text(console, _conclusion(report, fixed=fixed))


def asker(console: Console) -> Callable[[Question], Option | None] | None:
    """What puts a question to the user in a terminal; None where there is nobody to ask."""
    if not (console.is_terminal and sys.stdin.isatty()):
        return None

    def ask(question: Question) -> Option | None:
        _print_text(console, f"{question.violation.rule}: {question.violation.message}")
        by_number = {str(option.number): option for option in question.options}
        for option in question.options:
            _print_text(console, f"{option.number}  {option.words}", indent="  ")
        while True:
            answer = console.input("which one? (Enter leaves it) ").strip()
            if not answer or answer in by_number:
                return by_number.get(answer)

    return ask


def _about(report: CheckReport) -> str:
    source, environment = report.source, report.environment
    world = "?" if report.world is None else report.world
    return (
        f"{source.path}: read by {source.consumer} ({source.because}), DeepSpeed "
        f"{environment.deepspeed_version}, {environment.accelerator}, world {world} "
        f"({report.world_because})"
    )


def _above_the_diff(report: CheckReport, *, fixed: bool) -> str:
    source = report.source
    if not source.can_write:
        return (
            f"the fix of {source.path} (--fix writes into the file that is checked, which is "
            f"{source.asked}):"
        )
    if not report.passes:
        return "the fix so far (--fix writes nothing that would not run):"
    written = report.is_written(fixed=fixed)
    return "fixed, with this diff:" if written else "the fix (--fix writes it):"


def _print_found(console: Console, found: Found) -> None:
    violation = found.violation
    said, _, _, style = _SAID[violation.consequence]
    then = " (once the rest is mended)" if found.after_fix else ""
    console.print(Text.assemble((said, style), "  ", (violation.rule, "cyan"), then))
    for line in (violation.message, f"fix: {violation.fix}"):
        _print_text(console, line, indent="  ")


def _print_questions(console: Console, report: CheckReport) -> None:
    """What only the user can decide, each way out with the flag that takes it."""
    if not report.questions:
        return
    _print_text(console, "yours to choose:")
    for question in report.questions:
        for option in question.options:
            flag = f"--choose {question.violation.rule}={option.number}"
            _print_text(console, f"{flag}  {option.words}", indent="  ")


def _print_text(console: Console, text: str, *, indent: str = "", style: str = "") -> None:
    """Wrapped at spaces only: what is in it is to be copied."""
    wrapped = textwrap.fill(
        _visible(text),
        console.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text(wrapped, style=style), soft_wrap=True)


def _visible(text: str) -> str:
    """What steers a terminal, or is no character at all, as its escape: a file may hold it."""
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text
    )


def _print_diff(console: Console, diff: str) -> None:
    """In colour for people; to a pipe as it is, for `patch`."""
    if console.is_terminal:
        from rich.syntax import Syntax  # Pygments, which a pipe needs not wait for

        text = "\n".join(map(_visible, diff.removesuffix("\n").split("\n")))
        console.print(Syntax(text, "diff", background_color="default", word_wrap=True))
    else:
        console.out(diff, end="", highlight=False)


def _conclusion(report: CheckReport, *, fixed: bool) -> str:
    """What is wrong with the file as it is now, and what was."""
    left = {violation.rule for violation in report.left}
    written = report.is_written(fixed=fixed)
    now, before = dict.fromkeys(_SAID, 0), dict.fromkeys(_SAID, 0)
    for found in report.found:
        is_gone = written and found.violation.rule not in left
        (before if is_gone else now)[found.violation.consequence] += 1
    told = ", ".join(f"{count} {_SAID[kind][1]}" for kind, count in now.items() if count)
    mended = ", ".join(
        f"{count} {_SAID[kind][2].format(was='was' if count == 1 else 'were')}"
        for kind, count in before.items()
        if count
    )
    said = "; ".join(filter(None, (told, mended and f"{mended}, fixed"))) or "nothing found"
    runs = "would run" if report.exit_code(fixed=fixed) == 0 else "would not run"
    return f"{said}: it {runs}"
