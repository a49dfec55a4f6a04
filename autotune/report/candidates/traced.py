"""Traced memory of a candidate beside the counted one: as text for a terminal, and as data."""

from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.base.units import format_bytes, format_seconds
from autotune.cost.memory import Memory
from autotune.planning.traced import TracedEstimate
from autotune.report.candidates.explained import (
    estimate_as_dict,
    judged_as_dict,
    print_title,
    verdict,
)
from autotune.report.candidates.ranking import MEMORY_PARTS, host_facts, parts_of, shares
from autotune.report.terminal.tables import plain_table, print_facts
from autotune.tracing import Trace

_UNSEEN = (
    "the model's sizes cannot be seen, so its step time cannot be predicted, nor its memory but "
    "by the trace"
)


def traced_as_dict(found: TracedEstimate) -> dict[str, Any]:
    """For programs; every figure is predicted, null where nobody can."""
    if found.analytic is not None:
        counted = estimate_as_dict(found.analytic)
    else:
        figures = ("step_time_s", "samples_per_s", "tokens_per_s_per_gpu", "peak_memory_bytes")
        more = ("host_memory_bytes", "fit_probability", "time_parts_s", "memory_parts_bytes")
        counted = judged_as_dict(found) | {f"pred_{name}": None for name in (*figures, *more)}
        counted["notes"] = [*counted["notes"], _UNSEEN]
    trace = found.trace
    return {
        **counted,
        "pred_traced_peak_memory_bytes": _peak_bytes(found.memory),
        "pred_traced_fit_probability": found.fit_probability,
        "pred_traced_memory_parts_bytes": _parts(found.memory),
        "pred_traced_phase_bytes": {
            phase.value: _peak_bytes(memory) for phase, memory in found.phases.items()
        },
        "trace": {**trace.traced.as_dict(), "depths": list(trace.depths), "took_s": trace.took_s},
        "trace_notes": list(trace.notes),
    }


def print_traced(console: Console, found: TracedEstimate) -> None:
    """Print the step, the two kinds of figures side by side, and what was traced."""
    print_title(console, found)
    facts = verdict(found)
    if found.analytic is None:
        facts.append(("note", _UNSEEN))
    else:
        seconds, _ = parts_of(found.analytic.prediction, 0)
        step_s = format_seconds(found.analytic.step_time_s)
        facts.append(("step", f"{step_s}: {shares(seconds, 5)}"))
        facts += host_facts(found.analytic.prediction, 0)
    print_facts(console, facts)
    console.print(_table(found))
    peaks = (f"{phase} {format_bytes(_peak_bytes(m))}" for phase, m in found.phases.items())
    facts = [("phases", ", ".join(peaks)), ("trace", _how(found.trace))]
    print_facts(console, [*facts, *(("", note) for note in found.trace.notes)])


def _table(found: TracedEstimate) -> Table:
    table = plain_table("memory", ">analytic", ">traced")
    analytic = found.analytic
    counted = {} if analytic is None else parts_of(analytic.prediction, 0)[1]
    traced = _parts(found.memory)
    for name in MEMORY_PARTS.values():
        if name in counted or name in traced:
            sizes = (
                format_bytes(side[name]) if name in side else "-" for side in (counted, traced)
            )
            table.add_row(name, *sizes)
    table.add_section()
    peak = "-" if analytic is None else format_bytes(analytic.peak_memory_bytes)
    fits = "-" if analytic is None else f"{analytic.fit_probability:.0%}"
    table.add_row("peak", peak, format_bytes(_peak_bytes(found.memory)))
    table.add_row("fits", fits, f"{found.fit_probability:.0%}")
    return table


def _parts(memory: Memory) -> dict[str, float]:
    """Bytes by part in words, without empty ones."""
    found = {words: float(getattr(memory, name)) for name, words in MEMORY_PARTS.items()}
    return {words: size for words, size in found.items() if size > 0}


def _peak_bytes(memory: Memory) -> float:
    return float(memory.peak_bytes)


def _how(trace: Trace) -> str:
    took = f"in {format_seconds(trace.took_s)}, nothing was allocated"
    traced = trace.traced
    if len(trace.depths) == 1:
        return f"one step of the whole model, {took}"
    depths = ", ".join(map(str, trace.depths[:-1]))
    return (
        f"one step with {depths} and {trace.depths[-1]} layers, {took}; extrapolated to "
        f"{traced.n_layers} by part of the step"
    )
