"""One candidate, its memory predicted from a traced step of the model's own code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune import DEFAULT_ENGINE
from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.cost.constants import constants_of
from autotune.cost.errors import errors_of
from autotune.cost.memory import Held, Memory, memory_of_traced
from autotune.cost.problem import has_shape
from autotune.engines.base import find_engine
from autotune.planning.explained import Estimated, JudgedCandidate, estimate_candidate
from autotune.planning.outlook import Outlook
from autotune.tracing import Kind, StepPhase, Trace, Traced, trace_candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedEstimate(JudgedCandidate):
    """A candidate whose memory is predicted from a traced step of the model's own code."""

    analytic: Estimated | None
    """None: the model's sizes cannot be seen."""
    trace: Trace
    phases: Mapping[StepPhase, Memory]
    """The fullest moment of each; plain numbers."""
    fit_probability: float

    @property
    def memory(self) -> Memory:
        return max(self.phases.values(), key=lambda memory: float(memory.peak_bytes))


def trace_estimate(outlook: Outlook, settings: Sequence[str]) -> TracedEstimate:
    """Predict one candidate, legal or not, its memory also from a trace.

    If the model's sizes cannot be seen, nothing but that memory is predicted. The settings are as
    `Outlook.read` takes them.

    Raises:
        JobError: A setting is not one, or the candidate's step cannot be traced.
    """
    job, environment = outlook.job, outlook.environment
    if refusal := find_engine(job.engine).no_trace:
        raise JobError(
            f"{switch('trace')}: {flag('engine')} {job.engine}: {refusal}",
            f"trace with {flag('engine')} {DEFAULT_ENGINE}, or leave out {switch('trace')}",
        )
    candidate, notes = outlook.read(settings)
    is_seen = has_shape(job.model.shape)
    trace = trace_candidate(job, candidate, accelerator=environment.accelerator)
    plans = outlook.plans([candidate], needs_shape=is_seen)
    constants = constants_of(environment)
    phases = {
        phase: memory_of_traced(plans, constants, _held(trace.traced, phase))
        for phase in dict.fromkeys(part.phase for part in trace.traced.parts)
    }
    peaks = np.array([max(float(memory.peak_bytes) for memory in phases.values())])
    errors = errors_of(environment)
    spread = outlook.predict_plans(plans)[1].peak_memory if is_seen else errors.widest_memory
    return TracedEstimate(
        outlook=outlook,
        candidate=candidate,
        notes=notes,
        violations=tuple(outlook.engine.judge(candidate)),
        analytic=estimate_candidate(outlook, settings) if is_seen else None,
        trace=trace,
        phases=phases,
        fit_probability=float(np.squeeze(spread.below(plans.memory_bytes, peaks))),
    )


def _held(traced: Traced, phase: StepPhase) -> Held:
    """The moments of a phase, without the states: those are as the engine shards them."""
    held = [sizes for part, sizes in traced.parts.items() if part.phase is phase]

    def column(*kinds: Kind) -> NDArray[np.float64]:
        return np.array([sum(sizes[kind] for kind in kinds) for sizes in held], dtype=np.float64)

    # None are traced where ZeRO takes them: its buffers are there all the time.
    most_grads = max(sizes[Kind.GRADIENTS] for sizes in traced.parts.values())
    return Held(
        n_params=traced.n_params,
        activations_bytes=column(Kind.ACTIVATIONS, Kind.TEMPORARIES),
        logits_bytes=column(Kind.LOGITS),
        grads_share=column(Kind.GRADIENTS) / most_grads if most_grads else 1.0,
    )
