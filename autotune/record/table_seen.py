"""The table's columns of what a trial saw: where its time went, and what it took."""

from typing import Any

from autotune.contract import TrialResult, TrialSpec
from autotune.record.bottleneck import bottleneck, shares_of_calls
from autotune.record.column import Column, column

_FROM = "from the diagnostic pass"
_SHARE = "share, 0 to 1"

COLUMNS: tuple[Column, ...] = (
    column(
        "share.forward", "float64", f"of a step, in the engine's forward; {_FROM}", unit=_SHARE
    ),
    column(
        "share.backward", "float64", f"of a step, in the engine's backward; {_FROM}", unit=_SHARE
    ),
    column("share.optimizer", "float64", f"of a step, in the engine's step; {_FROM}", unit=_SHARE),
    column(
        "share.communication",
        "float64",
        f"of a step, in collectives while nothing was computed, waiting included; {_FROM}",
        unit=_SHARE,
    ),
    column(
        "share.data", "float64", f"of a step, between the engine's calls; {_FROM}", unit=_SHARE
    ),
    column("bound", "string", f"what a step mostly waits for; {_FROM}"),
    column(
        "cpu_utilization",
        "float64",
        "processor time of a rank over the time of its measured steps, the mean of the ranks",
        unit="cores",
    ),
    column("gpu_utilization", "float64", "time in which a kernel ran, by NVML", unit=_SHARE),
    column("power_w", "float64", "of one device, the mean, by NVML", unit="W"),
    column(
        "energy_per_sample_j", "float64", "of all devices of the trial, by NVML", unit="J/sample"
    ),
    column("gpu_clock_hz", "float64", "of the multiprocessors, the mean, by NVML", unit="Hz"),
    column("gpu_temperature_c", "float64", "highest of any device, by NVML", unit="degrees C"),
    column(
        "gpu_throttled", "float64", "readings in which the driver held the clock down", unit=_SHARE
    ),
)


def cells(spec: TrialSpec, result: TrialResult) -> dict[str, Any]:
    """A trial's cells, by column."""
    found: dict[str, Any] = {}
    diagnosis, use = result.diagnosis, result.use
    bound = bottleneck(spec, diagnosis)
    if bound is not None and diagnosis is not None and diagnosis.split is not None:
        shares = shares_of_calls(diagnosis.split)
        found = {f"share.{part}": share for part, share in shares.items()}
        found["bound"] = bound.bound.value
    if use is None:
        return found
    found["cpu_utilization"] = use.cpu_utilization
    if use.gpu is not None:
        found |= {
            "gpu_utilization": use.gpu.utilization,
            "power_w": use.gpu.power_w,
            "gpu_clock_hz": use.gpu.clock_hz,
            "gpu_temperature_c": use.gpu.temperature_c,
            "gpu_throttled": use.gpu.throttled,
            "energy_per_sample_j": energy_per_sample_j(spec, result),
        }
    return found


def energy_per_sample_j(spec: TrialSpec, result: TrialResult) -> float | None:
    """Energy of all devices over the measured phase, per sample that was trained in it."""
    gpu = None if result.use is None else result.use.gpu
    if gpu is None or gpu.energy_j is None or not result.step_times_s:
        return None
    # All that was trained in the phase that was measured, whatever counts for the figure.
    thrown_away = max(0, len(result.warmup_step_times_s) - spec.measure.warmup_steps)
    n_steps = len(result.step_times_s) + result.steps_skipped + thrown_away
    return gpu.energy_j / (n_steps * spec.layout.global_batch)
