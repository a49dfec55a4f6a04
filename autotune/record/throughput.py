"""A trial's samples/s in tokens and in floating-point operations, for the table."""

from autotune.contract import TrialResult, TrialSpec
from autotune.devices.hardware import Environment
from autotune.job.model import ModelShape, train_flops_per_token
from autotune.trial.scripts.lengths import batch_lengths, is_drawn


def throughput_cells(
    spec: TrialSpec,
    result: TrialResult,
    shape: ModelShape | None,
    environment: Environment | None,
) -> dict[str, float]:
    """Cells of a measured trial, by column.

    Args:
        spec: The trial.
        result: What it measured.
        shape: The model's; None where it is not known.
        environment: Where it ran; None where that is not known.
    """
    cells = _token_cells(spec, result, result.samples_per_s or 0.0)
    if shape is None or "tokens_per_s" not in cells:
        return cells
    flops_per_token = train_flops_per_token(shape, _attended(spec))
    flops_per_s = flops_per_token * cells["tokens_per_s"] / spec.layout.world
    cells["tflops_per_device"] = flops_per_s / 1e12
    peak_flops = peak_flops_of(spec, environment)
    if peak_flops is not None:
        cells["mfu"] = flops_per_s / peak_flops
    return cells


def peak_flops_of(spec: TrialSpec, environment: Environment | None) -> float | None:
    """FLOP/s of one device, dense, at the trial's precision; None where that is not known.

    Args:
        spec: The trial.
        environment: Where it ran; None where that is not known.
    """
    if environment is None or spec.workload.precision == "fp32":
        return None
    return environment.peak_flops or None


def _token_cells(spec: TrialSpec, result: TrialResult, samples_per_s: float) -> dict[str, float]:
    """Tokens per second: counted by the ranks where samples differ in length."""
    if not is_drawn(spec.workload.lengths):
        tokens_per_s = samples_per_s * spec.workload.seq_len
        return {"tokens_per_s": tokens_per_s, "padded_tokens_per_s": tokens_per_s}
    if result.tokens_per_step is None or result.padded_tokens_per_step is None:
        return {}
    steps_per_s = samples_per_s / spec.layout.global_batch
    return {
        "tokens_per_s": result.tokens_per_step * steps_per_s,
        "padded_tokens_per_s": result.padded_tokens_per_step * steps_per_s,
    }


def _attended(spec: TrialSpec) -> float:
    """Tokens that an average token of a batch attends among, itself included."""
    if not is_drawn(spec.workload.lengths):
        return spec.workload.seq_len
    drawn = batch_lengths(spec.workload.lengths, spec.layout.global_batch)
    return sum(length * length for length in drawn) / sum(drawn)
