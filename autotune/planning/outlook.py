"""A job on a fleet, here or described: what is legal there, whatever the engine; nothing runs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.units import parse_rate
from autotune.contract import KnobValue
from autotune.cost import Plans, Prediction, predict
from autotune.cost.constants import constants_of
from autotune.cost.device import LinkName, link_columns
from autotune.cost.errors import Margin, errors_of
from autotune.cost.knowledge import Lesson
from autotune.cost.problem import accelerator_of, fleet_columns, situation_of
from autotune.devices.accelerators import Accelerator, accelerators_with, named_accelerator
from autotune.devices.hardware import HOST_SHARE, Environment, usable_memory_bytes
from autotune.engines.base import Engine, bind_engine
from autotune.job.job import DEFAULT_SPACE, PLAN_SPACE, Job
from autotune.job.price import price_for
from autotune.planning.lattice import Lattice
from autotune.planning.learned import Learned, learned_from
from autotune.space.candidate import Candidate
from autotune.space.grid import has_candidate
from autotune.space.knobs import canonical, explain, parse_settings
from autotune.space.space_file import load_space
from autotune.space.table import Indices

_USUAL_HOST_BYTES = 2.0 * 2**40
"""Memory of a DGX H100's host (2 TB in NVIDIA's datasheet), where the table says none."""


class DefaultSearch(NamedTuple):
    """What a search that is told no space tries."""

    words: str
    has: Callable[[Candidate], bool]
    """Whether it tries a candidate."""


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

    def __post_init__(self) -> None:
        if self.per_node is not None and self.per_node < 1:
            raise JobError.of("planning.no_per_node", per_node=self.per_node)

    def of_job(self, keys: Mapping[str, Any]) -> "FleetWishes":
        """The same fleet, of the accelerator that the keys of a job name where they name one."""
        return self if keys.get("gpu") is None else dataclasses.replace(self, gpu=str(keys["gpu"]))

    def links(self) -> dict[str, float]:
        """Columns of `Plans` that the described links change.

        Raises:
            JobError: A rate is not one.
        """
        rates: dict[LinkName, str | None] = {"network": self.network, "nvlink": self.nvlink}
        found: dict[str, float] = {}
        for name, text in rates.items():
            if text is not None:
                # Figures of the link that was measured do not hold for the one that is described.
                found |= link_columns(name, None)
                found[f"{name}_bytes_per_s"] = parse_rate(text, where=f"--{name}")
        return found


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A job on a fleet: what is legal there, and what the cost model says of it."""

    job: Job
    environment: Environment
    wishes: FleetWishes
    lattice: Lattice
    lessons: Sequence[Lesson] = ()
    """What trials on this machine taught; those on the same devices correct the predictions."""
    command: str = ""
    """The command that searches the job by trials, before its space; empty: nobody typed one."""
    price: str | float | None = None
    """Price of one accelerator for an hour, as it was given: of this fleet, or by kind."""

    @cached_property
    def engine(self) -> Engine:
        """The job's engine on this outlook's own fleet: that of a what-if has its devices."""
        return bind_engine(self.job, self.environment)

    @cached_property
    def price_per_hour(self) -> float | None:
        """Price of one accelerator of this fleet; None: nobody gave it."""
        if self.price is None:
            return None
        return price_for(str(self.price), self.environment.device_name, where=flag("price"))

    def token_price(self, step_time_s: float) -> float | None:
        """Price of 1e9 tokens at a step time, in the unit of the given price."""
        if self.price_per_hour is None:
            return None
        hours = 1e9 / self.job.tokens_per_batch * step_time_s * self.job.world / 3600
        return hours * self.price_per_hour

    @property
    def home(self) -> str:
        """The set that holds the candidates, in words."""
        return (
            "the lattice of layouts" if self.lattice.is_laid_out else f"the space {self.job.space}"
        )

    @property
    def is_space_named(self) -> bool:
        """Whether the user named what holds the candidates, and so what they are to differ in."""
        return not self.lattice.is_laid_out and self.job.space != PLAN_SPACE

    @property
    def is_unnamed_cpu(self) -> bool:
        """Whether this machine's CPUs count as the accelerators, as nobody named any."""
        return self.environment.accelerator == "cpu" and self.wishes.gpu is None

    @property
    def is_host_known(self) -> bool:
        """Whether the job or this machine says what memory a node's host has."""
        return self.job.host_memory_bytes is not None or self.wishes.gpu is None

    @cached_property
    def host_limit_bytes(self) -> int:
        """Memory of a node's host; where nobody says it, what such nodes mostly have."""
        if self.job.host_memory_bytes is not None:
            return self.job.host_memory_bytes
        if self.is_host_known:
            return int(usable_memory_bytes() * HOST_SHARE)
        accelerator = accelerator_of(self.environment, self.table)
        return int(accelerator.host_memory_bytes or _USUAL_HOST_BYTES)

    @cached_property
    def links(self) -> Mapping[str, float]:
        """Columns of the fleet and its links; empty where nothing is sent between accelerators."""
        if self.environment.accelerator == "cpu" or self.job.world == 1:
            return {}
        return fleet_columns(self.job, self.environment, self.table) | self.wishes.links()

    @property
    def length_doubt(self) -> str:
        """What is in doubt of samples longer than the model's positions; empty: nothing is."""
        longest = self.job.model.shape.configured_positions
        if not 0 < longest < self.job.seq_len:
            return ""
        return (
            f"{self.job.seq_len} tokens are more than the {longest} positions that the model is "
            "configured for: it trains, but learns little there unless its rope_scaling is "
            "changed; forecasts hold either way"
        )

    def setbacks(self, candidates: Sequence[Candidate]) -> Indices:
        """How far candidates come behind others that fit as surely; 0: not at all.

        1 for what changes the training, which nobody asked for who named no space.
        """
        if self.is_space_named:
            return np.zeros(len(candidates), np.intp)
        return self.engine.changes_training(candidates).astype(np.intp)

    @cached_property
    def table(self) -> tuple[Accelerator, ...]:
        """Accelerators: the user's, then the shipped ones."""
        return accelerators_with(self.job.accelerators)

    def needs(self, candidate: Candidate) -> tuple[str, ...]:
        """Packages that nodes which nobody has here must have for a candidate.

        Empty for this machine, whose packages were looked at.
        """
        return () if self.wishes.gpu is None else tuple(self.engine.needs(candidate))

    def asks(self, candidate: Candidate) -> tuple[str, ...]:
        """What a candidate asks of the user beside its settings, in words."""
        context, values = self.lattice.context, candidate.values
        asked = (
            knob.asks
            for knob in map(context.knobs.__getitem__, values)
            if knob.asks_where(values, context)
            and values[knob.name] not in (knob.default, *(knob.pattern and knob.choices))
        )
        return tuple(dict.fromkeys(filter(None, asked)))

    @cached_property
    def default_search(self) -> DefaultSearch | None:
        """The same of this job; `PLAN_SPACE` has the others. None: it tries all of the lattice."""
        context, alone = self.lattice.context, self.engine.planned_alone
        if self.job.space != PLAN_SPACE:
            return None
        if self.lattice.is_laid_out:
            words = f"all layouts without {', '.join(alone[:-1])} and {alone[-1]}"
            return DefaultSearch(words, lambda one: not one.values.keys() & set(alone))
        space = load_space(DEFAULT_SPACE, context.knobs, self.engine.name)
        words = f"the space {DEFAULT_SPACE}"
        return DefaultSearch(words, lambda one: has_candidate(space, context, one))

    def read(self, settings: Sequence[str]) -> tuple[Candidate, tuple[str, ...]]:
        """The one candidate that `knob=value` settings make, legal or not.

        Other knobs are at the base configuration's value or the engine's default.

        Returns:
            The candidate, and what became of settings that do not reach the run as written.

        Raises:
            JobError: A setting is not one.
        """
        values = parse_settings(settings, self.lattice.context.knobs)
        notes = tuple(explain(values, self.lattice.context).values())
        return self._candidate(values), notes

    def neighbours(self, candidate: Candidate) -> dict[Candidate, tuple[str, KnobValue]]:
        """Candidates that differ in a knob and what it takes along, with its name and value."""
        found: dict[Candidate, tuple[str, KnobValue]] = {}
        for name, value in self.engine.steps(candidate):
            along = self.lattice.context.knobs[name].along
            other = self._candidate({**candidate.values, **along, name: value})
            if other != candidate and other.get(name) == value:
                found.setdefault(other, (name, value))
        return found

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        """Candidates as of `Engine.plans`, with the fleet as it was described."""
        return self.on_fleet(self.engine.plans(candidates, needs_shape=needs_shape))

    def on_fleet(self, plans: Plans) -> Plans:
        """Plans with the links as they were described, and the memory that the job may take."""
        there = self.environment.device_memory_bytes
        allowed = float(self.job.enforced_limit_bytes(there) or there)
        return dataclasses.replace(plans, memory_bytes=allowed, **self.wishes.links())

    @cached_property
    def learned(self) -> Learned | None:
        """What trials on such devices taught; None: nothing."""
        if not self.lessons:
            return None
        return learned_from(
            self.lessons,
            situation=situation_of(self.job, self.environment),
            job=self.plans(self.lattice.candidates[:1]),
            constants=constants_of(self.environment),
        )

    def on(self, gpu: str, where: str = "") -> Self:
        """The same job on accelerators of that name; `where` names it in an error.

        Raises:
            AutotuneError: No accelerator has that name.
        """
        wishes = dataclasses.replace(self.wishes, gpu=gpu)
        environment = described(wishes, self.table, where=where)
        price = self.price if "=" in str(self.price) else None  # one for all is this fleet's
        return dataclasses.replace(self, wishes=wishes, environment=environment, price=price)

    def predict(self, candidates: Sequence[Candidate]) -> Prediction:
        """Predictions for some candidates, corrected by trials where there were any."""
        return self.predict_plans(self.plans(candidates))[0]

    def predict_plans(self, plans: Plans) -> tuple[Prediction, Margin]:
        """Predictions, and how far measured figures may be from them."""
        prediction = predict(plans, constants_of(self.environment))
        found, margin = self._judged(prediction)
        fits = found.fit_probability * (found.host_memory_bytes <= self.host_limit_bytes)
        return dataclasses.replace(found, fit_probability=fits), margin

    def _judged(self, prediction: Prediction) -> tuple[Prediction, Margin]:
        """Predictions with their chance to fit the accelerators, by lessons or by the tables."""
        if self.learned is not None:
            return self.learned.correct(prediction)
        errors, n = errors_of(self.environment), len(prediction.step_time_s)
        accelerator = accelerator_of(self.environment, self.table)
        # Releases that are installed say how old the software is; nobody says it of other nodes.
        is_old = np.full(n, not self.environment.torch_version)
        facts = errors.facts_of([self.job.engine] * n, [accelerator] * n, {"software": is_old})
        margin = errors.reach(prediction, facts)
        return margin.judge(prediction), margin

    def _candidate(self, values: Mapping[str, KnobValue]) -> Candidate:
        return Candidate.of(
            canonical(values, self.lattice.context),
            world=self.job.world,
            global_batch=self.job.global_batch,
        )


def described(wishes: FleetWishes, table: Sequence[Accelerator], *, where: str) -> Environment:
    """An environment that nobody has here, by the accelerator's figures alone.

    What is installed on this machine decides nothing there: packages count as installed, and
    releases as unknown. `Outlook.needs` says what has to be there.

    Raises:
        JobError: The table has no such accelerator; `where` is the flag that named it.
    """
    assert wishes.gpu is not None
    found = named_accelerator(wishes.gpu, where=where, table=table)
    is_cpu = found.name == "CPU"
    known = tuple(name for name in ("fp32", "bf16", "fp16") if name in found.peak_flops)
    return Environment(
        accelerator="cpu" if is_cpu else "cuda",
        n_devices=found.devices_per_node if wishes.per_node is None else wishes.per_node,
        device_name=found.name,
        device_memory_bytes=int(found.memory_bytes),
        peak_flops=None if is_cpu else found.peak_flops[found.half],
        deepspeed_version="",
        torch_version="",
        precisions=known,
        has_flash_attention=not is_cpu,
        has_deep_ep=not is_cpu,
    )
