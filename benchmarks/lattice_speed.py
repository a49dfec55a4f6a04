"""How fast a lattice is built: candidates rendered and judged per second.

The space's recomputation is widened to three values, which makes a grid of 20,000 candidates of
the shipped `zero_offload` for a 7B model on eight GPUs.
"""

import argparse
import dataclasses
import json
import time

from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.job.job import make_job
from autotune.planning.lattice import build_lattice
from autotune.space.space import load_space
from autotune.space.space_file import Domain
from autotune.testing import ENVIRONMENT


def measure(space_name: str, model: str) -> dict[str, str | int | float]:
    """Build one lattice as a search on eight GPUs would, and propose once."""
    data = {"model": model, "seq_len": 2048, "global_batch": 512, "world": 8, "space": space_name}
    job = make_job(data, where="benchmark")
    engine = DeepSpeedEngine(job, ENVIRONMENT)
    shipped = load_space(space_name, KNOBS)
    wider = {**shipped.domains, "recompute": Domain(values=("none", "every_2", "full"))}
    space = dataclasses.replace(shipped, domains=wider)

    started = time.perf_counter()
    lattice = build_lattice(space, engine)
    built_s = time.perf_counter() - started

    proposal = {"zero.stage": 3, "micro_batch": 16}
    lattice.nearest(proposal)  # the columns are made once
    started = time.perf_counter()
    lattice.nearest(proposal)
    nearest_s = time.perf_counter() - started
    return {
        "space": space_name,
        "model": model,
        "grid": lattice.grid_size,
        "legal": len(lattice.candidates),
        "build_s": round(built_s, 3),
        "candidates_per_s": round(lattice.grid_size / built_s),
        "nearest_s": round(nearest_s, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="zero_offload", help="name or path of a space")
    parser.add_argument("--model", default="llama-2-7b", help="preset")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = measure(options.space, options.model)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:17} {value}")


if __name__ == "__main__":
    main()
