"""How far measured figures lie from predicted ones: one distribution for intervals and for fits.

log(measured / predicted) has its median at 0 and a normal half on either side, each with a
deviation of its own. The ends of an interval are the quantiles of that distribution, and the
probability that a candidate fits is its share below the memory of the device.

`errors.yaml` beside this file says how wide it is, by kind of run: learned from published runs of
sources whose rows the constants had not seen. `benchmarks/fit_errors.py` learns and writes it.
Runs of CPU ranks have `errors_cpu.yaml`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.base.errors import JobError
from autotune.base.yaml_file import read_yaml
from autotune.cost.normal import below
from autotune.cost.plans import Column, PlanColumns, Recompute
from autotune.cost.predict import Prediction, predict
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment

SHIPPED = Path(__file__).resolve().parent / "errors.yaml"
SHIPPED_CPU = SHIPPED.with_name("errors_cpu.yaml")
LEVEL = 0.9
"""Share of figures that an interval holds, on average over sources left out."""
UPPER = 0.95
"""Quantile at the upper end of such an interval."""
END = 1.6449
"""The same in deviations of a normal distribution."""
METERS = ("allocated_bytes", "reserved_bytes", "peak_bytes")
"""Meters of memory, as `Memory` calls them; the last is what nvidia-smi shows."""
_NATURAL_ROUTING = 1.5
"""Factor by which steps may take longer where the router decides alone which experts get how many
rows, and ranks hold different ones. Predictions are of even ones, as are most published runs,
whose routers were forced. Where both were published, steps took 1.2 to 1.5 times as long."""
_UNKNOWN_AGE = 0.1
"""Distance of log step time to the end of an interval where nobody says how old the software is. A
newer container alone made published steps up to 23% faster; memory changed by less than 0.4%."""
_OFFLOAD, _OFFLOAD_SLOWER = 0.5, 1.4
"""The same where states or activations go to the host over a link that nobody measured, and to the
upper end where stage 3 has the optimizer there: published steps of DeepSpeed took 1.6 times as
long as predicted with 16 to 64 V100, and 4 times with 70B on 16 H100."""
_SHORTER = 16.0
"""Factor by which samples may be shorter than assumed where nobody says how long they are: those
that models are fine-tuned on have some hundred tokens."""
_SMALL_LAYER_S = 0.012
"""A layer that takes less, forward and backward, is small: the host soon sets the pace."""
_SMALL_BYTES = 16 * 2**30
"""A smaller peak is small: what processes and libraries take is much of it."""
_HALF_LAYER_S = 0.005
_HALF_BYTES = 4 * 2**30
"""Layer and peak that count as half small."""
_MODELS_IN_WORDS = {"dense": "dense models", "experts": "mixtures of experts"}
MODELS = tuple(_MODELS_IN_WORDS)
_EVIDENCE = ("known", "unknown")
_SIZES = ("large", "small")
_HINT = "written by benchmarks/fit_errors.py"

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
_Size = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class Ends(BaseModel):
    """Distances of log(measured / predicted) to the ends of an interval, for one kind of run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: _Size
    high: _Size
    sources: int
    """Sources that it was learned from."""


class Widths(BaseModel):
    """Intervals of one figure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kinds: dict[str, Ends]
    """Kind -> its ends, before `wider`. A kind is a few words, of which fewer make a wider one:
    `dense known large`. `all` is there; of the others those that enough sources have."""
    wider: dict[str, _Size]
    """Part of `ForecastBasis.parts` -> how much wider, as a share, where all of it holds."""
    frameworks: dict[str, Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    """Framework -> how many times as wide besides, where its own runs scatter more than those of
    its kind. A kind of known frameworks is learned from those that several sources have; one that
    a single source has is unknown while that source is left out, and known to everybody else."""

    def ends(self, kinds: "RunKinds", basis: "ForecastBasis") -> tuple[Values, Values]:
        """Distances to the lower and the upper end, by row."""
        known = np.array([self.frameworks.get(name, 1.0) for name in basis.frameworks.tolist()])
        # One that counts as new is as wide already as its own runs may ask for.
        scale = self.scale(basis.parts) * np.where(basis.parts["new_framework"] > 0, 1.0, known)
        found = [self.kinds[self.nearest(name)] for name in kinds.names]
        low, high = (np.array([getattr(ends, end) for ends in found]) for end in ("low", "high"))
        return low[kinds.which] * scale, high[kinds.which] * scale

    def nearest(self, kind: str) -> str:
        """The kind itself, or the next wider one that enough sources have."""
        words = kind.split()
        while words and " ".join(words) not in self.kinds:
            words.pop()
        return " ".join(words) or "all"

    def evidences(self, figure: str, kinds: "RunKinds") -> list[str]:
        """Runs that stand for those of each kind, in words."""
        found = [self.nearest(kind) for kind in kinds.names]
        return [
            f"{figure}: {self.kinds[near].sources} sources of {_in_words(near)}"
            + ("" if near == kind else " (too few are closer to this one)")
            for kind, near in zip(kinds.names, found, strict=True)
        ]

    def scale(self, parts: Mapping[str, Values]) -> Values:
        """How many times as wide as of its kind each row is: what widens it adds up."""
        wider = [size * parts[name] for name, size in self.wider.items()]
        found: Values = 1.0 + np.sum(wider, axis=0, initial=0)
        return found


def _in_words(kind: str) -> str:
    """A kind as people say it: `dense models, known framework and accelerator`; not its size."""
    model, *others = kind.split()
    if model == "all":
        return "all kinds of runs"
    words = _MODELS_IN_WORDS[model]
    return words + (f", {others[0]} framework and accelerator" if others else "")


@dataclass(frozen=True, kw_only=True)
class RunKinds(PlanColumns):
    """The kind of every row."""

    names: tuple[str, ...]
    which: NDArray[np.intp]
    """Position of each row's kind among the names."""

    @classmethod
    def of(cls, *words: tuple[Sequence[str], NDArray[Any]], joint: str = " ") -> Self:
        """Kinds of one word each of several sets: the position of each row's there."""
        sizes = [len(kinds) for kinds, _ in words]
        codes = np.ravel_multi_index([place.astype(np.intp) for _, place in words], sizes)
        there, which = np.unique(codes, return_inverse=True)
        names = tuple(
            joint.join(kinds[at] for (kinds, _), at in zip(words, places, strict=True))
            for places in zip(*np.unravel_index(there, sizes), strict=True)
        )
        return cls(names=names, which=which)


@dataclass(frozen=True, kw_only=True)
class ForecastBasis:
    """What predictions rest on, an element each: which kind of run they are of."""

    is_mixture: Flags
    frameworks: NDArray[np.str_]
    is_known: Flags
    """Other sources have runs of the same framework on such accelerators."""
    layer_s: Values
    """Seconds of a layer and micro-batch."""
    peak_bytes: Values
    parts: Mapping[str, Values]
    """What widens intervals, by name; shares of 0 to 1."""
    is_natural: Flags
    """The router decides alone which ranks get how many rows."""
    open_time: tuple[Values, Values]
    """Distances to the ends by what is left open alone: lower, upper."""
    open_memory: tuple[Values, Values]

    @property
    def slower(self) -> Values:
        """Factor that a step may take longer by routing that nobody forces."""
        found: Values = np.where(self.is_natural, _NATURAL_ROUTING, 1.0)
        return found

    def time_kinds(self) -> RunKinds:
        return self._kinds(self.layer_s < _SMALL_LAYER_S)

    def memory_kinds(self) -> RunKinds:
        return self._kinds(self.peak_bytes < _SMALL_BYTES)

    def _kinds(self, is_small: Flags) -> RunKinds:
        models, evidence = (MODELS, self.is_mixture), (_EVIDENCE, ~self.is_known)
        return RunKinds.of(models, evidence, (_SIZES, is_small))


@dataclass(frozen=True, kw_only=True)
class LogSpread(PlanColumns):
    """Distances of a figure's logarithm to the ends of its interval."""

    low: Values
    high: Values

    def below(self, limit: Column, predicted: Values) -> Values:
        room = np.log(limit / predicted)
        reach = np.where(room < 0, self.low, self.high)
        return below(END * room / np.maximum(reach, 1e-9))

    def over(self, other: Self) -> Self:
        """The distances of ratios to another's figures, whose errors are independent of these."""
        low, high = np.hypot(self.low, other.high), np.hypot(self.high, other.low)
        return type(self)(low=low, high=high)

    def holds(self, miss: Values) -> Flags:
        """Whether log(measured / predicted) lies inside."""
        return (-self.low <= miss) & (miss <= self.high)


@dataclass(frozen=True, kw_only=True)
class Margin(PlanColumns):
    """How far measured figures may lie from predicted ones."""

    step_time: LogSpread
    peak_memory: LogSpread
    """Distances of a peak, everything that is taken from the device counted."""
    slower: Values | float = 1.0
    """Factor that step times may take longer besides: routing that nobody forces."""
    evidence: RunKinds | None = None
    """What intervals are learned from, in words; None: trials, and nothing is to be said."""

    @classmethod
    def alike(cls, step_time: Values, peak_memory: Values) -> Self:
        """Distances to the ends that are the same on both sides."""
        return cls(
            step_time=LogSpread(low=step_time, high=step_time),
            peak_memory=LogSpread(low=peak_memory, high=peak_memory),
        )

    def around(self, predicted: Prediction, index: int) -> tuple[float, float, float, float]:
        """The interval of a step time in seconds, and that of a peak in bytes."""
        seconds, peak = predicted.step_time_s[index], predicted.peak_memory_bytes[index]
        time, memory = self.step_time, self.peak_memory
        ends = (
            seconds * np.exp(-time.low[index]),
            seconds * np.exp(time.high[index]),
            peak * np.exp(-memory.low[index]),
            peak * np.exp(memory.high[index]),
        )
        return tuple(map(float, ends))  # type: ignore[return-value]

    def slower_at(self, index: int) -> float:
        return float(np.broadcast_to(self.slower, self.step_time.low.shape)[index])

    def evidence_at(self, index: int) -> str:
        """What the intervals of one prediction are learned from; empty: trials."""
        return "" if self.evidence is None else self.evidence.names[self.evidence.which[index]]

    def judge(self, prediction: Prediction) -> Prediction:
        fits = self.peak_memory.below(prediction.plans.memory_bytes, prediction.peak_memory_bytes)
        return replace(prediction, fit_probability=fits)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of runs beside their plans, an element each."""

    frameworks: NDArray[np.str_]
    is_known: Flags
    new_framework: Flags
    new_accelerator: Flags
    open: Mapping[str, Flags]
    """What nobody says -> of which runs: `zero_stage`, `recompute`, `attention`, `loss`,
    `software`, `seq_len`."""
    fewest_logit_bytes: Values | None = None
    """Column `logit_bytes` at least, where the loss is open."""


class Errors(BaseModel):
    """Errors on sources left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: int
    """Sources that were left out, one after the other."""
    step_time: Widths
    peak_memory: Widths
    accelerators: dict[str, list[str]] = Field(default_factory=dict)
    """Framework -> accelerators that it was seen on, by their names in the shipped table."""

    @property
    def widest_memory(self) -> LogSpread:
        """How far a peak may be from one of which nothing but its size is known."""
        ends = self.peak_memory.kinds["all"]
        return LogSpread(low=np.array([ends.low]), high=np.array([ends.high]))

    def facts_of(
        self,
        frameworks: Sequence[str],
        accelerators: Sequence[Accelerator],
        open: Mapping[str, Flags],
        fewest_logit_bytes: Sequence[float] | None = None,
    ) -> RunFacts:
        """What is known of runs by framework and accelerator, one each.

        A probe of one's own stands for runs of others on such accelerators.
        """
        table = {one.name: one for one in shipped_accelerators()}
        every = {name for known in self.accelerators.values() for name in known}

        def is_among(accelerator: Accelerator, names: Iterable[str]) -> bool:
            return any(accelerator.is_like(table[name]) for name in names if name in table)

        def flags(name: str, one: Accelerator) -> tuple[bool, bool, bool]:
            seen, is_probed = self.accelerators.get(name, []), one.measured is not None
            is_known = bool(seen) and (is_probed or is_among(one, seen))
            return is_known, not seen, not (is_probed or is_among(one, every))

        pairs = {(n, id(a)): (n, a) for n, a in zip(frameworks, accelerators, strict=True)}
        found = {key: flags(*pair) for key, pair in pairs.items()}
        keys = zip(frameworks, map(id, accelerators), strict=True)
        rows = np.array([found[key] for key in keys], bool).reshape(-1, 3)
        known, new_framework, new_accelerator = rows.T
        return RunFacts(
            frameworks=np.array(frameworks, np.str_),
            is_known=known,
            new_framework=new_framework,
            new_accelerator=new_accelerator,
            open=open,
            fewest_logit_bytes=(
                None if fewest_logit_bytes is None else np.asarray(fewest_logit_bytes)
            ),
        )

    def reach(self, prediction: Prediction, facts: RunFacts) -> Margin:
        """How far each prediction reaches; peaks by whatever meter."""
        return self.reach_of(basis_of(prediction, facts))

    def reach_of(self, basis: ForecastBasis) -> Margin:
        """How far predictions reach by what they rest on."""
        time_kinds, memory_kinds = basis.time_kinds(), basis.memory_kinds()
        slower = basis.slower
        low, high = self.step_time.ends(time_kinds, basis)
        low, high = np.hypot(low, basis.open_time[0]), np.hypot(high, basis.open_time[1])
        least, most = self.peak_memory.ends(memory_kinds, basis)
        least, most = np.hypot(least, basis.open_memory[0]), np.hypot(most, basis.open_memory[1])
        return Margin(
            step_time=LogSpread(low=low, high=high + np.log(slower)),
            peak_memory=LogSpread(low=least, high=most),
            slower=slower,
            evidence=RunKinds.of(
                (self.step_time.evidences("time", time_kinds), time_kinds.which),
                (self.peak_memory.evidences("memory", memory_kinds), memory_kinds.which),
                joint="; ",
            ),
        )


def basis_of(prediction: Prediction, facts: RunFacts) -> ForecastBasis:
    """What predictions rest on."""
    p, shape = prediction.plans, prediction.step_time_s.shape

    def column(values: Column | NDArray[np.bool_]) -> Values:
        return np.broadcast_to(np.asarray(values, np.float64), shape)

    is_mixture = column(p.n_experts) > 1
    is_natural = is_mixture & (column(p.ep) > 1) & (column(p.expert_imbalance) <= 1)
    is_natural = is_natural & (column(p.forced_balance) == 0)
    layer_s = prediction.step_time_s * column(p.pp) / (column(p.grad_accum) * column(p.n_layers))
    parts = {
        "experts": column(is_mixture),
        "doubt": doubt_of(prediction),
        "small_layers": 1.0 / (1.0 + layer_s / _HALF_LAYER_S),
        "small_peak": 1.0 / (1.0 + prediction.peak_memory_bytes / _HALF_BYTES),
        "new_framework": column(facts.new_framework),
        "new_accelerator": column(facts.new_accelerator),
    }
    open_time, open_memory = _open_distances(prediction, facts)
    return ForecastBasis(
        is_mixture=is_mixture,
        frameworks=facts.frameworks,
        is_known=facts.is_known,
        layer_s=layer_s,
        peak_bytes=prediction.peak_memory_bytes,
        parts=parts,
        is_natural=is_natural,
        open_time=open_time,
        open_memory=open_memory,
    )


def doubt_of(prediction: Prediction) -> Values:
    """Share of each step that depends on networks and hosts, of which tables say least."""
    times = prediction.times
    doubtful = (
        *(times.tensor_comm_s, times.expert_comm_s, times.context_comm_s, times.pipeline_comm_s),
        *(times.data_comm_s, times.host_s, times.offload_s),
    )
    share = np.sum([np.asarray(part) for part in doubtful], axis=0) / prediction.step_time_s
    found: Values = np.clip(share, 0.0, 1.0)
    return found


@dataclass
class _Distances:
    """Squared distances to the ends, which add up."""

    low: Values
    high: Values

    def reach(self, log_ratio: Values) -> None:
        """Let the end on its side reach a figure that is as likely."""
        self.low += np.minimum(log_ratio, 0.0) ** 2
        self.high += np.maximum(log_ratio, 0.0) ** 2

    def ends(self) -> tuple[Values, Values]:
        return np.sqrt(self.low), np.sqrt(self.high)


def _open_distances(
    prediction: Prediction, facts: RunFacts
) -> tuple[tuple[Values, Values], tuple[Values, Values]]:
    """Distances to the ends of time and memory by what is left open.

    They reach what would be predicted if it were the other way.
    """
    n = len(prediction.step_time_s)
    time, memory = (_Distances(np.zeros(n), np.zeros(n)) for _ in range(2))
    p = prediction.plans
    on_host = p.optimizer_tier + p.param_tier + p.offloaded_activations + p.optimizer_host_share
    has_no_price = np.greater(on_host, 0) & np.equal(p.host_link_measured, 0)
    age = np.where(facts.open.get("software", np.zeros(n, bool)), _UNKNOWN_AGE, 0.0)
    fetches = np.greater(p.optimizer_tier, 0) & np.greater_equal(p.zero_stage, 3)
    time.reach(-np.hypot(_OFFLOAD * has_no_price, age))
    time.reach(np.hypot(np.where(fetches, _OFFLOAD_SLOWER, _OFFLOAD) * has_no_price, age))
    for name, column, value in _other_ways(prediction, facts):
        rows = np.flatnonzero(facts.open.get(name, np.zeros(n, bool)))
        if not len(rows):
            continue
        values = np.broadcast_to(np.asarray(value, np.float64), (n,))[rows]
        other = predict(replace(p.take(rows), **{column: values}), prediction.constants)
        log_time, log_peak = np.zeros(n), np.zeros(n)
        log_time[rows] = np.log(other.step_time_s / prediction.step_time_s[rows])
        log_peak[rows] = np.log(other.peak_memory_bytes / prediction.peak_memory_bytes[rows])
        time.reach(log_time)
        memory.reach(log_peak)
    return time.ends(), memory.ends()


def _other_ways(prediction: Prediction, facts: RunFacts) -> list[tuple[str, str, Column]]:
    """What is open, with the column of `Plans` that says it and its value the other way."""
    p = prediction.plans
    recomputes = np.greater(p.recompute, 0)
    stage = np.asarray(p.zero_stage)
    other_stage = np.where(stage <= 1, 1.0 - stage, stage)
    # What fetches parameters by rank has all stages, and who names none may mean any.
    splits_all = np.greater(p.cuts_by_rank, 0) & np.less(p.tp * p.pp, 2)
    found: list[tuple[str, str, Column]] = [
        ("recompute", "recompute", np.where(recomputes, Recompute.NONE, Recompute.FULL) * 1.0),
        ("zero_stage", "zero_stage", other_stage),
        ("zero_stage", "zero_stage", np.where(splits_all, 3.0, stage)),
        ("seq_len", "seq_len", p.seq_len / _SHORTER),
        # Where scores are assumed to be written, a fused kernel may not write them.
        ("attention", "flash_attention", 1.0),
    ]
    if facts.fewest_logit_bytes is not None:
        found.append(("loss", "logit_bytes", facts.fewest_logit_bytes))
    return found


@cache
def load_errors(path: Path = SHIPPED) -> Errors:
    """Read what was learned; the shipped file by default.

    Raises:
        JobError: It cannot be read, or a figure is not one.
    """
    try:
        return Errors.model_validate(read_yaml(path, hint=_HINT))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise JobError(f"{path}: {key}: {first['msg']}", _HINT) from error


def errors_of(environment: Environment) -> Errors:
    """The shipped errors of the environment's accelerators."""
    return load_errors(SHIPPED_CPU if environment.accelerator == "cpu" else SHIPPED)
