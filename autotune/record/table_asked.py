"""Columns of the table that say what was asked of a trial: which one it is, and what it runs."""

import dataclasses
import json
from typing import Any

from autotune.contract import TrialSpec
from autotune.record.column import column

IDENTITY = (
    column("table_version", "Int64", "version of this schema"),
    column("study", "string", "name of the study's folder"),
    column("trial", "Int64", "number of the trial, from 0; names its folder"),
    column("role", "string", "why it was run: baseline, search, confirm (final comparison)"),
    column("confirm_round", "Int64", "round of the final comparison; empty for other roles"),
    column("retry_of", "Int64", "number of the trial that it repeats after a platform fault"),
    column("repeat_of", "Int64", "number of the disturbed trial that it repeats"),
    column("candidate_hash", "string", "identity of the candidate: equal hashes, equal runs"),
    column(
        "fidelity_layers",
        "Int64",
        "layers of the model in a reduced trial, whose figures are those of what it ran and of no "
        "candidate; empty: all layers",
        unit="layers",
    ),
    column(
        "fidelity_world",
        "Int64",
        "accelerators of a reduced trial, where they are fewer than the job's",
        unit="accelerators",
    ),
    column(
        "reduced_of",
        "string",
        "hash of the candidate that a reduced trial is a smaller form of; empty: a full trial",
    ),
    column("problem", "string", "why spec or result cannot be read; empty for a sound trial"),
)

DERIVED = (
    column("model", "string", "name of the model; empty where it is not the job's as a whole"),
    column("n_params", "Int64", "trainable parameters", unit="parameters"),
    column(
        "n_params_frozen",
        "Int64",
        "parameters that are not trained: with LoRA all but the adapters",
        unit="parameters",
    ),
    column("finetune", "string", "what is trained where not every weight is, as JSON"),
    column("precision", "string", "training precision: bf16, fp16, fp32"),
    column("world", "Int64", "accelerators of the trial", unit="accelerators"),
    column("dp", "Int64", "data parallel degree: world / (tp * pp * sp)"),
    column("tp", "Int64", "tensor parallel degree"),
    column("pp", "Int64", "pipeline parallel degree"),
    column("sp", "Int64", "sequence parallel degree"),
    column("micro_batch", "Int64", "per rank and forward pass", unit="samples"),
    column("grad_accum", "Int64", "forward passes per optimizer step"),
    column(
        "global_batch",
        "Int64",
        "per optimizer step: micro_batch * grad_accum * dp",
        unit="samples",
    ),
    column("seq_len", "Int64", "per sample; the most where they differ", unit="tokens"),
    column("lengths", "string", "of the samples: fixed, packed, histogram"),
)

PREDICTED = (
    column(
        "predicted_step_time_s",
        "float64",
        "what the calibrated cost model said before the trial; empty: nothing",
        unit="s",
    ),
    column("predicted_step_time_low_s", "float64", "its 95% interval, lower end", unit="s"),
    column("predicted_step_time_high_s", "float64", "its 95% interval, upper end", unit="s"),
    column("predicted_peak_memory_bytes", "float64", "the same of the peak per device", unit="B"),
    column("predicted_peak_memory_low_bytes", "float64", "95% interval, lower end", unit="B"),
    column("predicted_peak_memory_high_bytes", "float64", "95% interval, upper end", unit="B"),
)

_SPEC_FIELDS = {
    "identity": ("role", "confirm_round", "candidate_hash", "reduced_of"),
    "provenance": ("retry_of", "repeat_of"),
    "workload": ("precision", "seq_len", "seed"),
    "layout": (
        *("world", "dp", "tp", "pp", "sp", "micro_batch", "grad_accum", "global_batch"),
        "accelerator",
    ),
    "measure": ("memory_limit_bytes",),
}
"""Part of a spec -> its fields that are columns of the same name."""


def cells(spec: TrialSpec) -> dict[str, Any]:
    """A trial's cells in these columns and in those of the knobs, as far as its spec says them."""
    row: dict[str, Any] = {
        name: getattr(getattr(spec, part), name)
        for part, names in _SPEC_FIELDS.items()
        for name in names
    }
    row |= {"role": str(spec.identity.role), "trial": spec.identity.number}
    row |= {f"knob.{name}": value for name, value in spec.identity.knobs.items()}
    if "lora" in spec.workload.model:
        row["finetune"] = json.dumps({"lora": spec.workload.model["lora"]}, sort_keys=True)
    if spec.identity.fidelity is not None:
        row |= {
            f"fidelity_{name}": value
            for name, value in dataclasses.asdict(spec.identity.fidelity).items()
        }
    row["lengths"] = spec.workload.lengths.get("kind", "fixed")
    if spec.provenance.predicted is not None:
        said = dataclasses.asdict(spec.provenance.predicted)
        row |= {f"predicted_{name}": value for name, value in said.items()}
    return row
