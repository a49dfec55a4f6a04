"""The report and the plan as people read them in a terminal, down to 80 columns."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_amount, format_bytes, format_count, format_seconds
from autotune.contract import Origin
from autotune.report.explain.script import ScriptDiagnosis, describe_script
from autotune.report.explain.trial import Explanation, describe
from autotune.report.results.rows import Row
from autotune.report.story import CELLS, Story
from autotune.report.terminal.tables import SettingsCell, plain_table, print_facts
from autotune.report.verdict import details_of, verdict_of
from autotune.search.plan import Plan
from autotune.search.prospect import Prospect
from autotune.space.candidate import format_value
from autotune.space.knobs import (
    describe_candidate,
    describe_difference,
    describe_settings,
    settings_of,
)

_STYLES = {"running": "cyan", "best": "bold green", "baseline": "bold"}
"""Styles of the words for an outcome; what failed or broke the limit is yellow."""

_ON_THE_LEFT = ("95% interval", "outcome")


def print_report(console: Console, story: Story, *, details: bool = False) -> None:
    """Print the verdict, the table, then notes: evidence, the end, where the files are.

    With `details` also the figures behind the verdict.
    """
    verdict = verdict_of(story)
    console.print(Text("\n".join(filter(None, (story.study, verdict.title)))), soft_wrap=False)
    print_facts(console, verdict.facts)
    if story.rows:
        console.print()
        console.print(_table(story))
        console.print()
    for row in story.ranked_rows:
        if row.evidence:
            outcome = "" if row.outcome is None else row.outcome.value
            console.print(Text(f"trial {row.trial}: {outcome}: {row.evidence}", style="dim"))
    more = []
    if details:
        from autotune.report.optuna_storage import importance_of  # optuna

        more = details_of(story, importance_of(story))
    print_facts(console, [*more, *verdict.notes])


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print where a trial's time went, what bounds it and what addresses that."""
    knobs = " ".join(f"{k}={format_value(v)}" for k, v in explanation.spec.identity.knobs.items())
    console.print(Text(f"trial {explanation.trial}: {knobs}", style="bold"), soft_wrap=False)
    print_facts(console, describe(explanation))


def print_script_diagnosis(console: Console, diagnosis: ScriptDiagnosis) -> None:
    """Print what one run of a user's own command shows."""
    print_facts(console, describe_script(diagnosis))


def print_plan(console: Console, plan: Plan, *, reasons: bool) -> None:
    """Print what a search would run, and its price; with `reasons` also why rules refuse."""
    print_facts(console, _plan_facts(plan, reasons=reasons))


def _table(story: Story) -> Table:
    """A row per candidate; its settings are what differs from the baseline's."""
    columns = [name if name in _ON_THE_LEFT else f">{name}" for name in CELLS]
    has_baseline = story.baseline_row is not None
    last = "change of the baseline" if has_baseline else "settings that vary"
    table = plain_table(*columns, f"*{last}")
    described = _changes(story) if has_baseline else _varying(story)
    for row, text in zip(story.ranked_rows, described, strict=True):
        table.add_row(*_cells(row, story), text)
    return table


def _changes(story: Story) -> Iterator[SettingsCell]:
    """What a user changes in the baseline; of the baseline itself, what it is."""
    baseline = story.baseline_row
    assert baseline is not None
    for row in story.ranked_rows:
        if row == baseline:
            yield SettingsCell(describe_candidate(row.candidate, story.context), style="dim")
        else:
            changes = describe_difference(row.candidate, baseline.candidate, story.context)
            yield SettingsCell(changes)


def _varying(story: Story) -> Iterator[SettingsCell]:
    """Settings that are not the same everywhere: while there is no baseline to differ from."""
    settings = [settings_of(row.candidate, story.context) for row in story.ranked_rows]
    knobs = story.context.knobs
    varying = {name for name in knobs if len({chosen.get(name) for chosen in settings}) > 1}
    for chosen in settings:
        vary = {name: value for name, value in chosen.items() if name in varying}
        yield SettingsCell(describe_settings(vary, knobs))


def _cells(row: Row, story: Story) -> list[str | Text]:
    *figures, word = story.cells(row)
    is_fault = row.outcome is not None and not (row.outcome.is_measured and row.fits)
    return [*figures, Text(word, style="yellow" if is_fault else _STYLES.get(word, ""))]


def _lattice_facts(plan: Plan) -> tuple[str, str]:
    if not plan.space:
        return "layouts", f"{plan.lattice_size} are legal"
    legal = "are legal"
    if not plan.is_counted:
        legal = "are not refused; the rules judge each when it is wanted"
    return "space", f"{plan.space}: {plan.lattice_size} of {plan.grid_size} candidates {legal}"


def _plan_facts(plan: Plan, *, reasons: bool) -> list[tuple[str, str]]:
    limit = ""
    if plan.memory_limit_bytes:
        limit = f", at most {format_bytes(plan.memory_limit_bytes)} each"
    recorded = f" ({format_count(plan.n_recorded, 'trial')})" if plan.n_recorded else ""
    facts = [
        ("study", f"{plan.folder}{recorded}"),
        ("model", f"{plan.model}, {_parameters(plan)}, {plan.precision}"),
        ("job", f"{_samples(plan)}, global batch {plan.global_batch}, world {plan.world}"),
        *([("lengths", plan.lengths)] if plan.lengths else []),
        ("device", f"{plan.accelerator}: {plan.device_name}{limit}"),
        _lattice_facts(plan),
    ]
    facts += [("ranks" if n == 0 else "", text) for n, text in enumerate(plan.ranks)]
    if reasons:
        facts += [
            ("", f"{count} refused by {rule}, such as: {plan.reasons[rule]}")
            for rule, count in plan.refused.items()
        ]
    if plan.lacks:
        facts.append(("missing", plan.lacks))
    if plan.untried:
        facts.append(("untried", plan.untried))
    if plan.prospect is not None:
        facts += _prospect(plan.prospect, plan.is_measured)
    if plan.fidelity:
        facts.append(("reduced", _reduced(plan)))
    if plan.command:
        facts += _reach(plan)
    facts += [("baseline", plan.baseline), ("price", _price(plan)), ("trials", _trials(plan))]
    if plan.guard_steps:
        facts.append(("guard", _guard_price(plan)))
    if plan.budget_s is not None:
        facts.append(("budget", _budget(plan, plan.budget_s)))
    return facts


def _samples(plan: Plan) -> str:
    return f"sequence {plan.seq_len}" if plan.has_tokens else "samples without a length"


def _budget(plan: Plan, budget_s: float) -> str:
    text = f"{format_seconds(budget_s)} for all of it"
    if plan.used_s >= 1:
        text += f", of which earlier runs took {format_seconds(plan.used_s)}"
    if budget_s < plan.least_s:
        text += (
            f"; a trial and the shortest final comparison take about "
            f"{format_seconds(plan.least_s)}: with less, no gain may be proven"
        )
    return text


def _prospect(prospect: Prospect, is_measured: bool) -> list[tuple[str, str]]:
    """What is predicted of the trials, and why none can succeed."""
    allowed = format_bytes(prospect.allowed_bytes)
    text = f"{prospect.n_fit} of {prospect.n_candidates} candidates fit the {allowed} of a device"
    if not prospect.n_fit:
        text += f", the smallest needs {format_bytes(prospect.least_peak_bytes)}"
    text += f"; a step takes {format_seconds(prospect.step_s)}"
    if not is_measured:
        text += f", a trial about {format_seconds(prospect.trial_s)}"
    facts = [("predicted", text)]
    if prospect.problem:
        facts += [("hopeless", prospect.problem), ("nearest", prospect.nearest)]
    return facts


def _reach(plan: Plan) -> list[tuple[str, str]]:
    """By which way each knob reaches the user's command, and which do not."""
    by_way: dict[str, list[str]] = {}
    for name, way in plan.ways.items():
        by_way.setdefault(f"by {way}", []).append(name)
    by_reason: dict[str, list[str]] = {}
    for name, reason in plan.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        ("command", plan.command),
        *((way, ", ".join(names)) for way, names in by_way.items()),
        *(("left out", f"{', '.join(names)}: {why}") for why, names in by_reason.items()),
    ]


def _price(plan: Plan) -> str:
    """What the search costs, in words."""
    if plan.origin is not Origin.MEASURED:
        answers = "a table" if plan.origin is Origin.REPLAYED else "the cost model"
        return f"none: nothing runs, {answers} answers"
    assumed = "assumed" if plan.prospect is None else "predicted"
    source = "as measured" if plan.is_measured else f"{assumed} until the first trial has run"
    text = (
        f"{_about(plan)}{format_seconds(plan.total_s)} on {plan.world} accelerators, "
        f"{format_amount(plan.accelerator_hours)} accelerator-hours"
    )
    if plan.price is not None:
        text += f", {format_amount(plan.price)} in money"
    return f"{text} ({source})"


def _trials(plan: Plan) -> str:
    """How many trials are run, what of it `--trials` counts, and how long they take, in words."""
    top = f"{_about(plan)}{plan.baseline_trials} for the baseline"
    if plan.origin is not Origin.REPLAYED:  # a table would only repeat itself
        top += f", {plan.confirm_trials} for the final comparison"
    text = f"{_about(plan) or 'at most '}{plan.trials}: at most {plan.search_trials} for the "
    text += f"search (--trials), and on top of these {top}"
    if plan.origin is not Origin.MEASURED:
        return text
    return (
        f"{text}; {format_seconds(plan.trial_s)} each, "
        f"{format_seconds(plan.confirm_s)} in the comparison"
    )


def _about(plan: Plan) -> str:
    # How many the ladder takes is not known; a file of the user's own takes one.
    return "about " if plan.baseline_trials > 1 else ""


def _guard_price(plan: Plan) -> str:
    """What the convergence guard adds, in words."""
    known = "in the price" if plan.guard_is_measured else "on top of the price: no step has run"
    text = f"the first {plan.guard_steps} losses are compared: "
    if plan.guard_more_steps:
        text += (
            f"at most {plan.guard_more_steps} more steps in {plan.guard_runs} runs of the "
            f"comparison, "
            f"{format_seconds(plan.guard_s)} in all ({known})"
        )
    else:
        text += "the comparison takes as many steps anyway"
    if plan.guard_trials:
        text += (
            f"; if the best drifts, at most {plan.guard_trials} runs more, "
            f"{format_seconds(plan.guard_trials_s)}"
        )
    return text


def _reduced(plan: Plan) -> str:
    text = (
        f"at most {plan.reduced_trials} of the search's trials, {plan.fidelity} each, come first"
    )
    return f"{text}; {plan.no_reduced}" if plan.no_reduced else text


def _parameters(plan: Plan) -> str:
    if not plan.n_params_frozen:
        return f"{plan.n_params:,} parameters"
    return f"{plan.n_params:,} trained and {plan.n_params_frozen:,} frozen parameters"
