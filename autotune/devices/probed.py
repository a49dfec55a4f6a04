"""Rates of a kind of device by short measurements, as `python -m autotune probe` writes them.

Pydantic reads the values from a file and writes them by the annotations: key and unit of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer

_BOUNDS = Field(ge=1e-9, le=1e12, allow_inf_nan=False, strict=True)
"""Beyond these, times that are divided by it are no numbers any more."""
_CONFIG = ConfigDict(extra="forbid")


def short(value: float) -> float:
    """As files keep it: four digits are more than repeats agree in."""
    return float(f"{value:.4g}")


def in_unit(unit: float) -> tuple[AfterValidator, PlainSerializer]:
    """A value that a file has in a unit."""
    return AfterValidator(lambda value: value * unit), PlainSerializer(lambda v: short(v / unit))


_Ratio = Annotated[float, _BOUNDS, PlainSerializer(short)]
_Giga = Annotated[float, _BOUNDS, *in_unit(1e9)]
_Micro = Annotated[float, _BOUNDS, *in_unit(1e-6)]
_Mebi = Annotated[float, _BOUNDS, *in_unit(2.0**20)]
_Nano = Annotated[float, _BOUNDS, *in_unit(1e-9)]


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """Rates of collectives over the links of one device."""

    __pydantic_config__ = _CONFIG

    bytes_per_s: Annotated[_Giga, Field(alias="gb_per_s")]
    """Bus bandwidth of gathers."""
    latency_s: Annotated[_Micro | None, Field(alias="latency_us")] = None
    """Latency of one hop; None: too little to be told from nothing."""
    all_reduce_speed: _Ratio = 1.0
    """Bus bandwidth of all-reduces over that of gathers."""
    all_to_all_speed: _Ratio = 1.0
    send_speed: _Ratio = 1.0
    all_reduce_latency_s: Annotated[_Micro | None, Field(alias="all_reduce_latency_us")] = None
    """Latency of an all-reduce over 2 log2(ranks) hops; None: as `latency_s`."""


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """Rate of a fused causal kernel, the scores that it skips not counted."""

    __pydantic_config__ = _CONFIG

    forward_flops_per_s: Annotated[_Giga, Field(alias="forward_gflops")]
    backward_flops_per_s: Annotated[_Giga, Field(alias="backward_gflops")]


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """Rates of one device while all others do the same; None: nobody measured it."""

    __pydantic_config__ = _CONFIG

    memory_bytes_per_s: Annotated[_Giga | None, Field(alias="memory_gb_per_s")] = None
    """Rate of a stream of reads and writes through the device's own memory."""
    cached_bytes_per_s: Annotated[_Giga | None, Field(alias="cached_gb_per_s")] = None
    """The same through tensors of at most `cache_bytes` each; only where it was told apart."""
    cache_bytes: Annotated[_Mebi | None, Field(alias="cache_mib")] = None
    fresh_bytes_per_s: Annotated[_Giga | None, Field(alias="fresh_gb_per_s")] = None
    """The same where every result is in pages that the kernel has just cleared: of CPU ranks."""
    host_bytes_per_s: Annotated[_Giga | None, Field(alias="host_gb_per_s")] = None
    """Between device and host, in the slower direction."""
    host_memory_bytes_per_s: Annotated[_Giga | None, Field(alias="host_memory_gb_per_s")] = None
    """Rate of a node, all ranks together."""
    nvme_bytes_per_s: Annotated[_Giga | None, Field(alias="nvme_gb_per_s")] = None
    """Rate of a node's drives, all ranks together, in the slower direction."""
    layer_s: Annotated[_Micro | None, Field(alias="layer_us")] = None
    """Host time of one layer forward and backward; only where nothing hides it."""
    link: MeasuredLink | None = None
    """Between the devices of a node."""
    network: MeasuredLink | None = None
    """Between nodes: a device's share, while the others of its node use theirs."""
    operand_elements_per_s: Annotated[
        Mapping[str, _Giga], Field(alias="operand_gelements_per_s")
    ] = field(default_factory=dict)
    """By precision: how fast products move their operands and results, beside computing."""
    attention: Mapping[str, AttentionRates] = field(default_factory=dict)
    """By precision; of CPU ranks, where they are far from those of products."""
    logit_s: Annotated[Mapping[str, _Nano], Field(alias="logit_ns")] = field(default_factory=dict)
    """By precision: the loss forward and backward, per logit; of CPU ranks."""
