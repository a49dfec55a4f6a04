"""A plan as one HTML file that needs nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.base.templates import Templates, tell
from autotune.base.units import format_bytes, format_rate, size_unit
from autotune.contract import Start
from autotune.cost.errors import LEVEL
from autotune.planning.ranking import Ranking
from autotune.report.candidates.ranking import figures_as_dict, ranking_values
from autotune.report.page.charts import scatter
from autotune.report.page.page import page_values
from autotune.report.page.shapes import Chart, Mark
from autotune.report.parts import facts_in, tables_in, tell_parts
from autotune.search.confirm import MAX_FINALISTS
from autotune.search.plan import ASSUMED_BASELINE_TRIALS, rules_before
from autotune.search.prospect import trial_s
from autotune.search.trial_spec import may_start_warm

_WORDS = {"candidate": "fits", "limit": "may not fit", "baseline": "baseline", "best": "rank 1"}
"""Tone of a mark -> what it is."""


def render_plan(ranking: Ranking, templates: Templates, *, top: int) -> str:
    """The page, of `report/plan.html.j2`.

    Raises:
        RenderError: The template does not render.
    """
    values = ranking_values(ranking, top=top)
    parts, outlook = tell_parts("ranking", values), ranking.outlook
    rows = [*values["best"], *values["more"]]
    known = {
        **values,
        "rows": rows,
        "lattice": outlook.lattice,
        "trials": _search(ranking),
    }
    return templates.text(
        "report/plan.html.j2",
        {
            **page_values(),
            **known,
            "title": f"Plan of {outlook.job.model.name} on {outlook.job.world} x "
            + outlook.environment.device_name,
            "refresh_s": None,
            "chances": tell("chances", known),
            "layouts": _layouts(ranking, rows, values["way"]),
            "about": facts_in(parts),
            "tables": tables_in(parts),
        },
    )


def _search(ranking: Ranking) -> tuple[int, float]:
    """Trials of a search of the job, at most, and the seconds that one usually takes."""
    outlook, found = ranking.outlook, ranking.prediction
    job, there = outlook.job, outlook.environment
    n_search = min(job.budget.trials, outlook.lattice.n_left)
    most = rules_before(job, there).most_runs(1 + min(MAX_FINALISTS, n_search))
    fits = np.flatnonzero(found.fit_probability >= ranking.min_fit)
    rows = fits if len(fits) else ranking.order
    usual = int(rows[np.argsort(found.step_time_s[rows])[len(rows) // 2]])
    is_warm = may_start_warm(job, outlook.engine, ranking.candidates[usual], there)
    one_s = trial_s(float(found.step_time_s[usual]), Start.WARM if is_warm else Start.COLD)
    n_trials = ASSUMED_BASELINE_TRIALS + n_search + most.total()
    return n_trials, min(one_s, job.trial_timeout_s)


def _forecast(ranking: Ranking, place: int) -> dict[str, Any]:
    """What a mark tells of a candidate that is no row."""
    candidate, found = ranking.candidates[place], ranking.prediction
    figures = figures_as_dict(ranking.outlook, candidate, found, place, ranking.reach)
    return {**figures, "described": ranking.described(place)}


def _layouts(
    ranking: Ranking, rows: Sequence[Mapping[str, Any]], way: Mapping[str, Any] | None
) -> Chart:
    """Forecast samples/s against forecast memory: the rows, the baseline, and the front."""
    found, batch = ranking.prediction, ranking.outlook.job.global_batch
    peaks_bytes = [float(row["pred_peak_memory_bytes"]) for row in rows]
    allowed_bytes = float(np.max(found.plans.memory_bytes))
    unit, unit_bytes = size_unit(max(peaks_bytes))

    def mark(tone: str, one: Mapping[str, Any]) -> Mark:
        rate, peak_bytes = one["pred_samples_per_s"], one["pred_peak_memory_bytes"]
        ends = (batch / one[f"pred_step_time_{end}_s"] for end in ("high", "low"))
        tip = f"forecast: {format_rate(rate)} samples/s in {format_bytes(peak_bytes)}; "
        return Mark(
            x=peak_bytes / unit_bytes,
            y=rate,
            tone=tone,
            tip=tip + one["described"],
            ends=(next(ends), next(ends)) if tone in ("baseline", "best") else None,
        )

    marks = [
        mark("candidate" if row["pred_fit_probability"] >= ranking.min_fit else "limit", row)
        for row in rows[1:]
    ]
    marks += [mark("baseline", way)] if way and way["changes"] else []
    shown = {int(ranking.choices.firsts[row["rank"] - 1]) for row in rows}
    on_front = {
        place: mark("candidate", _forecast(ranking, place))
        for place in sorted(ranking.on_front, key=lambda place: found.peak_memory_bytes[place])
    }
    marks += [one for place, one in on_front.items() if place not in shown]
    n_changing = sum(bool(row["changes_training"]) for row in rows)
    return scatter(
        "layouts",
        [*marks, mark("best", rows[0])],
        _WORDS,
        front=[(one.x, one.y) for one in on_front.values()],
        limits=[allowed_bytes / unit_bytes],
        caption={
            **{"limit_bytes": allowed_bytes, "level": LEVEL},
            "n_left_out": 0 if rows[0]["changes_training"] else n_changing,
        },
        titles=(f"forecast peak memory per device, {unit}", "forecast samples/s"),
    )
