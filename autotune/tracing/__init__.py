"""Memory of a training step of the user's own model, by running it with fake tensors."""

from autotune.tracing.moments import Kind, Part, StepPhase, Traced
from autotune.tracing.request import Trace, trace_candidate

__all__ = ["Kind", "Part", "StepPhase", "Trace", "Traced", "trace_candidate"]
