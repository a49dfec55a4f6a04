"""How fast a lattice is built and ranked in columns, and its candidates judged one at a time.

The space is `full`: millions of candidates for a 7B model on eight GPUs. Of those that the rules
do not refuse by a few knobs alone, a sample is rendered and judged. Rates are per second of this
process's own time on a core, since other processes may use the machine; `wall_s` is by the clock.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from autotune.cost.predict import predict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.job.job import make_job
from autotune.planning.choices import ranked
from autotune.planning.lattice import Lattice, build_lattice
from autotune.record.study import Study
from autotune.search.history import History
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import steering_of
from autotune.space.space_file import load_space
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

    steering = steering_of(
        Session(
            job=job,
            engine=engine,
            place=RecordedPlace(ENVIRONMENT, {}),
            study=Study(Path(), "speed"),
            known_lattice=lattice,
        )
    )
    proposing_s = []
    for _ in range(2):
        started = clock()
        steering.propose(History(), set(), n_budget=20, seed=0)
        proposing_s.append(clock() - started)

    judged_s, n_refused = _judged(lattice, n_sampled)
    return {
        "space": space_name,
        "model": model,
        "grid": lattice.grid_size,
        "not_refused": len(lattice.candidates),
        "build_s": round(built_s, 3),
        "rank_s": round(ranked_s, 3),
        "wall_s": round(wall_s, 3),
        "candidates_per_s": round(lattice.grid_size / (built_s + ranked_s)),
        "judged_per_s": round(n_sampled / judged_s),
        "refused_of_sample": n_refused,
        "peak_mib": round(planned_mib),
        "first_proposal_s": round(proposing_s[0], 3),
        "next_proposal_s": round(proposing_s[1], 3),
        "peak_proposing_mib": round(_peak_mib()),
        "best": engine.describe(best),
    }


def _judged(lattice: Lattice, n_sampled: int) -> tuple[float, int]:
    """Seconds to judge a sample of a lattice, and candidates of it that the rules refuse."""
    n = len(lattice.candidates)
    sampled = np.random.default_rng(0).choice(n, min(n_sampled, n), replace=False).tolist()
    started = time.process_time()
    n_refused = sum(not lattice.is_legal(place) for place in sampled)
    return time.process_time() - started, n_refused


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="full", help="name or path of a space")
    parser.add_argument("--model", default="llama-2-7b", help="preset")
    parser.add_argument("--sampled", type=int, default=3000, help="candidates judged")
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
