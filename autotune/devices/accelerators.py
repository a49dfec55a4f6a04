"""The table of accelerators: datasheet peaks, what was reached, bandwidths, memory; with sources.

The table is `accelerators.yaml` beside this file; users add their own entries in a file like it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from autotune.base.errors import FleetError, JobError
from autotune.base.flags import flag
from autotune.base.names import did_you_mean
from autotune.base.yaml_file import read_yaml
from autotune.devices.probed import MeasuredRates
from autotune.devices.topology import Topology, parse_topology

SHIPPED = Path(__file__).resolve().parent / "accelerators.yaml"

Precision = Literal["fp32", "fp16", "bf16", "fp8", "fp4"]
_HINT = "write what `autotune probe --out FILE` writes: a mapping `accelerators:`"
_PROBE_HINT = "figures of a probe, maybe of another version's: run `autotune probe` again"
_ALIKE = 0.65
"""Least likeness of a name that is offered for another: those of other makers have less."""
_GIGA = 1e9
_TERA = 1e12
_LEAST, _MOST = 1e-6, 1e12
"""Bounds of any figure in its unit; beyond them, times divided by it are no numbers any more."""


def _refuse_next_to_nothing(value: float) -> float:
    if 0 < value < _LEAST:
        raise ValueError(f"should be 0 or at least {_LEAST:g}")
    return value


_Positive = Annotated[float, Field(ge=_LEAST, le=_MOST)]
_RateOrNone = Annotated[float, Field(ge=0, le=_MOST), AfterValidator(_refuse_next_to_nothing)]
_Name = TypeVar("_Name", bound=str)
_Count = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One kind of accelerator. Rates are of one device; link rates are of one direction."""

    name: str
    names: tuple[re.Pattern[str], ...]
    memory_bytes: float
    memory_bytes_per_s: float
    """Datasheet bandwidth of the device's own memory."""
    peak_flops: Mapping[str, float]
    """Dense datasheet peak by precision."""
    achieved_flops: Mapping[str, float]
    """The best that large matrix products reach, by the same precisions."""
    sustained_share: float
    """Share of that which it holds in training, beside the share that is common to all kinds."""
    nvlink_bytes_per_s: float
    """All links together; 0 where there are none."""
    nvlink_domain: int
    """Devices that reach each other over it."""
    host_bytes_per_s: float
    network_bytes_per_s: float
    """A device's share of its node's network in the vendor's own system."""
    devices_per_node: int
    source: str
    achieved_source: str
    host_memory_bytes: float | None = None
    """Memory of a node's host in that system; None: nobody looked it up."""
    host_memory_bytes_per_s: float | None = None
    """Peak of the host's own memory, of one node in that system; None: nobody looked it up."""
    measured: MeasuredRates | None = None
    """Measurements of a probe of such devices; None: there was none."""
    topology: Topology | None = None
    """The network between their nodes; None: nobody described it, and all nodes count as close."""

    @property
    def half(self) -> str:
        """The precision of attention and logits where layers run in a narrower one."""
        return _half_of(self.achieved_flops)

    def rate(self, precision: str) -> float:
        """FLOP/s that large matrix products reach.

        Raises:
            JobError: There are no figures for that precision.
        """
        if precision not in self.achieved_flops:
            raise JobError(
                f"no figures for {precision} on {self.name}; there are some for "
                + ", ".join(self.achieved_flops),
                "choose one of these, or add it to a table of your own",
            )
        return self.achieved_flops[precision]

    def links(self, per_node: float) -> tuple[float, float]:
        """Bytes per second between neighbours, and how many devices reach each other so.

        A rack-wide domain is wider than its nodes, any other ends with the node. Where NVLink
        joins pairs alone, a ring through the node goes over the host's link.
        """
        if self.nvlink_domain > self.devices_per_node:
            return self.nvlink_bytes_per_s, float(self.nvlink_domain)
        is_joined = self.nvlink_domain >= min(per_node, self.devices_per_node)
        rate = self.nvlink_bytes_per_s if is_joined else 0.0
        return rate or self.host_bytes_per_s, per_node


def _half_of(rates: Mapping[_Name, float]) -> _Name:
    wanted: tuple[Any, ...] = ("bf16", "fp16", "fp32")
    return next((name for name in wanted if name in rates), next(iter(rates)))


class _Entry(BaseModel):
    """An accelerator as its file spells it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str] = Field(min_length=1)
    memory_gib: _Positive
    memory_gb_per_s: _Positive
    tflops: dict[Precision, _Positive] = Field(min_length=1)
    achieved_tflops: dict[Precision, _Positive] = Field(min_length=1)
    sustained_share: Annotated[float, Field(ge=_LEAST, le=2)] = 1.0
    nvlink_gb_per_s: _RateOrNone
    nvlink_domain: _Count
    host_gb_per_s: _Positive
    host_memory_gib: _Positive | None = None
    host_memory_gb_per_s: _Positive | None = None
    network_gb_per_s: _Positive
    devices_per_node: _Count
    source: str
    achieved_source: str
    measured: MeasuredRates | None = None
    network_topology: Any = None


class _TableFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    accelerators: dict[str, _Entry] = Field(min_length=1)
    probe: dict[str, Any] = Field(default_factory=dict)
    """How a probe came to its figures; only people read it."""


def find_accelerator(
    device: str,
    *,
    memory_gib: float | None = None,
    table: Sequence[Accelerator] | None = None,
) -> Accelerator:
    """The entry of a device.

    Args:
        device: As NVML or a person names it: `NVIDIA A100-SXM4-80GB`, `H100`.
        memory_gib: Memory of the device, if known: it tells entries of one name apart.
        table: Where to look; the shipped table by default.

    Raises:
        FleetError: There is no such entry.
    """
    entries = shipped_accelerators() if table is None else table
    typed = _squashed(device)
    named = [entry for entry in entries if _squashed(entry.name) == typed]
    if not named and len(typed) >= _TELLING and typed.isdigit():
        named = [entry for entry in entries if _squashed(entry.name).endswith(typed)]
    if len({entry.name for entry in named}) == 1:  # a user's own stands before the shipped one
        return named[0]
    if "MIG" in device:
        raise FleetError(
            f"no figures for {device!r}, a slice of a device",
            "add an entry for it to a table of your own",
        )
    spelled = device.replace("_", " ")  # an underscore is a letter to regular expressions
    found = [entry for entry in entries if any(p.search(spelled) for p in entry.names)]
    if not found:
        raise FleetError(
            f"no figures for the accelerator {device!r}; known are "
            + ", ".join(entry.name for entry in entries),
            did_you_mean(device, [entry.name for entry in entries], most=2, alike=_ALIKE)
            + f"add an entry like those in {SHIPPED.name} to a file of your own "
            f"({flag('accelerators')} of search, plan, explain and estimate)",
        )
    if memory_gib is None:
        return found[0]
    wanted_bytes = memory_gib * 2**30
    return min(found, key=lambda entry: abs(entry.memory_bytes - wanted_bytes))


_TELLING = 4
"""Digits that name a device without its family: 4090, but not 100."""


def _squashed(name: str) -> str:
    """A name without case, spaces and hyphens: people write RTX4090."""
    return re.sub(r"[\s_-]", "", name).lower()


def named_accelerator(
    name: str,
    *,
    where: str,
    table: Sequence[Accelerator] | None = None,
    memory_gib: float | None = None,
) -> Accelerator:
    """The entry of a name that a person typed; other arguments are those of `find_accelerator`.

    Raises:
        JobError: There is no such entry.
    """
    try:
        return find_accelerator(name, memory_gib=memory_gib, table=table)
    except FleetError as error:
        raise JobError(f"{where}: {error.message}", error.hint) from error


@cache
def shipped_accelerators() -> tuple[Accelerator, ...]:
    """The shipped table, in the order of its file."""
    return read_accelerators(SHIPPED)


def accelerators_with(extra: Path | None) -> tuple[Accelerator, ...]:
    """The shipped table, after the entries of a user's file.

    Raises:
        JobError: The file is not such a table.
    """
    extra_entries = () if extra is None else read_accelerators(extra)
    return (*extra_entries, *shipped_accelerators())


def read_accelerators(path: Path) -> tuple[Accelerator, ...]:
    """Read a table.

    Raises:
        JobError: The file cannot be read, or an entry is not as it should be; names the key.
    """
    try:
        file = _TableFile.model_validate(read_yaml(path, hint=_HINT))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].replace(
            "Unexpected keyword argument", "Extra inputs are not permitted"
        )
        hint = _PROBE_HINT if "measured" in first["loc"] else _HINT
        raise JobError(f"{path}: {key}: {reason}", hint) from error
    return tuple(_accelerator(name, entry, path) for name, entry in file.accelerators.items())


def _accelerator(name: str, entry: _Entry, path: Path) -> Accelerator:
    missing = set(entry.achieved_tflops) - set(entry.tflops)
    if missing:
        raise JobError(
            f"{path}: accelerators.{name}.achieved_tflops: {sorted(missing)} not in tflops",
            "give the peak of the same precision",
        )
    return Accelerator(
        name=name,
        names=tuple(_patterns(name, entry.names, path)),
        memory_bytes=entry.memory_gib * 2**30,
        memory_bytes_per_s=entry.memory_gb_per_s * _GIGA,
        peak_flops={key: value * _TERA for key, value in entry.tflops.items()},
        achieved_flops=_achieved(entry),
        sustained_share=entry.sustained_share,
        nvlink_bytes_per_s=entry.nvlink_gb_per_s * _GIGA,
        nvlink_domain=entry.nvlink_domain,
        host_bytes_per_s=entry.host_gb_per_s * _GIGA,
        host_memory_bytes=entry.host_memory_gib and entry.host_memory_gib * 2**30,
        host_memory_bytes_per_s=(
            None if entry.host_memory_gb_per_s is None else entry.host_memory_gb_per_s * _GIGA
        ),
        network_bytes_per_s=entry.network_gb_per_s * _GIGA,
        devices_per_node=entry.devices_per_node,
        source=entry.source,
        achieved_source=entry.achieved_source,
        measured=entry.measured,
        topology=_topology(name, entry, path),
    )


def _topology(name: str, entry: _Entry, path: Path) -> Topology | None:
    if entry.network_topology is None:
        return None
    where = f"{path}: accelerators.{name}.network_topology"
    return parse_topology(entry.network_topology, where=where)


def _patterns(name: str, texts: Iterable[str], path: Path) -> Iterable[re.Pattern[str]]:
    for text in texts:
        try:
            yield re.compile(text, re.IGNORECASE)
        except re.error as error:
            raise JobError(
                f"{path}: accelerators.{name}.names: {text!r}: {error}",
                r"a regular expression such as \bA100\b",
            ) from error


def _achieved(entry: _Entry) -> dict[str, float]:
    """By precision; what was not measured is the share of the peak that half precision reaches."""
    known = entry.achieved_tflops
    share = known[_half_of(known)] / entry.tflops[_half_of(known)]
    return {key: known.get(key, share * peak) * _TERA for key, peak in entry.tflops.items()}
