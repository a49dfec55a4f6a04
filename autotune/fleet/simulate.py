"""Answers a search from the analytic model, with an error, noise and failures that a seed decides.

Two trials of one candidate differ by the noise of a run alone, as on real devices: a candidate has
an error of its own, and each of its runs one more.
"""

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.units import format_bytes
from autotune.contract import Origin, Outcome, TrialResult, TrialSpec
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.hardware import detect_environment, versions_here
from autotune.engines.base import Engine
from autotune.fleet.base import Answer, AnsweringFleet, Place
from autotune.fleet.options import FleetOptions
from autotune.job.job import Job, accelerators_of, read_job_file
from autotune.planning.lattice import Lattice
from autotune.planning.outlook import FleetWishes, described
from autotune.space.candidate import Candidate, candidate_of

_DESCRIBED = re.compile(r"(?:(\d+)\s*x\s*)?(.+)")

Model = Callable[[Candidate], tuple[float, float]]
"""Step time, in seconds, and peak memory, in bytes, of a candidate."""
N_STEPS = 10
"""Steps that a simulated trial measures."""


@dataclass(frozen=True, kw_only=True)
class Luck:
    """How far simulated trials are from what the model says; deviations of logarithms."""

    seed: int
    time_error: float = 0.1
    """Error of a candidate's step time: what the model does not know of it."""
    memory_error: float = 0.05
    run_noise: float = 0.01
    step_noise: float = 0.01
    fidelity_error: float = 0.03
    """Error of a reduced run's step time, on top of its candidate's own."""
    p_platform_fault: float = 0.02
    """Probability that the platform ends a trial, whatever its candidate."""


class Simulate:
    """The analytic model; implements `FleetPlugin`."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> "_SimulatedPlace":
        """Devices such as `8xH100`, else those that the job names, else this machine's."""
        options.refuse("simulate")
        keys = {**({} if job_file is None else read_job_file(job_file)), **flags}
        found = _DESCRIBED.fullmatch(of or str(keys.get("gpu") or ""))
        if found is None:
            return _SimulatedPlace(detect_environment(), flags)
        per_node = None if found[1] is None else int(found[1])
        if per_node == 0:
            raise JobError.of("fleet.no_simulated_devices", of=of)
        wishes = FleetWishes(gpu=found[2], per_node=per_node)
        where = f"{flag('fleet')} simulate:{of}" if of else flag("gpu")
        named = described(wishes, accelerators_of(keys), where=where)
        return _SimulatedPlace(dataclasses.replace(named, **versions_here()), flags)


class _SimulatedPlace(Place):
    origin = Origin.SIMULATED

    def finish_job(self, job: Job, data: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
        """A study of its own, where nobody named one."""
        name = job.study if "study" in self.flags else f"simulated-{job.study}"
        return dataclasses.replace(job, study=name), {**data, "study": name}

    def fleet_for(
        self, job: Job, engine: Engine, lattice: Lattice
    ) -> Callable[[], AnsweringFleet]:
        constants = constants_of(self.environment)

        def say(candidate: Candidate) -> tuple[float, float]:
            predicted = predict(engine.plans([candidate]), constants)
            return float(predicted.step_time_s[0]), float(predicted.peak_memory_bytes[0])

        say(lattice.candidates[0])  # what cannot be predicted is said now
        have_bytes = self.environment.device_memory_bytes
        answer = simulated(say, Luck(seed=job.seed), device_memory_bytes=have_bytes)
        return partial(AnsweringFleet, answer, self.origin)


def simulated(say: Model, luck: Luck, *, device_memory_bytes: int) -> Answer:
    """Answers that devices might have given; no trial gets more than `device_memory_bytes`."""

    def answer(spec: TrialSpec) -> TrialResult:
        candidate = candidate_of(spec)
        step_time_s, peak_bytes = say(candidate)
        draws = _numbers(luck.seed, spec.identity.reduced_of or candidate.hash)
        run = _numbers(luck.seed, candidate.hash, spec.identity.number)
        reduced = _numbers(luck.seed, candidate.hash, "reduced")
        differs = 0.0 if spec.identity.fidelity is None else luck.fidelity_error
        made = partial(TrialResult.of, spec.identity, origin=Origin.SIMULATED)
        fault = partial(made, evidence_source="simulation")
        if run.random() < luck.p_platform_fault:
            return fault(Outcome.COMM, evidence="simulated: a collective timed out")
        step_time_s = step_time_s * _factor(draws, luck.time_error) * _factor(reduced, differs)
        peak_bytes *= _factor(draws, luck.memory_error)
        limit_bytes = min(
            spec.measure.memory_limit_bytes or device_memory_bytes, device_memory_bytes
        )
        if peak_bytes > limit_bytes:
            needed = f"{format_bytes(peak_bytes)} of {format_bytes(limit_bytes)}"
            evidence = f"simulated: out of memory, {needed}"
            return fault(Outcome.OOM, evidence=evidence)
        steps = step_time_s * _factor(run, luck.run_noise)
        step_times_s = [steps * _factor(run, luck.step_noise) for _ in range(N_STEPS)]
        median_s = float(np.median(step_times_s))
        # The median of normal values has 1.25 times the standard error of their mean.
        half = 1.96 * 1.25 * luck.step_noise / math.sqrt(N_STEPS)
        rate = spec.layout.global_batch / median_s
        return made(
            Outcome.OK,
            step_times_s=step_times_s,
            step_time_s=median_s,
            step_time_low_s=median_s * math.exp(-half),
            step_time_high_s=median_s * math.exp(half),
            samples_per_s=rate,
            samples_per_s_low=rate * math.exp(-half),
            samples_per_s_high=rate * math.exp(half),
            peak_memory_bytes=int(peak_bytes),
            memory_bytes={"peak": int(peak_bytes)},
        )

    return answer


def _numbers(seed: int, *of: object) -> np.random.Generator:
    """Random numbers that the seed and the arguments decide, whatever was asked before."""
    digest = hashlib.sha256(repr((seed, *of)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _factor(numbers: np.random.Generator, deviation: float) -> float:
    return math.exp(deviation * float(numbers.standard_normal()))
