"""How far is traced memory off what the same training step really allocates on a CPU?

    python benchmarks/trace_memory.py [--models NAME ...] [--half] [--json]

Builds each model for real, trains two steps under torch's profiler, and adds up the allocator's
own reports; then traces the same step with fake tensors. Compared is what each phase holds at its
peak above the weights. Both are counted in bytes, so runs repeat exactly.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from autotune.job.model import load_model
from autotune.tracing.child import answer_to
from autotune.tracing.moments import Bytes, Kind, Part, StepPhase, Traced
from autotune.trial.scripts.train import DTYPES, apply_recompute, default_dtype, from_config

PRECISIONS = ("fp32", "bf16")
ATTENTIONS = ("eager", "sdpa")
RECOMPUTES = ("none", "full")
MIB = 2**20


def largest(parts: Mapping[Part, Bytes]) -> dict[StepPhase, Bytes]:
    """What is held at the fullest moment of each phase."""
    phases = dict.fromkeys(part.phase for part in parts)
    return {
        phase: max(
            (held for part, held in parts.items() if part.phase is phase),
            key=lambda held: sum(held.values()),
        )
        for phase in phases
    }


def main() -> int:
    options = parse_arguments()
    choices = (options.models, PRECISIONS, ATTENTIONS, RECOMPUTES)
    cases: list[list[Any]] = [
        [of[index] for of, index in zip(choices, indices, strict=True)]
        for indices in itertools.product(*(range(len(of)) for of in choices))
        if not options.half or sum(indices) % 2 == 0
    ]
    rows = [compare(request_of(*case, options=options)) for case in cases]
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        phases = (
            f"{phase} {row['traced_bytes'][phase] / MIB:.2f} of {real / MIB:.2f} MiB"
            for phase, real in row["real_bytes"].items()
        )
        print(f"{row['case']}: {', '.join(phases)}")
    print(f"largest error: {max(row['error'] for row in rows):.2%}")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "tiny-gpt2"])
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument(
        "--half", action="store_true", help="half of the cases, in which any three choices meet"
    )
    parser.add_argument("--json", action="store_true", help="one JSON array")
    return parser.parse_args()


def request_of(
    name: str, precision: str, attention: str, recompute: str, *, options: argparse.Namespace
) -> dict[str, Any]:
    model = load_model(name)
    return {
        "source": model.source,
        "seq_len": options.seq_len,
        "micro_batch": options.micro_batch,
        "precision": precision,
        "attention": attention,
        "recompute": recompute,
        "loss_chunk_tokens": 0,
        "gradients": "grow",
        "granule_bytes": 1,
        "has_fused_dropout": False,
        "name": name,
    }


def compare(request: dict[str, Any]) -> dict[str, Any]:
    traced = Traced.from_dict(answer_to(request))
    told = {
        phase.value: sum(size for kind, size in held.items() if kind is not Kind.PARAMETERS)
        for phase, held in largest(traced.parts).items()
    }
    real = measured(request)
    case = " ".join(str(request[key]) for key in ("name", "precision", "attention", "recompute"))
    error = max(abs(told[phase] - size) / size for phase, size in real.items())
    return {"case": case, "traced_bytes": told, "real_bytes": real, "error": error}


def measured(request: dict[str, Any]) -> dict[str, int]:
    """What the allocator says that a real step holds above the weights: its peak in each phase."""
    torch.manual_seed(0)
    dtype = DTYPES[request["precision"]]
    with default_dtype(dtype):
        model = from_config(request["source"]["config"], dtype, request["attention"])
    apply_recompute(model, request["recompute"])
    model.train()
    size = (request["micro_batch"], request["seq_len"])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        tokens = torch.randint(0, request["source"]["vocab"], size)
        with record_function(StepPhase.FORWARD):
            output = model(input_ids=tokens, labels=tokens)
        with record_function(StepPhase.BACKWARD):
            output.loss.backward()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        optimizer.step()
        with record_function(StepPhase.STEP):
            optimizer.step()
    return peaks(seen.profiler.kineto_results.events())


def peaks(events: Any) -> dict[str, int]:
    spans = {e.name(): (e.start_ns(), e.end_ns()) for e in events if e.name() in list(StepPhase)}
    reports = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = 0
    found = dict.fromkeys(spans, 0)
    for at_ns, change_bytes in reports:
        held += change_bytes
        for name, (start_ns, end_ns) in spans.items():
            if start_ns <= at_ns <= end_ns:
                found[name] = max(found[name], held)
    return found


if __name__ == "__main__":
    sys.exit(main())
