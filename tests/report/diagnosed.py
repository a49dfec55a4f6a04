"""Results of trials that had a diagnostic pass, for scripted searches."""

import dataclasses

from autotune.contract import Collective, Diagnosis, GpuUse, Split, TrialResult, TrialSpec, Use
from tests.search.scripted import ok, rate_of


def split_of(
    *,
    matmul: float = 0.0,
    memory: float = 0.0,
    optimizer: float = 0.0,
    communication: float = 0.0,
    host: float = 0.0,
) -> Split:
    """A step of one second: what is not named is matrix products."""
    matmul += 1 - matmul - memory - optimizer - communication - host
    work = matmul + memory + host
    return Split(
        step_s=1.0,
        forward_s=0.3 * work,
        backward_s=0.6 * work,
        optimizer_s=optimizer,
        communication_s=communication,
        data_s=0.1 * work,
        overlapped_s=0.05,
        matmul_s=matmul,
        memory_s=memory,
        host_s=host,
    )


def collective(message_bytes: int, *, name: str = "all_reduce", calls: int = 8) -> Collective:
    return Collective(
        name=name,
        message_bytes=message_bytes,
        group_size=2,
        calls=calls,
        transfer_s=0.2,
        waiting_s=0.05,
        algbw_bytes_per_s=calls * message_bytes / 0.2,
        busbw_bytes_per_s=calls * message_bytes / 0.2,
    )


def diagnosis(*collectives: Collective, **shares: float) -> Diagnosis:
    return Diagnosis(
        steps=2, rank=1, split=split_of(**shares), waiting_s=0.1, collectives=list(collectives)
    )


GPU = GpuUse(
    samples=20,
    utilization=0.9,
    power_w=400.0,
    energy_j=3200.0,
    clock_hz=1.4e9,
    temperature_c=71.0,
    throttled=0.25,
    throttle_reasons=["power cap"],
)


def diagnosed(spec: TrialSpec) -> TrialResult:
    """Bound by communication at stage 3, by compute below it."""
    shares = {"communication": 0.6} if spec.identity.knobs["zero.stage"] == 3 else {"host": 0.1}
    seen = diagnosis(collective(4096), collective(8 * 2**20, calls=1), **shares)
    result = ok(spec, rate_of(spec))
    return dataclasses.replace(
        result, diagnosis=seen, use=Use(cpu_s=8.0, cpu_utilization=0.95, gpu=GPU)
    )
