"""What `check` found, for people."""

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.text import Text

from autotune.check import Found, Report

_SAID = {
    "raised": ("would raise", "red"),
    "differs": ("runs differently", "yellow"),
    "ignored": ("is ignored", "yellow"),
    "converted": ("is converted", "dim"),
}


def print_check(console: Console, report: Report, *, fixed: bool) -> None:
    """The findings, the fix as a diff, and one line that concludes."""
    console.print(Text(_about(report), style="dim"), soft_wrap=True)
    if report.unknown:
        said = f'known at run time only ("auto"): {", ".join(report.unknown)}'
        console.print(Text(said, style="dim"), soft_wrap=True)
    order = list(_SAID)
    for found in sorted(report.found, key=lambda one: order.index(one.violation.consequence)):
        _print_found(console, found)
    if report.diff:
        console.print(Text("fixed, with this diff:" if fixed else "the fix (--fix writes it):"))
        if console.is_terminal:
            console.print(Syntax(report.diff, "diff", background_color="default"))
        else:
            console.out(report.diff, end="", highlight=False)
    elif not report.source.can_edit and any(one.violation.changes for one in report.found):
        console.print(Text("no diff: a fix is written into JSON, this is YAML"))
    console.print(Text(_conclusion(report, fixed=fixed)), soft_wrap=True)


def _about(report: Report) -> str:
    source, environment = report.source, report.environment
    world = "?" if report.world is None else report.world
    return (
        f"{source.path}: read by {source.consumer} ({source.because}), DeepSpeed "
        f"{environment.deepspeed_version}, {environment.accelerator}, world {world} "
        f"({report.world_because})"
    )


def _print_found(console: Console, found: Found) -> None:
    violation = found.violation
    said, style = _SAID[violation.consequence]
    then = " (once the rest is mended)" if found.after_fix else ""
    console.print(
        f"[{style}]{said}[/]  [cyan]{escape(violation.rule)}[/]{then}\n"
        f"  {escape(violation.message)}\n  fix: {escape(violation.fix)}",
        soft_wrap=True,
        highlight=False,
    )


def _conclusion(report: Report, *, fixed: bool) -> str:
    counts = {kind: 0 for kind in _SAID}
    for found in report.found:
        counts[found.violation.consequence] += 1
    told = [f"{count} {kind}" for kind, count in counts.items() if count]
    runs = "would run" if report.exit_code(fixed=fixed) == 0 else "would not run"
    now = " now" if fixed and report.diff else ""
    return f"{', '.join(told) or 'nothing found'}: it {runs}{now}"
