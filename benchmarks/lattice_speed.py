"""How fast a lattice is built and ranked, in columns and one candidate at a time.

The space is `full`: about a million candidates for a 7B model on eight GPUs. One at a time, the
way that is the witness, a sample is rendered and judged; every candidate of the sample has to get
the same verdict in columns. Rates are per second of this process's own time on a core, since other
processes may use the machine; `wall_s` is by the clock.
"""

import argparse
import json
import resource
import time
from collections import Counter

import numpy as np

from autotune.cost.predict import predict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.job.job import make_job
from autotune.planning.choices import ranked
from autotune.planning.lattice import build_lattice
from autotune.search.history import History
from autotune.search.steering import steering_of
from autotune.space.grid import grid_rows
from autotune.space.space import load_space
from autotune.testing import ENVIRONMENT

_MIN_FIT = 0.5


def measure(space_name: str, model: str, n_sampled: int) -> dict[str, str | int | float]:
    """Build one lattice as a search on eight GPUs would, rank it and propose twice."""
    data = {"model": model, "seq_len": 2048, "global_batch": 512, "world": 8, "space": space_name}
    job = make_job(data, where="benchmark")
    engine = DeepSpeedEngine(job, ENVIRONMENT)
    space = load_space(space_name, KNOBS)

    clock, began = time.process_time, time.perf_counter()
    started = clock()
    lattice = build_lattice(space, engine)
    built_s = clock() - started
    started = clock()
    found = predict(engine.plans(lattice.candidates))
    order = ranked(
        found.step_time_s, found.peak_memory_bytes, found.fit_probability, min_fit=_MIN_FIT
    )
    best = lattice.candidates[int(order[0])]
    ranked_s = clock() - started
    wall_s = time.perf_counter() - began
    planned_mib = _peak_mib()

    steering = steering_of(job, ENVIRONMENT, lattice)
    proposing_s = []
    for _ in range(2):
        started = clock()
        steering.propose(History(), set(), n_budget=20, seed=0)
        proposing_s.append(clock() - started)

    one_by_one_s, n_differ = _one_by_one(engine, space_name, n_sampled)
    return {
        "space": space_name,
        "model": model,
        "grid": lattice.grid_size,
        "legal": len(lattice.candidates),
        "build_s": round(built_s, 3),
        "rank_s": round(ranked_s, 3),
        "wall_s": round(wall_s, 3),
        "candidates_per_s": round(lattice.grid_size / (built_s + ranked_s)),
        "one_by_one_per_s": round(n_sampled / one_by_one_s),
        "one_by_one_differ": n_differ,
        "peak_mib": round(planned_mib),
        "first_proposal_s": round(proposing_s[0], 3),
        "next_proposal_s": round(proposing_s[1], 3),
        "peak_proposing_mib": round(_peak_mib()),
        "best": engine.describe(best),
    }


def _one_by_one(engine: DeepSpeedEngine, space_name: str, n_sampled: int) -> tuple[float, int]:
    """Seconds to judge a sample one by one, and candidates of it that are judged otherwise."""
    rows = grid_rows(load_space(space_name, KNOBS), engine.context)
    judged = engine.judge_all(rows)
    sampled = np.random.default_rng(0).choice(len(rows), min(n_sampled, len(rows)), replace=False)
    candidates = [rows[row] for row in sampled.tolist()]
    started = time.process_time()
    told = [Counter(v.rule for v in engine.judge(candidate)) for candidate in candidates]
    seconds = time.process_time() - started
    in_columns = [
        {name: int(counts[row]) for name, counts in judged.broken.items() if counts[row]}
        for row in sampled.tolist()
    ]
    return seconds, sum(one != other for one, other in zip(told, in_columns, strict=True))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="full", help="name or path of a space")
    parser.add_argument("--model", default="llama-2-7b", help="preset")
    parser.add_argument("--sampled", type=int, default=3000, help="candidates judged one by one")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = measure(options.space, options.model, options.sampled)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:19} {value}")


if __name__ == "__main__":
    main()
