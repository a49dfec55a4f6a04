"""How fast the cost model judges candidates, and how long a large plan takes.

The first figure is of memory and time together, on one core, for candidates that differ in their
layout. The second is of a whole search for a model of 10^12 parameters on 16,384 H100: every legal
layout is made, judged, screened by memory and ranked.
"""

import argparse
import dataclasses
import itertools
import json
import time

import numpy as np

from autotune.accelerators import find_accelerator
from autotune.cost.plans import Plans, Recompute
from autotune.cost.predict import predict

_H100 = find_accelerator("H100")
_WORLD = 16_384
_GLOBAL_BATCH = 16_384
_TRILLION = {
    # Narayanan et al. (arXiv:2104.04473), table 1, last row.
    "n_layers": 128.0,
    "hidden": 25_600.0,
    "ffn_hidden": 102_400.0,
    "n_heads": 160.0,
    "n_kv_heads": 160.0,
    "head_dim": 160.0,
    "vocab": 51_200.0,
    "seq_len": 2048.0,
}
_DEVICE = {
    "matmul_flops": _H100.achieved_flops["bf16"],
    "half_flops": _H100.achieved_flops["bf16"],
    "sustained_share": _H100.sustained_share,
    "memory_bytes": _H100.memory_bytes,
    "memory_bytes_per_s": _H100.memory_bytes_per_s,
    "nvlink_bytes_per_s": _H100.nvlink_bytes_per_s,
    "network_bytes_per_s": _H100.network_bytes_per_s,
    "host_bytes_per_s": _H100.host_bytes_per_s,
    "nvlink_domain": float(_H100.nvlink_domain),
    "devices_per_node": float(_H100.devices_per_node),
}


def layouts() -> Plans:
    """Every legal layout of the trillion-parameter model on the fleet."""
    found = []
    for tp, pp, cp in itertools.product((1, 2, 4, 5, 8, 10, 16), range(1, 129), (1, 2, 4, 8)):
        dp = _WORLD // (tp * pp * cp)
        if tp * pp * cp * dp != _WORLD or 128 % pp or 160 % tp:
            continue
        for vp, micro_batch in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16)):
            if pp * vp > 128 or 128 % (pp * vp) or (vp > 1 and pp == 1):
                continue
            if _GLOBAL_BATCH % (dp * micro_batch):
                continue
            grad_accum = _GLOBAL_BATCH // (dp * micro_batch)
            if vp > 1 and grad_accum % pp:
                continue
            for stage, recompute, sequence in itertools.product(
                (0, 1, 2, 3), tuple(Recompute)[:3], (0, 1)
            ):
                if (stage >= 2 and pp > 1) or (sequence and tp == 1):
                    continue
                found.append(
                    (dp, tp, pp, vp, cp, micro_batch, grad_accum, stage, recompute, sequence)
                )
    columns = np.array(found, dtype=np.float64).T
    names = ("dp", "tp", "pp", "vp", "cp", "micro_batch", "grad_accum", "zero_stage")
    names = (*names, "recompute", "sequence_parallel")
    return Plans(**_TRILLION, **_DEVICE, **dict(zip(names, columns, strict=True)))


def measure_rate(n: int, repeats: int) -> float:
    """Candidates per second: the best of some runs, since others use the machine too."""
    made = layouts()
    random = np.random.default_rng(0)
    plans = made.rows(random.integers(0, len(made), n))
    predict(plans)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        predict(plans)
        times.append(time.perf_counter() - started)
    return n / min(times)


def measure_plan() -> dict[str, float]:
    """One whole search."""
    started = time.perf_counter()
    plans = layouts()
    predicted = predict(plans)
    fits = np.flatnonzero(predicted.fit_probability > 0.5)
    best = fits[np.argmin(predicted.step_time_s[fits])]
    took = time.perf_counter() - started
    chosen = {
        field.name: float(np.asarray(getattr(plans.rows(np.array([best])), field.name)).item())
        for field in dataclasses.fields(plans)
        if field.name in {"dp", "tp", "pp", "vp", "cp", "micro_batch", "zero_stage", "recompute"}
    }
    return {
        "plan_1t_16384_s": took,
        "plan_candidates": len(plans),
        "plan_fitting": len(fits),
        "plan_step_time_s": float(predicted.step_time_s[best]),
        **{f"plan_{name}": value for name, value in chosen.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=500_000, help="of the first figure")
    parser.add_argument("--repeats", type=int, default=5, help="runs, of which the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = {
        "candidates_per_s": round(measure_rate(options.candidates, options.repeats)),
        **{name: round(value, 4) for name, value in measure_plan().items()},
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:g}")


if __name__ == "__main__":
    main()
