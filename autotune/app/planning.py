"""What the cost model says of a job's candidates on a fleet, here or described; nothing runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.accelerators import Accelerator, accelerators_with, find_accelerator
from autotune.app.session import read_job
from autotune.candidate import Candidate
from autotune.contract import write_json
from autotune.cost import Plans, Prediction, predict
from autotune.cost.candidates import constants_of, plans_of
from autotune.engines.base import Engine
from autotune.engines.deepspeed import DeepSpeedEngine
from autotune.errors import JobError
from autotune.hardware import Environment, detect_environment
from autotune.job import Job
from autotune.lattice import Lattice, build_lattice
from autotune.render.export import export_candidate
from autotune.report.ranking import Ranking, Variant, ranking_as_dict
from autotune.rules import judge
from autotune.space import load_space
from autotune.units import parse_bytes, parse_rate

MIN_FIT = 0.9
"""A candidate that fits less surely than this is ranked behind all that do."""


@dataclass(frozen=True, kw_only=True)
class FleetWishes:
    """A fleet as the command line describes it; None: what this machine or the vendor has."""

    gpu: str | None = None
    """Name of an accelerator of the table."""
    per_node: int | None = None
    network: str | None = None
    """A device's share of its node's network, one way, such as `400Gbps`."""
    nvlink: str | None = None
    """All links of a device together, one way."""
    accelerators: Path | None = None
    """A table of the user's, before the shipped one."""

    def __post_init__(self) -> None:
        if self.per_node is not None and self.per_node < 1:
            raise JobError(
                f"--per-node {self.per_node}: not above zero", "accelerators of one node"
            )

    @property
    def describes_a_fleet(self) -> bool:
        """Whether anything but the table is wished for."""
        return any((self.gpu, self.per_node, self.network, self.nvlink))


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A job on a fleet: what is legal there, and the columns that the fleet's links change."""

    job: Job
    environment: Environment
    engine: Engine
    lattice: Lattice
    wishes: FleetWishes
    table: tuple[Accelerator, ...]

    def plans(self, candidates: Sequence[Candidate]) -> Plans:
        """Candidates in the model's columns, with the links as they were described."""
        plans = plans_of(candidates, self.job, self.environment, accelerators=self.table)
        return dataclasses.replace(plans, **_links(self.wishes))

    def predict(self, candidates: Sequence[Candidate]) -> Prediction:
        """What the model says of some candidates."""
        return predict(self.plans(candidates), constants_of(self.environment))


def open_outlook(job_file: Path | None, flags: Mapping[str, Any], wishes: FleetWishes) -> Outlook:
    """Read the job, and find out what is legal for it on the fleet.

    Raises:
        JobError: The job, the space, the table or a description is not valid.
        FleetError: The accelerator is in no table.
        NothingFeasibleError: The rules refuse every candidate.
    """
    table = accelerators_with(wishes.accelerators)
    here = detect_environment()
    environment = here if wishes.gpu is None else described(wishes, here, table)
    job, _ = read_job(job_file, flags, environment)
    engine = DeepSpeedEngine(job, environment)
    lattice = build_lattice(load_space(job.space), job, environment, engine, judge)
    _links(wishes)  # a wrong rate is said before anything is computed
    return Outlook(
        job=job,
        environment=environment,
        engine=engine,
        lattice=lattice,
        wishes=wishes,
        table=table,
    )


def described(wishes: FleetWishes, here: Environment, table: Sequence[Accelerator]) -> Environment:
    """An environment that nobody has here: the accelerator's figures, this machine's versions."""
    assert wishes.gpu is not None
    found = find_accelerator(wishes.gpu, table=table)
    is_cpu = found.name == "CPU"
    known = tuple(name for name in ("fp32", "bf16", "fp16") if name in found.peak_flops)
    return Environment(
        accelerator="cpu" if is_cpu else "cuda",
        n_devices=found.devices_per_node if wishes.per_node is None else wishes.per_node,
        device_name=found.name,
        device_memory_bytes=int(found.memory_bytes),
        peak_flops=None if is_cpu else found.peak_flops[found.half],
        deepspeed_version=here.deepspeed_version,
        torch_version=here.torch_version,
        precisions=known,
    )


def rank_lattice(
    outlook: Outlook,
    *,
    min_fit: float = MIN_FIT,
    price_per_hour: float | None = None,
    what_if: Sequence[str] = (),
) -> Ranking:
    """Rank the lattice.

    Args:
        outlook: The job and the fleet.
        min_fit: Candidates that fit less surely come last.
        price_per_hour: Of one accelerator; None where nobody said.
        what_if: `key=value` each; what the fleet would be otherwise.

    Raises:
        JobError: A wish is not one.
    """
    candidates = outlook.lattice.candidates
    found = outlook.predict(candidates)
    order = ranked(found, min_fit)
    return Ranking(
        job=outlook.job,
        environment=outlook.environment,
        context=outlook.lattice.context,
        candidates=candidates,
        prediction=found,
        order=order,
        on_front=_front(found, order, min_fit),
        min_fit=min_fit,
        price_per_hour=price_per_hour,
        time_sigma=constants_of(outlook.environment).time_sigma,
        variants=tuple(
            _variant(outlook, wish, best=int(order[0]), min_fit=min_fit) for wish in what_if
        ),
    )


def ranked(found: Prediction, min_fit: float) -> NDArray[np.intp]:
    """Indices of candidates, fastest first; after them those that may not fit, surest first."""
    fits = found.fit_probability >= min_fit
    return np.lexsort((found.step_time_s, np.where(fits, 0.0, -found.fit_probability), ~fits))


def export_ranked(outlook: Outlook, kept: Ranking, rank: int, folder: Path, to: str) -> list[Path]:
    """Write the files of a ranked candidate, with what was predicted of it.

    Raises:
        JobError: There is no such rank.
        RenderError: The folder cannot be written, or there is no such dialect.
    """
    if not 1 <= rank <= len(kept.candidates):
        raise JobError(
            f"--rank {rank}: there are {len(kept.candidates)} candidates", "1 is the best one"
        )
    files = export_candidate(
        kept.candidates[int(kept.order[rank - 1])],
        folder,
        engine=outlook.engine,
        job=outlook.job,
        environment=outlook.environment,
        to=to,
    )
    marked = folder / "prediction.json"
    write_json(marked, ranking_as_dict(kept, [rank])["candidates"][0])
    return [*files, marked]


_CHANGES: Mapping[str, str] = {
    "bandwidth": "network",
    "network": "network",
    "nvlink": "nvlink",
    "gpu": "gpu",
    "memory": "memory",
    "per_node": "per_node",
}
"""Key of a what-if -> what it changes."""


def _variant(outlook: Outlook, wish: str, *, best: int, min_fit: float) -> Variant:
    """The lattice on another fleet; what is legal is not asked again."""
    key, equals, value = (part.strip() for part in wish.partition("="))
    if not equals or not value or key not in _CHANGES:
        raise JobError(
            f"--what-if {wish}: not a change of the fleet",
            f"write it as bandwidth=20Gbps; keys: {', '.join(_CHANGES)}",
        )
    other = _CHANGED[_CHANGES[key]](outlook, value, f"--what-if {wish}")
    candidates = outlook.lattice.candidates
    found = other.predict(candidates)
    first = int(ranked(found, min_fit)[0])
    return Variant(
        change=f"{key}={value}",
        best=candidates[first],
        step_time_s=float(found.step_time_s[first]),
        fit_probability=float(found.fit_probability[first]),
        same_step_time_s=float(found.step_time_s[best]),
        same_fit_probability=float(found.fit_probability[best]),
    )


def _with_link(name: str) -> Callable[[Outlook, str, str], Outlook]:
    def change(outlook: Outlook, value: str, where: str) -> Outlook:
        parse_rate(value, where=where)
        wishes = outlook.wishes
        if name == "network":
            return dataclasses.replace(outlook, wishes=dataclasses.replace(wishes, network=value))
        return dataclasses.replace(outlook, wishes=dataclasses.replace(wishes, nvlink=value))

    return change


def _with_gpu(outlook: Outlook, value: str, _: str) -> Outlook:
    wishes = dataclasses.replace(outlook.wishes, gpu=value)
    environment = described(wishes, outlook.environment, outlook.table)
    return dataclasses.replace(outlook, wishes=wishes, environment=environment)


def _with_memory(outlook: Outlook, value: str, where: str) -> Outlook:
    job = dataclasses.replace(outlook.job, memory_limit_bytes=parse_bytes(value, where=where))
    return dataclasses.replace(outlook, job=job)


def _with_per_node(outlook: Outlook, value: str, where: str) -> Outlook:
    if not value.isdecimal() or not 1 <= int(value) <= outlook.job.world:
        raise JobError(
            f"{where}: {value!r} is not a number of devices of a node",
            f"a whole number from 1 to {outlook.job.world}",
        )
    environment = dataclasses.replace(outlook.environment, n_devices=int(value))
    return dataclasses.replace(outlook, environment=environment)


_CHANGED: Mapping[str, Callable[[Outlook, str, str], Outlook]] = {
    "network": _with_link("network"),
    "nvlink": _with_link("nvlink"),
    "gpu": _with_gpu,
    "memory": _with_memory,
    "per_node": _with_per_node,
}


def _links(wishes: FleetWishes) -> dict[str, float]:
    rates = {"network": wishes.network, "nvlink": wishes.nvlink}
    return {
        f"{name}_bytes_per_s": parse_rate(text, where=f"--{name}")
        for name, text in rates.items()
        if text is not None
    }


def _front(found: Prediction, order: NDArray[np.intp], min_fit: float) -> frozenset[int]:
    """Those that fit and that no faster one beats in memory as well.

    With the fleet given, cost goes with time, so time and memory are all there is to weigh.
    """
    front = set()
    least_bytes = np.inf
    for index in map(int, order):
        if found.fit_probability[index] < min_fit:
            break
        if found.peak_memory_bytes[index] < least_bytes:
            least_bytes = found.peak_memory_bytes[index]
            front.add(index)
    return frozenset(front)
