"""What short measurements reached on a kind of device, as `python -m autotune probe` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Positive = Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]
"""Beyond these, times that are divided by it are no numbers any more."""
_GIGA = 1e9
_MICRO = 1e-6

UNITS = {
    "memory_gb_per_s": ("memory_bytes_per_s", _GIGA),
    "cached_gb_per_s": ("cached_bytes_per_s", _GIGA),
    "cache_mib": ("cache_bytes", 2.0**20),
    "fresh_gb_per_s": ("fresh_bytes_per_s", _GIGA),
    "host_gb_per_s": ("host_bytes_per_s", _GIGA),
    "host_memory_gb_per_s": ("host_memory_bytes_per_s", _GIGA),
    "nvme_gb_per_s": ("nvme_bytes_per_s", _GIGA),
    "layer_us": ("layer_s", _MICRO),
}
"""Key of a file -> field of `MeasuredRates`, and what one of the key's unit is there."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """What collectives reached over the links of one device."""

    bytes_per_s: float
    """Bus bandwidth of gathers."""
    latency_s: float | None = None
    """Latency of one hop; None: too little to be told from nothing."""
    all_reduce_speed: float = 1.0
    """Bus bandwidth of all-reduces over that of gathers."""
    all_to_all_speed: float = 1.0
    send_speed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """What a fused causal kernel reached, the scores that it skips not counted."""

    forward_flops_per_s: float
    backward_flops_per_s: float


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """Rates of one device while all others do the same; None: nobody measured it."""

    memory_bytes_per_s: float | None = None
    """Rate of a stream of reads and writes through the device's own memory."""
    cached_bytes_per_s: float | None = None
    """The same through tensors of at most `cache_bytes` each; only where it was told apart."""
    cache_bytes: float = 0.0
    fresh_bytes_per_s: float | None = None
    """The same where every result is in pages that the kernel has just cleared: of CPU ranks."""
    operand_elements_per_s: Mapping[str, float] = field(default_factory=dict)
    """By precision: how fast products move their operands and results, beside computing."""
    link: MeasuredLink | None = None
    """Between the devices of a node."""
    network: MeasuredLink | None = None
    """Between nodes: a device's share, while the others of its node use theirs."""
    host_bytes_per_s: float | None = None
    """Between device and host, in the slower direction."""
    host_memory_bytes_per_s: float | None = None
    """Rate of a node, all ranks together."""
    nvme_bytes_per_s: float | None = None
    """Rate of a node's drives, all ranks together, in the slower direction."""
    layer_s: float | None = None
    """Host time of one layer forward and backward; only where nothing hides it."""
    attention: Mapping[str, AttentionRates] = field(default_factory=dict)
    """By precision; of CPU ranks, where they are far from those of products."""
    logit_s: Mapping[str, float] = field(default_factory=dict)
    """By precision: the loss forward and backward, per logit; of CPU ranks."""


class AttentionEntry(BaseModel):
    """Rates of attention as a file spells them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    forward_gflops: _Positive
    backward_gflops: _Positive

    def read(self) -> AttentionRates:
        """In operations per second."""
        return AttentionRates(
            forward_flops_per_s=self.forward_gflops * _GIGA,
            backward_flops_per_s=self.backward_gflops * _GIGA,
        )


class LinkEntry(BaseModel):
    """A link as a file spells it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gb_per_s: _Positive
    latency_us: _Positive | None = None
    all_reduce_speed: _Positive = 1.0
    all_to_all_speed: _Positive = 1.0
    send_speed: _Positive = 1.0

    def read(self) -> MeasuredLink:
        """In bytes and seconds."""
        return MeasuredLink(
            bytes_per_s=self.gb_per_s * _GIGA,
            latency_s=None if self.latency_us is None else self.latency_us * _MICRO,
            **self.model_dump(exclude={"gb_per_s", "latency_us"}),
        )


class MeasuredEntry(BaseModel):
    """All of it as a file spells it, under `measured:` of an accelerator."""

    model_config = ConfigDict(extra="forbid", strict=True)

    memory_gb_per_s: _Positive | None = None
    cached_gb_per_s: _Positive | None = None
    cache_mib: _Positive | None = None
    fresh_gb_per_s: _Positive | None = None
    operand_gelements_per_s: dict[str, _Positive] = Field(default_factory=dict)
    link: LinkEntry | None = None
    network: LinkEntry | None = None
    host_gb_per_s: _Positive | None = None
    host_memory_gb_per_s: _Positive | None = None
    nvme_gb_per_s: _Positive | None = None
    layer_us: _Positive | None = None
    attention: dict[str, AttentionEntry] = Field(default_factory=dict)
    logit_ns: dict[str, _Positive] = Field(default_factory=dict)

    def read(self) -> MeasuredRates:
        """In bytes, elements and seconds."""
        rates = {
            field: value * unit
            for key, (field, unit) in UNITS.items()
            if (value := getattr(self, key)) is not None
        }
        return MeasuredRates(
            **rates,
            operand_elements_per_s={
                name: rate * _GIGA for name, rate in self.operand_gelements_per_s.items()
            },
            link=None if self.link is None else self.link.read(),
            network=None if self.network is None else self.network.read(),
            attention={name: entry.read() for name, entry in self.attention.items()},
            logit_s={name: value / _GIGA for name, value in self.logit_ns.items()},
        )
