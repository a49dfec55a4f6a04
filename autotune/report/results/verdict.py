"""Findings of a study in words: the same in the terminal, in Markdown and in HTML."""

import math
from collections.abc import Iterable, Sequence

from autotune.base.units import (
    format_bytes,
    format_count,
    format_gain_interval,
    format_interval,
    format_rate,
)
from autotune.contract import Origin, Role
from autotune.devices.hardware import Environment
from autotune.engines.base import known_releases
from autotune.record.answer import Drifted, SearchAnswer, Standing
from autotune.record.facts import (
    engine_name_of,
    environment_at,
    environment_of,
    left_out_of,
    model_of,
    origin_of,
)
from autotune.record.soak import describe_soak, read_soak
from autotune.record.study import Study
from autotune.record.tried import warning
from autotune.report.explain.predictions import describe_extrapolated, describe_foretold
from autotune.report.results.rows import Row
from autotune.report.results.study import StudyReport
from autotune.report.results.whole import describe_whole
from autotune.report.words import describe_counts, describe_reduced
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import choices_of, describe_candidate, describe_difference

CELLS = ("trial", "samples/s", "95% interval", "memory", "outcome")
_DISTURBED_SHOWN = 5
_PASSED_SHOWN = 5


def describe_place(report: StudyReport) -> str:
    """Model, devices and releases under the figures; empty where the study does not say.

    A study may go on after an upgrade: they are those of the runs behind its best.
    """
    environments, model = _environments_behind(report), model_of(report.facts)
    origin = origin_of(report.facts)
    mark = "" if origin is Origin.MEASURED else f"{origin.upper()}, not measured here: "
    if not environments:
        return mark
    each = [_releases(report, here) for here in environments]
    titles = dict.fromkeys(title for releases in each for title in releases)
    named = "?" if model is None else model.name
    return ", ".join(
        [
            f"{mark}{named} on {_joined(here.device_name for here in environments)}",
            *(f"{t} {_joined(releases.get(t, '-') for releases in each)}" for t in titles),
        ]
    )


def _joined(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


def _releases(report: StudyReport, environment: Environment) -> dict[str, str]:
    """Title -> release of the engine's packages and torch."""
    known = known_releases(engine_name_of(report.facts), environment)
    return {**dict(known), "torch": environment.torch_version}


def _environments_behind(report: StudyReport) -> list[Environment]:
    """Where the runs behind the best ran; of the latest search, while there is no best."""
    row = report.best_row or report.leading_row
    trials = () if row is None else report.history.of_hash(row.candidate.hash).trials
    confirmed = [t for t in trials if t.spec.identity.role is Role.CONFIRM]
    numbers = [t.spec.identity.number for t in confirmed or trials]
    found = [environment_at(report.facts, number) for number in numbers]
    return [*filter(None, found)] or [*filter(None, [environment_of(report.facts)])]


def _upgrades(report: StudyReport) -> list[str]:
    """The trials from which on releases were others: figures of both stand side by side."""
    found, before = [], None
    for trial in report.history.trials:
        number = trial.spec.identity.number
        here = environment_at(report.facts, number)
        if here is None:
            continue
        now = _releases(report, here)
        if before is not None and now != before:
            changed = [
                f"{title} {release} (before: {before.get(title, '-')})"
                for title, release in now.items()
                if before.get(title) != release
            ]
            found.append(f"from trial {number} on: {', '.join(changed)}")
        before = now
    return found


def describe_cells(row: Row, report: StudyReport) -> list[str]:
    """A candidate's cells under `CELLS`, the same in the terminal and in Markdown."""
    figure = row.figure
    return [
        str(row.trial),
        format_rate(figure.samples_per_s if figure else None),
        format_interval(figure.samples_per_s_low, figure.samples_per_s_high) if figure else "-",
        format_bytes(figure.peak_memory_bytes if figure else None),
        describe_outcome(row, report),
    ]


def describe_outcome(row: Row, report: StudyReport) -> str:
    """One or two words: how a candidate did, and whether it is the one that counts."""
    if row.outcome is None:
        return "running"
    if not row.outcome.is_measured:
        return row.outcome.value
    if not row.fits:
        return "over limit"
    for name, its in (("best", report.best_row), ("baseline", report.baseline_row)):
        if row == its:
            return name
    if report.drifts(row):
        return "drifts"
    return "disturbed" if row.is_disturbed else row.outcome.value


def describe_verdict(report: StudyReport) -> list[tuple[str, str]]:
    """Findings, fact by fact, as (name, text)."""
    facts = [("outcomes", describe_counts(report.counts))]
    if left_out := left_out_of(report.facts):
        trials = format_count(len(left_out), "trial")
        facts.append(("left out", f"{trials} of another job or configuration"))
    if said := describe_reduced(report.history):
        facts.append(("reduced", said))
    facts += [("damaged", f"trial {n}: {problem}") for n, problem in report.damaged.items()]
    facts += [("upgraded", text) for text in _upgrades(report)]
    answer = report.answer
    if answer is None:
        return [*facts, *_without_answer(report)]
    best, baseline = answer.best, answer.baseline
    if baseline is not None:
        facts.append(("baseline", describe_figure(baseline)))
    facts += describe_passed_over(answer, report.context)
    if best is not None:
        facts.append(("best", describe_figure(best)))
        ours = report.best_row
        if ours is None:
            lost = f"the record of trial {best.trial} is gone: search again for the best"
            facts.append(("damaged", lost))
        if baseline is not None:
            theirs, change = report.baseline_row, "-"
            if ours is not None and theirs is not None:
                change = describe_difference(ours.candidate, theirs.candidate, report.context)
            facts.append(("change", change))
        alone = "none: only the baseline ran within the limits" if report.is_baseline_alone else ""
        facts.append(("speedup", alone or describe_speedup(answer)))
        if whole := describe_whole(report):
            facts.append(("whole run", whole))
    if best is not None and answer.guard is not None:
        facts.append(("guard", str(answer.guard)))
    if (drifted := answer.drifted) is not None:
        facts.append(("drifted", describe_drifted(drifted)))
    if best is not None:
        if baseline is not None and report.objective.wish.name != "samples_per_s":
            facts.append(("memory", describe_peaks(best, baseline)))
        soak = read_soak(report.folder)
        if soak is not None and ours and soak.candidate_hash == ours.candidate.hash:
            facts.append(("soak", describe_soak(soak)))
        chosen = choices_of(ours.candidate.values, report.context) if ours else {}
        if untried := warning(chosen, report.context):
            facts.append(("untried", untried))
    if said := _compared(report):
        facts.append(("compared", said))
    if (spread := report.history.spread).knows_repeats:
        deviation = f"{math.sqrt(spread.variance):.1%} (standard deviation)"
        text = f"runs of the same configuration differ by {deviation}"
        facts.append(("noise", f"{text}, besides the variation of the steps within a run"))
    if foretold := describe_foretold(report.history.trials):
        facts.append(("predicted", foretold))
    if extrapolated := describe_extrapolated(report.history):
        facts.append(("extrapolated", extrapolated))
    if answer.ties:
        facts.append(("ties", describe_ties(answer.ties)))
    facts += [("disturbed", text) for text in _disturbed(report)]
    facts += [("own log", text) for text in _other_witnesses(report)]
    if front := answer.front:
        facts += [("front", _front(front)), ("rule", f"best is {answer.rule}")]
    again = ": the same command again goes on" if answer.interrupted else ""
    facts.append(("stopped", f"{answer.stop_reason}{again}"))
    if problem := answer.problem:
        facts += [("why", problem.message), ("fix", problem.fix)]
    facts.append(("table", str(answer.table)))
    if answer.export is not None:
        facts.append(("files", f"{answer.export}{_handed_out(answer)}"))
    if (page := Study(report.folder.parent, report.folder.name).page_file).is_file():
        facts.append(("page", str(page)))
    return facts


def _without_answer(report: StudyReport) -> list[tuple[str, str]]:
    """How far a search is that runs or was cut short: who leads, and that no gain is claimed."""
    facts = [("unfinished", "the same search command again resumes it")]
    if report.is_running:
        facts = [("running", "a search holds the study")]
    if (leading := report.leading_row) is not None:
        said = f"trial {leading.trial}: {format_rate(leading.rate)} samples/s"
        facts.append(("so far", f"{said}; no gain is claimed before the search has ended"))
    return facts


def describe_ties(ties: Sequence[Standing], most: int | None = None) -> str:
    """`trials 5, 7: no proven difference from the best`; `most` of them by number."""
    named = ", ".join(str(tie.trial) for tie in ties[:most])
    if more := len(ties) - len(ties[:most]):
        named += f" and {more} more"
    word = "trial" if len(ties) == 1 else "trials"
    return f"{word} {named}: no proven difference from the best"


def describe_figure(standing: Standing) -> str:
    """`trial 5: 61.2 samples/s (59.9 to 62.7, 3 runs), peak 812 MiB`."""
    interval = format_interval(standing.samples_per_s_low, standing.samples_per_s_high)
    runs = format_count(standing.n_runs, "run")
    if standing.n_disturbed:
        runs += f", {standing.n_disturbed} disturbed"
    return (
        f"trial {standing.trial}: {format_rate(standing.samples_per_s)} samples/s "
        f"({interval}, {runs}), "
        f"peak {format_bytes(standing.peak_memory_bytes)}"
    )


def describe_speedup(answer: SearchAnswer) -> str:
    """The gain in samples/s with its interval, and whether it is one."""
    speedup, best, baseline = answer.speedup, answer.best, answer.baseline
    if speedup is None or best is None or baseline is None:
        return "unknown: the best was not run again beside a baseline"
    low, high = speedup.low, speedup.high
    text = f"{speedup.ratio:.2f}x ({format_gain_interval(low, high)})"
    if answer.is_substitute:
        text += " over a substitute baseline"
    if best.trial == baseline.trial:
        return f"{text}: nothing beat the baseline"
    if high < 1:
        return f"{text}: slower than the baseline"
    return f"{text}: no proven gain" if low <= 1 else text


def _handed_out(answer: SearchAnswer) -> str:
    """Whose files they are, where they are not the best's; empty: they are."""
    one = answer.handed_out
    if one is None or one == answer.best:
        return ""
    return f" (the baseline's, trial {one.trial}: no gain is proven)"


def describe_drifted(drifted: Drifted) -> str:
    """What is better than the best, and why it is not handed out."""
    return (
        f"{describe_figure(drifted.standing)}: not handed out, {drifted.guard.why}; `export "
        "--allow-loss-drift` does"
    )


def describe_passed_over(answer: SearchAnswer, context: Context) -> list[tuple[str, str]]:
    """Candidates that the baseline was to be and is not, as (name, text); may be empty."""
    if not (passed := answer.passed_over):
        return []
    # Whatever the platform ended may have been the baseline; the others could not.
    told = [p for i, p in enumerate(passed) if i == 0 or p.by_platform][:_PASSED_SHOWN]
    facts = []
    for one in told:
        wanted = Candidate.of(
            one.candidate, world=context.world, global_batch=context.global_batch
        )
        what = describe_candidate(wanted, context)
        where = f"trial {one.trial}: "
        if one.trial is None:
            where = "" if one.is_predicted else "refused: "
        name = "asked for" if one is passed[0] else "passed over"
        facts.append((name, f"as the baseline, {where}{what}: {one.why}"))
    others = [p for p in passed if p not in told]
    predicted = sum(p.is_predicted for p in others)
    if more := len(others) - predicted:
        facts.append(("passed over", f"{more} more: column `baseline` of the table says why"))
    if predicted:
        facts.append(("passed over", f"{predicted} more, which are predicted not to fit"))
    if answer.is_substitute:
        said = "the platform ended the baseline that was asked for, so another one takes its place"
        facts.append(("substitute", f"{said}: search again for the gain over that"))
    return facts


def describe_peaks(best: Standing, baseline: Standing) -> str:
    """`12 GiB, the baseline 21 GiB`: peak memory of both."""
    peaks = [format_bytes(standing.peak_memory_bytes) for standing in (best, baseline)]
    return f"{peaks[0]}, the baseline {peaks[1]}"


def _compared(report: StudyReport) -> str:
    """Whose figures are those of the final comparison; empty: nobody's, or everybody's."""
    compared = [row for row in report.rows if row.is_compared]
    again, once = (
        [str(row.trial) for row in compared if (row.n_runs > 1) is several]
        for several in (True, False)
    )
    if not again or len(compared) == len(report.rows):
        return ""

    def named(trials: Sequence[str]) -> str:
        return f"trial{'s' if len(trials) > 1 else ''} {', '.join(trials)}"

    said = f"{named(again)} ran again, in turns"
    if once:
        have = "have" if len(once) > 1 else "has"
        said += f"; {named(once)} once more, and {have} the figure of that run"
    return f"{said}; every other row is one trial"


def _disturbed(report: StudyReport) -> list[str]:
    """The trials that something else on the machine disturbed, each with the evidence."""
    repeats = {
        t.spec.provenance.repeat_of: t.spec.identity.number
        for t in report.history.trials
        if t.result is not None and t.result.outcome.is_measured
    }
    said = []
    for trial in report.history.trials:
        if trial.result is not None and trial.result.disturbed:
            repeat = repeats.get(trial.spec.identity.number)
            again = ""
            if repeat is not None:
                again = f"; trial {repeat} repeats it and counts instead"
            elif trial.spec.provenance.repeat_of is None:
                again = "; it was not repeated"
            said.append(f"trial {trial.spec.identity.number}: {trial.result.disturbed}{again}")
    more = len(said) - _DISTURBED_SHOWN
    if more <= 0:
        return said
    return [*said[:_DISTURBED_SHOWN], f"{more} more: `report --csv` has them all"]


def _other_witnesses(report: StudyReport) -> list[str]:
    """The trials of which the engine's own log says something else than was measured."""
    results = [trial.result for trial in report.history.trials if trial.result is not None]
    said = [
        f"trial {result.number}: the engine's own log says {result.own_log.disagreement}"
        for result in results
        if result.own_log is not None and result.own_log.disagreement
    ]
    more = len(said) - _DISTURBED_SHOWN
    return said if more <= 0 else [*said[:_DISTURBED_SHOWN], f"{more} more: see their results"]


def _front(front: Sequence[Standing]) -> str:
    """The Pareto front, fastest first."""
    return "; ".join(
        f"trial {point.trial}: {format_rate(point.samples_per_s)} samples/s in "
        f"{format_bytes(point.peak_memory_bytes)}"
        for point in front
    )
