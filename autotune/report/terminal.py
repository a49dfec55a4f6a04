"""The report and the plan as people read them in a terminal, down to 80 columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.candidate import format_value
from autotune.contract import Outcome
from autotune.facts import environment_of, model_of
from autotune.knobs import KNOBS, Context
from autotune.report.plan import Plan
from autotune.report.rows import Row
from autotune.report.words import (
    describe_counts,
    describe_difference,
    describe_settings,
    format_interval,
    format_rate,
    settings_of,
)
from autotune.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class Report:
    """A study, ready to be shown."""

    study: str
    folder: Path
    facts: Mapping[str, Any]
    """`study.json`: environment, model, why the search stopped."""
    rows: Sequence[Row]
    counts: Mapping[Outcome, int]
    context: Context
    answer: Mapping[str, Any] | None
    """As `summarize` gives it; None while the search has not ended."""


def print_report(console: Console, report: Report) -> None:
    """Print the table, the verdict, the reason for the end and where the files are."""
    console.print(Text(_title(report)), soft_wrap=False)
    if report.rows:
        console.print(_table(report, console.width))
        console.print()
    for row in report.rows:
        if row.evidence:
            console.print(_failure(row))
    for name, text in _verdict(report):
        console.print(_fact(name, text))


def print_plan(console: Console, plan: Plan, *, reasons: bool) -> None:
    """Print what a search would run, and its price.

    Args:
        console: Where to.
        plan: What would run.
        reasons: Whether to say why the rules refuse what they refuse.
    """
    for name, text in _plan_facts(plan, reasons=reasons):
        console.print(_fact(name, text))


def _title(report: Report) -> str:
    environment, model = environment_of(report.facts), model_of(report.facts)
    lines = [report.study]
    if environment is not None:
        lines.append(
            f"{'?' if model is None else model.name} on {environment.device_name}, DeepSpeed "
            f"{environment.deepspeed_version}, torch {environment.torch_version}"
        )
    return "\n".join(lines)


def _table(report: Report, width: int) -> Table:
    """A column per knob that varies; where that is too wide, one column of settings."""
    settings = [settings_of(row.candidate, report.context) for row in report.rows]
    varying = [name for name in KNOBS if len({chosen.get(name) for chosen in settings}) > 1]
    by_knob = _make_table([_header(name) for name in varying])
    folded = _make_table(["settings that vary"])
    for row, chosen in zip(report.rows, settings, strict=True):
        cells = _cells(row, report)
        by_knob.add_row(*cells, *(format_value(row.candidate.get(name)) for name in varying))
        vary = {name: value for name, value in chosen.items() if name in varying}
        folded.add_row(*cells, describe_settings(vary))
    is_narrow = Console(width=10_000).measure(by_knob).maximum <= width
    return by_knob if is_narrow else folded


def _make_table(last: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("95% interval", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold")
    return table


def _cells(row: Row, report: Report) -> list[str | Text]:
    figure = row.figure
    return [
        str(row.trial),
        format_rate(figure.samples_per_s if figure else None),
        format_interval(figure.low, figure.high) if figure else "-",
        format_bytes(figure.peak_memory_bytes if figure else None),
        _outcome(row, report),
    ]


def _outcome(row: Row, report: Report) -> Text:
    if row.outcome is None:
        return Text("running", style="cyan")
    if not row.outcome.is_measured:
        return Text(row.outcome.value, style="yellow")
    if not row.fits:
        return Text("over limit", style="yellow")
    if row.trial == _trial_of(report, "best"):
        return Text("best", style="bold green")
    if row.trial == _trial_of(report, "baseline"):
        return Text("baseline", style="bold")
    return Text(row.outcome.value)


def _header(name: str) -> str:
    """A knob's name, broken at its dots and underscores."""
    return name.replace(".", ".\n").replace("_", "_\n")


def _failure(row: Row) -> Text:
    outcome = "" if row.outcome is None else row.outcome.value
    return Text(f"trial {row.trial}: {outcome}: {row.evidence}", style="dim")


def _verdict(report: Report) -> list[tuple[str, str]]:
    facts = [("outcomes", describe_counts(report.counts))]
    answer = report.answer
    if answer is None:
        facts.append(("unfinished", "the same search command again resumes it"))
        return facts
    best, baseline = answer["best"], answer["baseline"]
    if baseline is not None:
        facts.append(("baseline", _standing(baseline)))
    if best is not None:
        facts.append(("best", _standing(best)))
        if baseline is not None:
            facts.append(("change", _change(report, best["trial"], baseline["trial"])))
        facts.append(("speedup", _speedup(answer)))
    compared = [str(row.trial) for row in report.rows if row.n_runs > 1]
    if compared and len(compared) < len(report.rows):
        trials = f"trial{'s' if len(compared) > 1 else ''} {', '.join(compared)}"
        text = f"{trials} ran again, interleaved; the other rows show one trial"
        facts.append(("compared", text))
    if answer["ties"]:
        ties = ", ".join(f"trial {tie['trial']}" for tie in answer["ties"])
        facts.append(("ties", f"{ties}: the interval overlaps the best's"))
    facts.append(("stopped", answer["stop_reason"]))
    if problem := answer.get("problem"):
        facts += [("why", problem["message"]), ("fix", problem["fix"])]
    facts.append(("table", answer["paths"]["table"]))
    if answer["paths"]["export"]:
        facts.append(("files", answer["paths"]["export"]))
    return facts


def _standing(standing: Mapping[str, Any]) -> str:
    interval = format_interval(standing["samples_per_s_low"], standing["samples_per_s_high"])
    n_runs = standing["n_runs"]
    return (
        f"trial {standing['trial']}: {format_rate(standing['samples_per_s'])} samples/s "
        f"({interval}, {n_runs} {'run' if n_runs == 1 else 'runs'}), "
        f"peak {format_bytes(standing['peak_memory_bytes'])}"
    )


def _speedup(answer: Mapping[str, Any]) -> str:
    speedup = answer["speedup"]
    if speedup is None:
        return "unknown: the best was not run again beside a baseline"
    low, high = answer["speedup_low"], answer["speedup_high"]
    text = f"{speedup:.2f}x ({low:.2f} to {high:.2f})"
    if answer["best"]["trial"] == answer["baseline"]["trial"]:
        return f"{text}: nothing beat the baseline"
    return f"{text}: no proven gain" if low <= 1 else text


def _change(report: Report, best: int, baseline: int) -> str:
    candidates = {row.trial: row.candidate for row in report.rows}
    if best not in candidates or baseline not in candidates:
        return "-"
    return describe_difference(candidates[best], candidates[baseline], report.context)


def _trial_of(report: Report, name: str) -> int | None:
    standing = None if report.answer is None else report.answer[name]
    return None if standing is None else int(standing["trial"])


def _plan_facts(plan: Plan, *, reasons: bool) -> list[tuple[str, str]]:
    limit = f", at most {format_bytes(plan.memory_limit_bytes)} each"
    facts = [
        ("study", plan.folder + (f" ({plan.n_recorded} trials)" if plan.n_recorded else "")),
        ("model", f"{plan.model}, {_parameters(plan)}, {plan.precision}"),
        ("job", f"sequence {plan.seq_len}, global batch {plan.global_batch}, world {plan.world}"),
        *([("lengths", plan.lengths)] if plan.lengths else []),
        (
            "device",
            f"{plan.accelerator}: {plan.device_name}{limit if plan.memory_limit_bytes else ''}",
        ),
        (
            "space",
            f"{plan.space}: {plan.lattice_size} of {plan.grid_size} candidates are legal",
        ),
    ]
    if reasons:
        facts += [
            ("", f"{count} refused by {rule}, such as: {plan.reasons[rule]}")
            for rule, count in plan.refused.items()
        ]
    source = "as measured" if plan.is_measured else "assumed until the first has run"
    facts += [
        ("baseline", plan.baseline),
        (
            "price",
            f"{plan.baseline_trials} + {plan.search_trials} + {plan.confirm_trials} trials at "
            f"most (baseline, search, final comparison) x {format_seconds(plan.trial_s)}, "
            f"in the comparison {format_seconds(plan.confirm_s)} ({source}), "
            f"x {plan.world} accelerators: {format_seconds(plan.total_s)}, "
            f"{plan.accelerator_hours:.2g} accelerator-hours",
        ),
    ]
    if plan.budget_s is not None:
        facts.append(("budget", f"{format_seconds(plan.budget_s)} for all of it"))
    return facts


def _parameters(plan: Plan) -> str:
    if not plan.n_params_frozen:
        return f"{plan.n_params:,} parameters"
    return f"{plan.n_params:,} trained and {plan.n_params_frozen:,} frozen parameters"


def _fact(name: str, text: str) -> Table:
    """A name and a text that wraps beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=10, style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(name, Text(text))
    return grid
