"""The trials of a study: a row each, and what a row opens."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.base.templates import canonical_json
from autotune.base.units import format_seconds
from autotune.contract import Outcome, Phase, Role
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.report.explain.trial import describe, explain, rows_of
from autotune.report.page.tables import config_of, settings_of_row
from autotune.report.story import Story
from autotune.search.confirm import comparison_of, last_comparison
from autotune.search.history import evidence_of
from autotune.space.candidate import candidate_of
from autotune.space.knobs import describe_candidate

MOST_ROWS = 100
"""Trials that a page lists; the study's table has all of them."""
_MOST_DETAILS = 100_000
"""Characters of all details together: a page of a long study stays one that a mail takes."""


def trials(story: Story) -> list[dict[str, Any]]:
    """The first `MOST_ROWS` trials in the order of the answer, those of a candidate together.

    The first of a candidate holds the figure that the candidate is judged by.
    """
    words = {"best": story.best_word, "baseline": "baseline", "drifts": "drifts"}
    sides = (("baseline", story.baseline), ("best", story.best))
    # Where one trial is both, it is the best.
    marks = {standing.trial: name for name, standing in sides if standing is not None}
    is_final = any(row.compared for row in story.rows)
    last = last_comparison(story.history.trials)
    found: list[dict[str, Any]] = []
    for row in story.ranked_rows:
        if len(found) >= MOST_ROWS:
            break
        settings = settings_of_row(story, row)
        kin = next((n for t in row.trials if (n := marks.get(t.number))), "")
        heads = {row.trial, *marks}
        left_out = _left_out(row.trials, last) if is_final else ""
        of_candidate = sorted(row.trials, key=lambda t: (t.number not in heads, t.number))
        for place, trial in enumerate(of_candidate):
            result, number = trial.result, trial.number
            mark = marks.get(number, "drifts" if story.drifts(row) else "")
            found.append(
                {
                    "number": number,
                    "mark": mark,
                    "word": words.get(mark, ""),
                    "is_again": place > 0,
                    "again_of": kin if place > 0 else "",
                    "role": _role(trial, story, last),
                    "outcome": "running" if result is None else result.outcome.value,
                    "row": row,
                    "figure": row.figure if place == 0 else None,
                    "left_out": left_out,
                    "rate": result.samples_per_s if result and is_figure(result) else None,
                    "peak_bytes": row.figure.peak_memory_bytes
                    if row.figure and place == 0
                    else result and result.peak_memory_bytes,
                    "predicted": trial.spec.provenance.predicted,
                    "global_batch": trial.spec.layout.global_batch,
                    "settings": settings,
                    "evidence": _evidence_of(trial),
                }
            )
    return found[:MOST_ROWS]


def details(story: Story, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a row opens, by the trial's number; in the order of the rows as far as there is room.

    Configurations of those beyond it stand in the trials' folders alone.
    """
    table, left, found = rows_of(story.frame), _MOST_DETAILS, {}
    for row in rows:
        trial = story.trial(row["number"])
        if trial is None:
            continue
        config = config_of(story, trial.number) if left > 0 else None
        explained = explain(story, trial.number, table.get(trial.number, {}))
        found[str(trial.number)] = one = {
            "settings": describe_candidate(candidate_of(trial.spec), story.context),
            "config": "" if config is None else canonical_json(config),
            "phases": _phases(trial),
            "facts": [] if explained is None else list(map(list, describe(explained))),
            "evidence": row["evidence"],
            "folder": str(trial.folder),
        }
        left -= sum(len(str(value)) for value in one.values())
    return found


def _role(trial: Trial, story: Story, last: int) -> str:
    """Why it was run, `last` being the first round of the last comparison.

    What was tried on the way to the baseline is told apart from it, and so are runs of an earlier
    comparison, which count for no figure.
    """
    identity = trial.spec.identity
    if identity.role is Role.BASELINE:
        baseline = story.facts.baseline.candidate_hash
        is_other = baseline is not None and identity.candidate_hash != baseline
        return "towards the baseline" if is_other else "baseline"
    if identity.confirm_round is None:
        return identity.role.value
    first = comparison_of(trial)
    text = f"{identity.role.value}, round {identity.confirm_round - first + 1}"
    return text if first == last else f"{text} of an earlier comparison"


def _left_out(trials: Sequence[Trial], last: int) -> str:
    """What a candidate is that the last comparison has no figure of."""
    compared = last_comparison(trials)
    return "not in the last comparison" if 0 <= compared < last else "not compared"


def _evidence_of(trial: Trial) -> str:
    result = trial.result
    if result is None:
        return trial.problem
    parts = []
    if result.outcome is not Outcome.OK:
        parts.append(evidence_of(result))
    if result.outcome.is_measured and result.disturbed:
        parts.append(f"disturbed: {result.disturbed}")
    return "; ".join(parts) or trial.problem


def _phases(trial: Trial) -> list[tuple[str, str]]:
    """Name and time of each phase."""
    spent = {} if trial.result is None else trial.result.phases_s
    return [
        (phase.value, format_seconds(s)) for phase in Phase if (s := spent.get(phase.value, 0.0))
    ]
