"""The file of a probe: an entry for the table of accelerators, and how it came about."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import StudyError
from autotune.base.files import NAME_HINT, check_target, write_text
from autotune.base.yaml_file import Dumper
from autotune.devices.accelerators import Accelerator
from autotune.devices.hardware import Environment
from autotune.devices.probed import short
from autotune.probe.curves import LinkCurve, ProductCurve
from autotune.probe.figures import Figures

MARK = "# Measured by `python -m autotune probe`"
_HEAD = f"""{MARK}; --accelerators of search, plan, explain and estimate reads it.
# `accelerators` is an entry as in autotune/devices/accelerators.yaml; `probe` says how it was
# measured.
"""


class Line(dict[str, Any]):
    """A mapping that stands on one line, whatever is in it."""


class _OurDumper(Dumper):
    """Knows `Line`."""


_OurDumper.add_representer(
    Line,
    lambda dumper, line: dumper.represent_mapping(
        "tag:yaml.org,2002:map", line.items(), flow_style=True
    ),
)


check_writable = partial(check_target, marker=MARK.encode(), whose="by `autotune probe`")
"""See that a probe's file can be written to a path, as of `check_target`."""


def write_hardware(path: Path, entry: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write the table's entries by name, and how they came about.

    Raises:
        StudyError: It cannot be written.
    """
    data = {"accelerators": dict(entry), "probe": dict(about)}
    text = yaml.dump(data, Dumper=_OurDumper, sort_keys=False, default_flow_style=None, width=1000)
    write_text(path, _HEAD + text, error=StudyError, hint=NAME_HINT, makes_folder=False)


def entry_of(
    environment: Environment,
    figures: Figures,
    device_class: Accelerator | None,
    *,
    per_node: int,
    n_nodes: int = 1,
    when: str,
) -> dict[str, Any]:
    """The entry, under the name by which the shipped table has such devices.

    What was not measured is as in that table; where it has no such device, it is what was reached.

    `per_node` ranks of each of `n_nodes` nodes took part.
    """
    found = figures.measured
    achieved = {dtype: curve.flops_per_s for dtype, curve in figures.products.items()}
    ranks = f"{per_node} rank(s)" + (f" on each of {n_nodes} nodes" if n_nodes > 1 else "")
    pattern = re.escape(environment.device_name)
    names = [rf"\b{pattern}", r"\bcpu\b"] if environment.accelerator == "cpu" else [pattern]
    measured: dict[str, Any] = {
        "names": tuple(map(re.compile, names)),
        "memory_bytes": float(environment.device_memory_bytes),
        "achieved_flops": achieved,
        "achieved_source": f"python -m autotune probe, {ranks}, {when}",
        "measured": found,
    }
    if device_class is not None:
        peaks = {
            **device_class.peak_flops,
            **{d: max(rate, device_class.peak_flops.get(d, 0.0)) for d, rate in achieved.items()},
        }
        source = f"as {device_class.name} of the shipped table"
        # Nobody looked at this host.
        unknown: dict[str, Any] = {"host_memory_bytes": None, "host_memory_bytes_per_s": None}
        entry = replace(device_class, **measured, **unknown, peak_flops=peaks, source=source)
    else:
        memory = found.memory_bytes_per_s or 0.0
        link = 0.0 if found.link is None else found.link.bytes_per_s
        host = found.host_bytes_per_s or link or memory
        entry = Accelerator(
            **measured,
            name=re.sub(r"[^A-Za-z0-9]+", "-", environment.device_name).strip("-") or "device",
            memory_bytes_per_s=memory,
            peak_flops=achieved,
            nvlink_bytes_per_s=link,
            nvlink_domain=per_node,
            host_bytes_per_s=host,
            network_bytes_per_s=host if found.network is None else found.network.bytes_per_s,
            devices_per_node=environment.n_devices,
            source="none: reached",
        )
    return {entry.name: entry.spelled()}


def fits_of(figures: Figures) -> list[dict[str, Any]]:
    """The curves, each with its error, for people and programs."""

    def row(of: str, curve: LinkCurve | ProductCurve, **rate: float) -> dict[str, Any]:
        latency_us = short(curve.latency_s * 1e6)
        return {"of": of, **rate, "latency_us": latency_us, "error": short(curve.error)}

    rows = [
        row(f"matmul {dtype}", curve, tflops=short(curve.flops_per_s / 1e12))
        for dtype, curve in figures.products.items()
    ]
    rows += [
        row(kind + suffix, curve, gb_per_s=short(curve.bytes_per_s / 1e9))
        for suffix, curves in (("", figures.links), (" between nodes", figures.network))
        for kind, curve in curves.items()
    ]
    rows += [
        {"of": f"{kind} of all ranks", "beyond": short(times)}
        for kind, times in figures.beyond.items()
    ]
    return rows
