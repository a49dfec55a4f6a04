"""A user's own command diagnosed: what one run of it shows, fact by fact."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.base.units import format_bytes, format_count
from autotune.contract import TrialResult
from autotune.report.candidates.ranking import MEMORY_PARTS
from autotune.report.explain.trial import Explanation, describe


@dataclass(frozen=True, kw_only=True)
class ProposedChange:
    """One change of what the user runs, and what it is predicted to bring."""

    settings: str
    """The knob, in words."""
    edits: tuple[str, ...]
    """What to write where, a line each."""
    gain: float
    """Predicted ratio of samples/s to those of the command as it is."""
    gain_low: float
    """Lower end of its 90% interval."""
    gain_high: float
    peak_memory_bytes: float
    """Predicted peak of the fullest device."""
    peak_memory_low_bytes: float
    peak_memory_high_bytes: float


@dataclass(frozen=True, kw_only=True)
class ScriptDiagnosis:
    """What one run of a command shows."""

    command: str
    study: str
    framework: str
    model: str
    settings: Mapping[str, Any]
    """What it trains with, as it was read off: micro-batch, accumulation, precision, optimizer."""
    origins: Mapping[str, str]
    """Setting -> where it came from."""
    result: TrialResult
    row: Mapping[str, Any]
    """The run as a row of the table: samples/s, tokens/s, TFLOP/s, MFU, memory."""
    memory_bytes: Mapping[str, float]
    """Memory by part, predicted; empty where the model's sizes cannot be seen."""
    explanation: Explanation | None
    """None: it had no diagnostic pass."""
    remarks: tuple[str, ...]
    """Settings that do nothing, or never arrived."""
    changes: tuple[ProposedChange, ...]
    """Best first; empty where nothing is predicted to be faster."""
    is_predicted: bool = True
    """Whether any change could be predicted."""
    notes: tuple[str, ...] = field(default=())
    """What could not be said, and why."""

    def as_dict(self) -> dict[str, Any]:
        """As `diagnose --json` prints it."""
        told = {
            name: getattr(self, name)
            for name in (
                "command",
                "study",
                "framework",
                "model",
                "settings",
                "origins",
                "memory_bytes",
            )
        }
        return {
            **told,
            "row": {name: _json(value) for name, value in self.row.items()},
            "explanation": None if self.explanation is None else self.explanation.as_dict(),
            "remarks": list(self.remarks),
            "disturbed": self.result.disturbed,
            "is_predicted": self.is_predicted,
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "notes": list(self.notes),
        }


_TOLD = {"speed", "measured", "disturbed"}
"""Facts of a trial that the diagnosis of a script tells in its own words."""


def describe_script(diagnosis: ScriptDiagnosis) -> Iterator[tuple[str, str]]:
    """The diagnosis as (name, text)."""
    yield "command", diagnosis.command
    yield "trains", _trains(diagnosis)
    yield "batch", _batch(diagnosis.settings)
    yield "set by", ", ".join(f"{name}: {where}" for name, where in diagnosis.origins.items())
    yield "speed", ", ".join(_speeds(diagnosis))
    if diagnosis.result.disturbed:
        yield (
            "disturbed",
            f"{diagnosis.result.disturbed}: the command alone is faster. A search runs it once "
            "more; --fresh does so now",
        )
    yield "memory", _memory(diagnosis)
    if diagnosis.explanation is not None:
        facts = describe(diagnosis.explanation)
        yield from ((name, text) for name, text in facts if name not in _TOLD)
    for remark in diagnosis.remarks:
        yield "remark", remark
    for change in diagnosis.changes:
        yield (
            f"{change.gain:.2f}x",
            (
                f"predicted (90%: {change.gain_low:.2f} to {change.gain_high:.2f}) with "
                f"{change.settings}, at {format_bytes(change.peak_memory_bytes)} "
                f"({format_bytes(change.peak_memory_low_bytes)} to "
                f"{format_bytes(change.peak_memory_high_bytes)}): " + "; ".join(change.edits)
            ),
        )
    if not diagnosis.is_predicted:
        yield "changes", "none can be predicted: a search measures them"
    elif not diagnosis.changes:
        yield "changes", "no single change is predicted to be faster"
    for note in diagnosis.notes:
        yield "note", note
    yield "study", diagnosis.study


def _trains(diagnosis: ScriptDiagnosis) -> str:
    said = diagnosis.settings
    tokens = f", {said['tokens_per_sample']} tokens a sample" if said["tokens_per_sample"] else ""
    frozen = f", {said['n_params_frozen']:,} frozen" if said["n_params_frozen"] else ""
    return (
        f"{diagnosis.model} ({said['n_params']:,} parameters{frozen}) by "
        f"{diagnosis.framework}, {said['precision']}, {said['optimizer']}{tokens}"
    )


def _batch(said: Mapping[str, Any]) -> str:
    passes = format_count(said["grad_accum"], "pass", "passes")
    ranks = format_count(said["world"], "rank")
    return (
        f"{format_count(said['micro_batch'], 'sample')} a pass, {passes} a step, {ranks}: "
        f"{format_count(said['global_batch'], 'sample')} a step"
    )


def _memory(diagnosis: ScriptDiagnosis) -> str:
    peak = diagnosis.result.peak_memory_bytes
    said = "not known" if peak is None else format_bytes(peak)
    here = {name: value for name, value in diagnosis.memory_bytes.items() if value}
    on_host = here.pop("host", 0.0)
    parts = [
        f"{MEMORY_PARTS[f'{name}_bytes']} {format_bytes(value)}" for name, value in here.items()
    ]
    total = format_bytes(sum(here.values()))
    predicted = f"; predicted {total} in all: {', '.join(parts)}" if parts else ""
    besides = f"; on the host {format_bytes(on_host)}" if on_host else ""
    return f"{said} at the peak of the fullest rank{predicted}{besides}"


def _speeds(diagnosis: ScriptDiagnosis) -> Iterator[str]:
    row, has_tokens = diagnosis.row, bool(diagnosis.settings["tokens_per_sample"])
    for name, unit, is_of_tokens in (
        ("samples_per_s", "samples/s", False),
        ("tokens_per_s", "tokens/s", True),
        ("tflops_per_device", "TFLOP/s per accelerator", True),
    ):
        value = _json(row.get(name))
        if value is not None and (has_tokens or not is_of_tokens):
            yield f"{value:,.4g} {unit}"
    mfu = _json(row.get("mfu"))
    if mfu is not None and has_tokens:
        yield f"MFU {mfu:.1%}"


def _json(value: Any) -> Any:
    """A cell of the table as JSON holds it."""
    if hasattr(value, "item"):
        value = value.item()
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    if is_missing or type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)
