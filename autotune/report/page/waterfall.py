"""The way from the baseline to the best as a waterfall: bars for the page to draw as SVG."""

from typing import Any

from autotune.record.worth import Ladder
from autotune.report.results.worth import ladder_facts, ladder_tables
from autotune.report.words import format_rate

_ROW, _LEFT, _WIDE, _RIGHT = 26, 240, 400, 160
"""Pixels of a bar's row, of the names, the bars and the figures."""
_GOOD, _BAD, _WHOLE = "#1a8b62", "#c02a13", "#8b93a1"
"""Green and red as the style sheet has them, which the colour-blind tell apart."""


def ladder_view(ladder: Ladder) -> dict[str, Any]:
    """What the page shows of a ladder: the drawing with its size, tables and facts."""
    bars = _bars(ladder)
    return {
        "target": ladder.target,
        "n_rounds": ladder.n_rounds,
        "bars": bars,
        "width": _LEFT + _WIDE + _RIGHT,
        "height": _ROW * len(bars) + 8,
        "tables": ladder_tables(ladder),
        "facts": ladder_facts(ladder),
    }


def _bars(ladder: Ladder) -> list[dict[str, Any]]:
    """The steps up, each from the samples/s before it to those after it; empty without figures."""
    rates = [each.samples_per_s for each in ladder.configurations]
    at = rates[ladder.up[0].before] if ladder.up else None
    if at is None:
        return []
    spans = [("the baseline", 0.0, at, _WHOLE, format_rate(at))]
    for step in ladder.up:
        rate = rates[step.place]
        if rate is None:  # the next step begins where the last figure was
            continue
        said = format_rate(rate) if step.gain is None else f"x {step.gain.ratio:.2f}"
        colour = _GOOD if rate >= at else _BAD
        if step.gain is not None and not step.gain.is_told_apart:
            colour, said = _WHOLE, f"{said}, not proven"
        spans.append((step.change, at, rate, colour, said))
        at = rate
    spans.append((ladder.target, 0.0, at, _WHOLE, format_rate(at)))
    most = max(max(start, end) for _, start, end, _, _ in spans)
    return [
        {
            "name": name,
            "name_x": _LEFT - 8,
            "text_y": 20 + n * _ROW,
            "x": round(_LEFT + _WIDE * min(start, end) / most, 1),
            "y": 7 + n * _ROW,
            "width": round(max(2.0, _WIDE * abs(end - start) / most), 1),
            "height": _ROW - 8,
            "colour": colour,
            "said": said,
            "said_x": _LEFT + _WIDE + 8,
        }
        for n, (name, start, end, colour, said) in enumerate(spans)
    ]
