"""A candidate: one value for every active knob, with what follows from them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.contract import Fidelity, KnobValue, Layout, TrialSpec

_NEUTRAL = frozenset({("pp", 1), ("sp", 1), ("ep", 1)})
"""Knobs that came later and act wherever they are known, at the value that changes nothing."""


@dataclass(frozen=True)
class Candidate:
    """One configuration to try; equal candidates are the same run."""

    knobs: tuple[tuple[str, KnobValue], ...]
    """Sorted by name; only knobs that act here (see `autotune.space.knobs.canonical`)."""
    world: int
    global_batch: int
    layers: int | None = None
    """Layers of the model, where a reduced trial runs fewer; None: all that it has."""

    @classmethod
    def of(
        cls,
        knobs: Mapping[str, KnobValue],
        *,
        world: int,
        global_batch: int,
        layers: int | None = None,
    ) -> "Candidate":
        """Build a candidate from a mapping of knob names to values."""
        return cls(tuple(sorted(knobs.items())), world, global_batch, layers)

    @cached_property
    def values(self) -> dict[str, KnobValue]:
        """The knobs as a mapping; treat it as read-only."""
        return dict(self.knobs)

    def __getitem__(self, knob: str) -> KnobValue:
        return self.values[knob]

    def get(self, knob: str, default: KnobValue | None = None) -> KnobValue | None:
        """The knob's value, or `default` where the knob does not act."""
        return self.values.get(knob, default)

    @property
    def tp(self) -> int:
        return int(self.values.get("tp", 1))

    @property
    def pp(self) -> int:
        return int(self.values.get("pp", 1))

    @property
    def sp(self) -> int:
        return int(self.values.get("sp", 1))

    @property
    def cp(self) -> int:
        return int(self.values.get("cp", 1))

    @property
    def dp(self) -> int:
        """Data parallel degree: world / (tp * pp * sp * cp), rounded down; rules refuse a rest."""
        return max(1, self.world // (self.tp * self.pp * self.sp * self.cp))

    def precision(self, job: str) -> str:
        """Precision of the training: the job's, unless the candidate has another."""
        return str(self.values.get("precision", job))

    @property
    def micro_batch(self) -> int:
        """Samples per rank and forward pass."""
        return int(self.values["micro_batch"])

    @property
    def grad_accum(self) -> int:
        """global_batch / (micro_batch * dp), rounded down; the batch rules refuse a rest."""
        return max(1, self.global_batch // (self.micro_batch * self.dp))

    def reduced(self, fidelity: Fidelity) -> "Candidate":
        """The reduced form of this candidate, which a reduced trial runs.

        Fewer accelerators are fewer replicas: the global batch shrinks with them, so that
        micro_batch and grad_accum stay. Where the layout does not fit any more, the rules refuse
        it.
        """
        world = fidelity.world or self.world
        return Candidate.of(
            self.values,
            world=world,
            global_batch=self.global_batch * world // self.world,
            layers=fidelity.layers,
        )

    @cached_property
    def hash(self) -> str:
        """Identity in the record: 12 hex digits over the knobs, the world and the global batch.

        And the layers, where they are fewer: a reduced run is never taken for the candidate's own.

        A layout without pipeline, sequence and expert parallelism hashes as it did before there
        were such knobs: a record that is older still names its candidates.
        """
        knobs = [pair for pair in self.knobs if pair not in _NEUTRAL]
        reduced = [] if self.layers is None else [self.layers]
        text = json.dumps([knobs, self.world, self.global_batch, *reduced])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return " ".join(f"{name}={format_value(value)}" for name, value in self.knobs)


def candidate_of(spec: TrialSpec) -> Candidate:
    """The candidate that a trial ran."""
    return Candidate.of(
        spec.identity.knobs,
        world=spec.layout.world,
        global_batch=spec.layout.global_batch,
        layers=None if spec.identity.fidelity is None else spec.identity.fidelity.layers,
    )


def layout_of(candidate: Candidate, accelerator: str) -> Layout:
    """How the ranks of a candidate's trial share the work, on `cpu` or `cuda`."""
    names = ("world", "tp", "pp", "sp", "dp", "micro_batch", "grad_accum", "global_batch")
    return Layout(accelerator=accelerator, **{name: getattr(candidate, name) for name in names})


def format_value(value: KnobValue | None) -> str:
    """A knob's value as YAML and `--set` spell it; large round counts as 5e8."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    digits = str(value)
    significant = digits.rstrip("0")
    if isinstance(value, int) and value >= 1_000_000 and len(significant) <= 2:
        return f"{'.'.join(significant)}e{len(digits) - 1}"
    return digits
