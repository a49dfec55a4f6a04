"""A user's own command diagnosed: what one run of it shows, fact by fact."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.base.templates import Fact, tell
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
    """The run as a row of the table, as JSON holds it."""
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
    search: str
    """The search that goes on from it, as a command."""

    def as_dict(self) -> dict[str, Any]:
        names = ("command", "study", "framework", "model", "settings", "origins", "memory_bytes")
        return {
            **{name: getattr(self, name) for name in names},
            "row": self.row,
            "explanation": None if self.explanation is None else self.explanation.as_dict(),
            "remarks": list(self.remarks),
            "disturbed": self.result.disturbed,
            "is_predicted": self.is_predicted,
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "notes": list(self.notes),
        }


def describe_script(diagnosis: ScriptDiagnosis) -> list[Fact]:
    """The diagnosis as (name, text)."""
    memory_bytes = {name: value for name, value in diagnosis.memory_bytes.items() if value}
    explanation = diagnosis.explanation
    return tell(
        "script",
        {
            "diagnosis": diagnosis,
            "speeds": [*_speeds(diagnosis)],
            "host_bytes": memory_bytes.pop("host", 0.0),
            "parts": {MEMORY_PARTS[f"{name}_bytes"]: size for name, size in memory_bytes.items()},
            "facts": [] if explanation is None else describe(explanation),
        },
    )


def _speeds(diagnosis: ScriptDiagnosis) -> Iterator[str]:
    row, has_tokens = diagnosis.row, bool(diagnosis.settings["tokens_per_sample"])
    for name, unit, is_of_tokens in (
        ("samples_per_s", "samples/s", False),
        ("tokens_per_s", "tokens/s", True),
        ("tflops_per_device", "TFLOP/s per accelerator", True),
    ):
        value = row.get(name)
        if value is not None and (has_tokens or not is_of_tokens):
            yield f"{value:,.4g} {unit}"
    mfu = row.get("mfu")
    if mfu is not None and has_tokens:
        yield f"MFU {mfu:.1%}"
