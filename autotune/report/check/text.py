"""What `check` found, for people."""

import textwrap
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from autotune.base.flags import is_call, switch
from autotune.base.text import named, visible
from autotune.base.units import format_count
from autotune.check import CheckReport, Found
from autotune.check.lint import CheckExit
from autotune.check.run import CheckRun
from autotune.space.rule import Consequence, Level, Violation

_STYLES: dict[Level, str] = {"error": "red", "warning": "yellow", "note": "dim"}
"""The levels, the worst first, and how each looks."""

_MOST_CHOICES = 8
"""Choices that are listed although the file runs without them."""

_THEN: dict[Consequence, str] = {
    "raised": "it would not run",
    "may_raise": "it may not run",
    "differs": "something else runs",
    "ignored": "it is ignored",
    "converted": "it is read as what is meant",
}
"""Reaction of the engine, in words for people."""


def print_run(console: Console, run: CheckRun, *, fixed: bool, quiet: bool, strict: bool) -> None:
    """Every file, and a last line over all of them where there are several.

    Args:
        console: Where to.
        run: What came of the files.
        fixed: Whether `--fix` was said.
        quiet: Errors alone, and nothing of a file without one.
        strict: Whether a warning fails a file.
    """
    is_one = run.is_one_file and len(run.reports) < 2
    for report in run.reports:
        has_news = bool(report.found or report.not_judged)
        is_shown = report.is_refused(fixed=fixed) if quiet else is_one or has_news
        if is_shown:
            print_check(console, report, fixed=fixed, quiet=quiet)
        if is_shown and not is_one:
            console.print()
    if not is_one and not quiet:
        _print_text(console, _over_all(run, fixed=fixed, strict=strict))


def print_check(
    console: Console, report: CheckReport, *, fixed: bool, quiet: bool = False
) -> None:
    """The findings, the fix as a diff, and one line that concludes."""
    if not quiet:
        _print_text(console, report.about, style="dim")
        if report.version_note:
            _print_text(console, report.version_note, style="yellow")
        if report.unknown:
            unknown = f"{report.unknown_because}: {', '.join(report.unknown)}"
            _print_text(console, unknown, style="dim")
    levels: tuple[Level, ...] = ("error",) if quiet else tuple(_STYLES)
    for level in levels:
        for found in sorted(report.found, key=lambda one: (one.place.line, one.place.column)):
            if found.violation.level == level:
                _print_found(console, report, found)
    if quiet:
        return
    _print_questions(console, report)
    if report.diff:
        _print_text(console, _above_the_diff(report, fixed=fixed))
        _print_diff(console, report.diff)
    elif report.not_edited and report.found:
        _print_text(console, f"no diff: {report.not_edited}")
    _print_text(console, _conclusion(report, fixed=fixed))


def _above_the_diff(report: CheckReport, *, fixed: bool) -> str:
    source, writes = report.source, f"{switch('fix')} writes"
    if not source.can_write and source.path == source.asked:
        return "the fix:"  # of standard input, or of what stands in no file
    if not source.can_write:
        return (
            f"the fix of {source.path} for {source.asked} ({writes} into files that are checked "
            "alone, as the first launch that uses one needs it):"
        )
    if not report.passes:
        return f"the fix so far ({writes} nothing that would not run):"
    written = report.is_written(fixed=fixed)
    return "fixed, with this diff:" if written else f"the fix ({writes} it):"


def _print_found(console: Console, report: CheckReport, found: Found) -> None:
    """A head line that editors can follow, then what it is and how to mend it."""
    violation, place = found.violation, found.place
    style = _STYLES[violation.level]
    where = visible(f"{place.file or report.source.path}:{place.line}:{place.column}", whole="\t")
    then = " (seen once the rest is fixed)" if found.after_fix else ""
    head = Text.assemble(
        (visible(where, whole="\t"), "bold"),
        "  ",
        (violation.level, style),
        "  ",
        (violation.rule, "cyan"),
        then,
    )
    console.print(head, soft_wrap=True)
    if violation.level == "note":
        _print_text(console, violation.message, indent="  ")
        return
    _print_text(console, f"{violation.message} ({_THEN[violation.consequence]})", indent="  ")
    if violation.fix:
        _print_text(console, f"fix: {violation.fix}", indent="  ")


def _print_questions(console: Console, report: CheckReport) -> None:
    """Choices that only the user can make, each way out with the flag that takes it."""
    others = [one for one in report.questions if one not in report.needed]
    n = sum(len(question.options) for question in others)
    is_short = n <= _MOST_CHOICES
    for head, questions in (
        ("yours to choose, before it runs:", report.needed),
        ("yours to choose:", others if is_short else ()),
    ):
        if questions:
            _print_text(console, head)
        for question in questions:
            for option in question.options:
                choice = f"{question.violation.rule}={option.number}"
                choose = f"choose={choice!r}" if is_call() else f"--choose {choice}"
                _print_text(console, f"{choose}  {option.words}", indent="  ")
    if not is_short:
        lists = "as_dict() lists" if is_call() else "--format json lists"
        _print_text(console, f"{n} choices more, none of them needed: {lists} them")


def _print_text(console: Console, text: str, *, indent: str = "", style: str = "") -> None:
    """Wrapped at spaces only: what is in it is to be copied."""
    wrapped = textwrap.fill(
        visible(text, whole="\t"),
        console.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text(wrapped, style=style), soft_wrap=True)


def _print_diff(console: Console, diff: str) -> None:
    """In colour for people; to a pipe as it is, for `patch`."""
    if console.is_terminal:
        from rich.syntax import Syntax  # Pygments, which a pipe needs not wait for

        text = "\n".join(map(visible, diff.removesuffix("\n").split("\n")))
        console.print(Syntax(text, "diff", background_color="default", word_wrap=True))
    else:
        console.out(diff, end="", highlight=False)


def _conclusion(report: CheckReport, *, fixed: bool) -> str:
    """Counts of the findings about the file as it is now, and of those that were mended."""
    now = _counted(report.now(fixed=fixed))
    counts = now or "nothing found"
    if report.is_written(fixed=fixed):
        n_fixed = len(report.found) - len(report.left)
        counts = f"{n_fixed} fixed; {now} left" if now else f"{n_fixed} fixed, nothing left"
    if report.ignored:
        counts += f" ({len(report.ignored)} more ignored, as you asked)"
    if report.is_refused(fixed=fixed):
        return f"{counts}: it would not run"
    if report.not_judged:
        return f"{counts}; not judged: {', '.join(map(str, report.not_judged))}"
    may_fail = report.would_run(fixed=fixed) is None
    return f"{counts}: it {'may not' if may_fail else 'would'} run"


def _over_all(run: CheckRun, *, fixed: bool, strict: bool) -> str:
    open_ = sum(one.would_run(fixed=fixed) is None for one in run.reports)
    passing = [one for one in run.reports if not one.is_refused(fixed=fixed)]
    warned = sum(one.exit_code(fixed=fixed, strict=True) != CheckExit.PASSES for one in passing)
    fails = len(run.reports) - len(passing)
    counts = [
        f"{fails} would not run" if fails else "",
        f"{warned} {'has' if warned == 1 else 'have'} warnings{', which fail here' * strict}"
        if warned
        else "",
        f"{len(run.unread)} cannot be read" if run.unread else "",
        f"{open_} not judged in full" if open_ else "",
    ]
    n = len(run.reports) + len(run.unread)
    summary = "; ".join(filter(None, counts)) or (
        "all would run" if run.reports else "nothing was judged"
    )
    others = len(run.others)
    more = "1 more file holds" if others == 1 else f"{others} more files hold"
    not_followed = [one.error.message for one in run.not_followed]
    launched = sum(one.source.asked != one.source.path for one in run.reports)
    skipped = "; ".join(
        [f"{launched} as {'another file uses it' if launched == 1 else 'others use them'}"]
        * bool(launched)
        + [f"{more} no DeepSpeed configuration"] * bool(others)
        + [f"not followed: {named(not_followed)}"] * bool(not_followed)
    )
    skipped = f" ({skipped})" if skipped else ""
    return f"{format_count(n, 'configuration')} checked{skipped}: {summary}"


def _counted(violations: Iterable[Violation]) -> str:
    """`1 error, 2 warnings`."""
    counts = Counter(violation.level for violation in violations)
    return ", ".join(format_count(counts[level], level) for level in _STYLES if counts[level])
