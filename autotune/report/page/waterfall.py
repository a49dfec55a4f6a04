"""The way from the baseline to the best as a waterfall, and its tables."""

from typing import Any

from autotune.base.units import format_rate
from autotune.record.worth import Ladder
from autotune.report.page.shapes import Bar, Chart
from autotune.report.results.worth import ladder_facts, ladder_tables


def ladder_view(ladder: Ladder) -> dict[str, Any]:
    """What the page shows of a ladder: the drawing, tables and facts."""
    return {
        "target": "the best" if ladder.target == "best" else ladder.target,
        "n_rounds": ladder.n_rounds,
        "chart": _chart(ladder),
        # Every column but the first is of figures.
        "tables": [
            {**one, "numbers": range(1, len(one["columns"]))} for one in ladder_tables(ladder)
        ],
        "facts": ladder_facts(ladder),
    }


def _chart(ladder: Ladder) -> Chart | None:
    """A bar for each step, from the samples/s before it to those after; None without figures."""
    rates = [each.samples_per_s for each in ladder.configurations]
    at = rates[ladder.up[0].before] if ladder.up else None
    if at is None:
        return None
    steps = [("the baseline", 0.0, at, "soft", format_rate(at))]
    for step in ladder.up:
        rate = rates[step.place]
        if rate is None:  # the next step begins where the last figure was
            continue
        said = format_rate(rate) if step.gain is None else f"{step.gain.ratio:.2f}x"
        tone = "best" if rate >= at else "failed"
        if step.gain is not None and not step.gain.is_told_apart:
            tone, said = "soft", f"{said}, not proven"
        steps.append((step.change, at, rate, tone, said))
        at = rate
    steps.append((ladder.target, 0.0, at, "soft", format_rate(at)))
    most = max(max(start, end) for _, start, end, _, _ in steps)
    bars = [
        Bar(
            label=label,
            value=said,
            tone=tone,
            start=round(100 * min(start, end) / most, 2),
            width=round(max(0.4, 100 * abs(end - start) / most), 2),
        )
        for label, start, end, tone, said in steps
    ]
    alt = "samples/s after each change: " + ", ".join(f"{b.label} {b.value}" for b in bars)
    return Chart(
        name="waterfall",
        alt=alt,
        is_plain=True,
        kind="bars",
        bars=bars,
        x_title="samples/s after each change",
    )
