"""The table of accelerators: datasheet peaks, what was reached, bandwidths, memory; with sources.

The table is `accelerators.yaml` beside this file; users add their own entries in a file like it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from autotune.base.errors import FleetError, JobError
from autotune.base.names import did_you_mean
from autotune.base.yaml_file import read_yaml
from autotune.devices.probed import MeasuredRates, in_unit
from autotune.devices.topology import Topology, parse_topology

SHIPPED = Path(__file__).resolve().parent / "accelerators.yaml"

_HINT = "write what `autotune probe --out FILE` writes: a mapping `accelerators:`"
_PROBE_HINT = "figures of a probe, maybe of another version's: run `autotune probe` again"
_ALIKE = 0.65
"""Least likeness of a name that is offered for another: those of other makers have less."""
_PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "fp4")
_LIKE = 0.2
"""Most logarithm of the ratio of two peaks that count as the same."""
_OPERATIONS_PER_J = 1.22e12
"""Operations in 16 bits that a joule pays for in large products that follow one another, over the
share of bursts that training reaches on a device whose power is enough. A B200 of 1 kW holds 0.48
of its peak in products as long as 0.2 ms and reaches 0.65 in shorter ones. Source:
MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json; a100_pcie.json, with 0.74 in both."""
_CHEAPER = {"fp8": 2.5, "fp4": 6.25}
"""Times as many: half the bits are moved, and multipliers take a quarter. Source: Horowitz,
Computing's energy problem (ISSCC 2014)."""
MOST_RANKS = 2**31 - 1
"""More ranks than any run has."""
_LEAST, _MOST = 1e-6, 1e12
"""Bounds of any figure in its unit; beyond them, times divided by it are no numbers any more."""


def _refuse_next_to_nothing(value: float) -> float:
    if 0 < value < _LEAST:
        raise ValueError(f"should be 0 or at least {_LEAST:g}")
    return value


def _patterns(texts: object) -> tuple[re.Pattern[str], ...]:
    if not isinstance(texts, list) or not texts:
        raise ValueError("should be a list of regular expressions")
    try:
        return tuple(re.compile(text := pattern, re.IGNORECASE) for pattern in texts)
    except (TypeError, re.error) as error:
        raise ValueError(f"{text!r}: {error}", r"a regular expression such as \bA100\b") from error


def _precision(name: str) -> str:
    if name not in _PRECISIONS:
        raise ValueError(f"no precision; known are {', '.join(_PRECISIONS)}")
    return name


def _refuse_name(name: str) -> str:
    raise ValueError("there is no such key: the name is that of the entry")


def _topology(value: object) -> Topology | None:
    try:
        return None if value is None else parse_topology(value)
    except JobError as error:
        raise ValueError(error.message.removeprefix("network_topology: "), error.hint) from error


_POSITIVE = Field(ge=_LEAST, le=_MOST, strict=True)
_Gib = Annotated[
    float, _POSITIVE, in_unit(2.0**30)[0], PlainSerializer(lambda size: round(size / 2**30, 4))
]
_Giga = Annotated[float, _POSITIVE, *in_unit(1e9)]
_Tera = Annotated[float, _POSITIVE, *in_unit(1e12)]
_GigaOrNone = Annotated[
    float,
    Field(ge=0, le=_MOST, strict=True),
    AfterValidator(_refuse_next_to_nothing),
    *in_unit(1e9),
]
_Precision = Annotated[str, AfterValidator(_precision)]
_Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One kind of accelerator. Rates are of one device; link rates are of one direction.

    Pydantic reads it from a file by the annotations, which have the file's keys and units.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str, AfterValidator(_refuse_name)] = ""
    """Its key in the table."""
    names: Annotated[
        tuple[re.Pattern[str], ...],
        BeforeValidator(_patterns),
        PlainSerializer(lambda patterns: [one.pattern for one in patterns]),
    ]
    memory_bytes: Annotated[_Gib, Field(alias="memory_gib")]
    memory_bytes_per_s: Annotated[_Giga, Field(alias="memory_gb_per_s")]
    """Datasheet bandwidth of the device's own memory."""
    peak_flops: Annotated[Mapping[_Precision, _Tera], Field(alias="tflops", min_length=1)]
    """Dense datasheet peak by precision."""
    achieved_flops: Annotated[
        Mapping[_Precision, _Tera], Field(alias="achieved_tflops", min_length=1)
    ]
    """The best that large matrix products reach, by the same precisions."""
    power_w: Annotated[float | None, _POSITIVE] = None
    """Most power of the device, of its datasheet; None: nobody looked it up."""
    exponential_speed: Annotated[float, _POSITIVE] = 1.0
    """Exponentials per second, beside devices whose products are as fast: attention needs them."""
    sustained_share: Annotated[float, Field(ge=_LEAST, le=2, strict=True)] = 1.0
    """Share of what its power pays for that it holds in training, beside the share that is common
    to all kinds."""
    nvlink_bytes_per_s: Annotated[_GigaOrNone, Field(alias="nvlink_gb_per_s")]
    """All links together; 0 where there are none."""
    nvlink_domain: _Count
    """Devices that reach each other over it."""
    host_bytes_per_s: Annotated[_Giga, Field(alias="host_gb_per_s")]
    network_bytes_per_s: Annotated[_Giga, Field(alias="network_gb_per_s")]
    """A device's share of its node's network in the vendor's own system."""
    devices_per_node: _Count
    source: str
    achieved_source: str
    host_memory_bytes: Annotated[_Gib | None, Field(alias="host_memory_gib")] = None
    """Memory of a node's host in that system, or of a usual one; None: nobody looked it up."""
    host_memory_bytes_per_s: Annotated[_Giga | None, Field(alias="host_memory_gb_per_s")] = None
    """Peak of the host's own memory, of one node in that system; None: nobody looked it up."""
    measured: MeasuredRates | None = None
    """Measurements of a probe of such devices; None: there was none."""
    topology: Annotated[
        Topology | None,
        BeforeValidator(_topology),
        PlainSerializer(lambda topology: topology and topology.spelled()),
        Field(alias="network_topology"),
    ] = None
    """The network between their nodes; None: nobody described it, and all nodes count as close."""

    def powered_share(self, precision: str) -> float:
        """Share of what products reach in bursts that the power of the device pays for."""
        paid = _OPERATIONS_PER_J * _CHEAPER.get(precision, 1.0) * (self.power_w or math.inf)
        return min(1.0, paid / self.rate(precision))

    def is_like(self, other: "Accelerator") -> bool:
        """Whether what is known of runs on one holds for the other: the A100 and the A800.

        Both have the same narrow precisions, and nearly the same peaks in 16 bits and in 32.
        """
        first, second = self.peak_flops, other.peak_flops
        if any((narrow in first) != (narrow in second) for narrow in ("bf16", "fp8", "fp4")):
            return False
        shared = [name for name in ("fp32", self.half) if name in first and name in second]
        return all(abs(math.log(first[name] / second[name])) < _LIKE for name in shared)

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
            known = {"name": self.name, "known": ", ".join(self.achieved_flops)}
            raise JobError.of("devices.no_precision", precision=precision, **known)
        return self.achieved_flops[precision]

    def deepep_ranks(self, per_node: int) -> int:
        """The most ranks among which DeepEP's kernels send tokens; 0: they do not run.

        They need NVLink and Ampere or later; across nodes NVLink between all devices of a node and
        Hopper or later. Of those in the table that NVLink joins, only these have fp8.
        Source: deepseek-ai/DeepEP, README.md, Requirements, and setup.py, DISABLE_SM90_FEATURES.
        """
        if not self.nvlink_bytes_per_s or "bf16" not in self.peak_flops:
            return 0
        is_whole = "fp8" in self.peak_flops and self.nvlink_domain >= per_node
        return MOST_RANKS if is_whole else self.nvlink_domain

    def spelled(self) -> dict[str, Any]:
        """As a file has it, without its name; what is None is left out."""
        return dict(_entry().dump_python(self, by_alias=True, exclude_none=True, exclude={"name"}))

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


@cache
def _entry() -> TypeAdapter[Accelerator]:
    return TypeAdapter(Accelerator)


def _half_of(rates: Mapping[str, float]) -> str:
    wanted = ("bf16", "fp16", "fp32")
    return next((name for name in wanted if name in rates), next(iter(rates)))


class _TableFile(BaseModel, extra="forbid"):
    accelerators: dict[str, Accelerator] = Field(min_length=1)
    probe: dict[str, Any] = Field(default_factory=dict)
    """How a probe came to its figures; only people read it."""


def find_accelerator(
    device: str, *, memory_gib: float | None = None, table: Sequence[Accelerator] | None = None
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
        raise FleetError.of("devices.is_slice", device=device)
    spelled = device.replace("_", " ")  # an underscore is a letter to regular expressions
    found = [entry for entry in entries if any(p.search(spelled) for p in entry.names)]
    if not found:
        names = [entry.name for entry in entries]
        near = did_you_mean(device, names, most=2, alike=_ALIKE)
        known = {"near": near, "shipped": SHIPPED, "known": ", ".join(names)}
        raise FleetError.of("devices.no_accelerator", device=device, **known)
    if memory_gib is None:
        return found[0]
    return min(found, key=lambda entry: abs(entry.memory_bytes - memory_gib * 2**30))


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
        JobError: There is no such entry, or several are named.
    """
    if "," in name:
        hint = "name one; `autotune plan --what-if gpu=NAME` compares it with another"
        raise JobError(f"{where}: {name!r} is more than one accelerator", hint)
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
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            reason = "there is no such key"
        hint = _PROBE_HINT if "measured" in first["loc"] else _HINT
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, ValueError) and len(cause.args) == 2:
            reason, hint = cause.args
        raise JobError(f"{path}: {key}: {reason}", hint) from error
    return tuple(_whole(name, entry, path) for name, entry in file.accelerators.items())


def _whole(name: str, entry: Accelerator, path: Path) -> Accelerator:
    """With its name; what was not measured is as far below its peak as half precision is."""
    peaks, known = entry.peak_flops, entry.achieved_flops
    if missing := set(known) - set(peaks):
        raise JobError.of("devices.no_peak", path=path, name=name, missing=sorted(missing))
    share = known[_half_of(known)] / peaks[_half_of(known)]
    achieved = {key: known.get(key, share * peak) for key, peak in peaks.items()}
    return replace(entry, name=name, achieved_flops=achieved)
