"""Traced memory of a candidate beside the counted one: as text for a terminal, and as data."""

from typing import Any

from rich.console import Console

from autotune.cost.memory import Memory
from autotune.planning.traced import TracedEstimate
from autotune.report.candidates.explained import estimate_as_dict, judged_as_dict
from autotune.report.candidates.ranking import MEMORY_PARTS, host_bytes, parts_of
from autotune.report.terminal.tables import print_told

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
        "trace": {**trace.traced.as_dict(), "took_s": trace.took_s},
        "trace_notes": list(trace.notes),
    }


def print_traced(console: Console, found: TracedEstimate) -> None:
    """Print the step, the two kinds of figures side by side, and what was traced."""
    counted = None if found.analytic is None else found.analytic.prediction
    seconds, sizes = ({}, {}) if counted is None else parts_of(counted, 0)
    traced = _parts(found.memory)
    values = {
        "found": found,
        "unseen": _UNSEEN,
        "seconds": seconds,
        "host_bytes": counted and host_bytes(counted, 0),
        "host_limit_bytes": found.analytic and found.analytic.outlook.host_limit_bytes,
        "is_host_known": found.analytic and found.analytic.outlook.is_host_known,
        "sizes": {
            name: (sizes.get(name), traced.get(name))
            for name in MEMORY_PARTS.values()
            if name in sizes or name in traced
        },
        "peak_bytes": _peak_bytes(found.memory),
    }
    print_told(console, "traced", values)


def _parts(memory: Memory) -> dict[str, float]:
    """Bytes by part in words, without empty ones."""
    found = {words: float(getattr(memory, name)) for name, words in MEMORY_PARTS.items()}
    return {words: size for words, size in found.items() if size > 0}


def _peak_bytes(memory: Memory) -> float:
    return float(memory.peak_bytes)
