"""The file of a probe: an entry for the table of accelerators, and how it came about."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import JobError
from autotune.base.files import is_foreign, write_whole
from autotune.devices.accelerators import Accelerator
from autotune.devices.hardware import Environment
from autotune.devices.probed import MeasuredLink, MeasuredRates
from autotune.probe.figures import Figures

MARK = "# Measured by `python -m autotune probe`"
_HEAD = f"""{MARK}; --accelerators of search, plan, explain and estimate reads it.
# `accelerators` is an entry as in autotune/devices/accelerators.yaml; `probe` says how it was
# measured.
"""
_NAME_HINT = "name another file with --out"


class Line(dict[str, Any]):
    """A mapping that stands on one line, whatever is in it."""


class _Dumper(yaml.SafeDumper):
    """Knows `Line`."""


_Dumper.add_representer(
    Line,
    lambda dumper, line: dumper.represent_mapping(
        "tag:yaml.org,2002:map", line.items(), flow_style=True
    ),
)


def check_writable(path: Path) -> None:
    """See that a probe's file can be written to a path, before minutes are spent on it.

    Raises:
        JobError: Its folder is not there or cannot be written, or what stands there is no file of
            a probe.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise JobError(f"--out {path}: its folder is not there", f"make it, or {_NAME_HINT}")
    try:
        foreign = is_foreign(path, MARK.encode())
        if not foreign:
            write_whole(path.with_name(f".{path.name}.try"), lambda aside: aside.touch())
            path.with_name(f".{path.name}.try").unlink()
    except OSError as error:
        raise _not_written(path, error) from error
    if foreign:
        raise JobError(f"--out {path}: is there, and no probe wrote it", _NAME_HINT)


def write_hardware(path: Path, entry: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write the file.

    Args:
        path: Where to.
        entry: The table's entries by name.
        about: How they came about.

    Raises:
        JobError: It cannot be written.
    """
    data = {"accelerators": dict(entry), "probe": dict(about)}
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=1000)
    try:
        write_whole(path, lambda aside: aside.write_text(_HEAD + text, encoding="utf-8"))
    except OSError as error:
        raise _not_written(path, error) from error


def entry_of(
    environment: Environment,
    figures: Figures,
    its_class: Accelerator | None,
    *,
    per_node: int,
    n_nodes: int = 1,
    when: str,
) -> dict[str, Any]:
    """The entry, under the name by which the shipped table has such devices.

    What was not measured is as in that table; where it has no such device, it is what was reached.

    Args:
        environment: The devices.
        figures: What they reached.
        its_class: Their entry in the shipped table, if there is one.
        per_node: Ranks of each node that took part.
        n_nodes: Nodes that took part.
        when: The date.
    """
    name = its_class.name if its_class is not None else _slug(environment.device_name)
    found = figures.measured
    achieved = {dtype: curve.flops_per_s for dtype, curve in figures.products.items()}
    peaks = dict(its_class.peak_flops) if its_class is not None else dict(achieved)
    for dtype, rate in achieved.items():
        peaks[dtype] = max(rate, peaks.get(dtype, 0.0))
    memory = found.memory_bytes_per_s or 0.0
    link = None if found.link is None else found.link.bytes_per_s
    domain = its_class.nvlink_domain if its_class is not None else per_node
    nvlink = its_class.nvlink_bytes_per_s if its_class is not None else link or 0.0
    host = found.host_bytes_per_s or link or memory
    network = host if found.network is None else found.network.bytes_per_s
    ranks = f"{per_node} rank(s)" + (f" on each of {n_nodes} nodes" if n_nodes > 1 else "")
    pattern = re.escape(environment.device_name)
    entry: dict[str, Any] = {
        "names": [rf"\b{pattern}", r"\bcpu\b"] if environment.accelerator == "cpu" else [pattern],
        "memory_gib": round(environment.device_memory_bytes / 2**30, 4),
        "memory_gb_per_s": _giga(
            its_class.memory_bytes_per_s if its_class is not None else memory
        ),
        "tflops": {dtype: _short(rate / 1e12) for dtype, rate in peaks.items()},
        "achieved_tflops": {dtype: _short(rate / 1e12) for dtype, rate in achieved.items()},
        "sustained_share": its_class.sustained_share if its_class is not None else 1.0,
        "nvlink_gb_per_s": _giga(nvlink),
        "nvlink_domain": domain,
        "host_gb_per_s": _giga(its_class.host_bytes_per_s if its_class is not None else host),
        "network_gb_per_s": _giga(
            its_class.network_bytes_per_s if its_class is not None else network
        ),
        "devices_per_node": its_class.devices_per_node
        if its_class is not None
        else environment.n_devices,
        "source": f"as {name} of the shipped table" if its_class is not None else "none: reached",
        "achieved_source": f"python -m autotune probe, {ranks}, {when}",
        "measured": _spelled(found),
    }
    return {name: entry}


def _spelled(found: MeasuredRates) -> dict[str, Any]:
    """As `MeasuredEntry` reads it; what is not there is left out."""
    spelled: dict[str, float | None] = {
        "memory_gb_per_s": _giga(found.memory_bytes_per_s),
        "cached_gb_per_s": _giga(found.cached_bytes_per_s),
        "cache_mib": found.cache_bytes / 2**20 or None,
        "fresh_gb_per_s": _giga(found.fresh_bytes_per_s),
        "host_gb_per_s": _giga(found.host_bytes_per_s),
        "host_memory_gb_per_s": _giga(found.host_memory_bytes_per_s),
        "nvme_gb_per_s": _giga(found.nvme_bytes_per_s),
        "layer_us": _micro(found.layer_s),
    }
    return {
        **{name: value for name, value in spelled.items() if value is not None},
        **{
            name: _spelled_link(link)
            for name, link in (("link", found.link), ("network", found.network))
            if link is not None
        },
        "operand_gelements_per_s": {
            dtype: _short(rate / 1e9) for dtype, rate in found.operand_elements_per_s.items()
        },
        "attention": {
            dtype: {
                "forward_gflops": _short(rates.forward_flops_per_s / 1e9),
                "backward_gflops": _short(rates.backward_flops_per_s / 1e9),
            }
            for dtype, rates in found.attention.items()
        },
        "logit_ns": {dtype: _short(seconds * 1e9) for dtype, seconds in found.logit_s.items()},
    }


def _spelled_link(link: MeasuredLink) -> dict[str, float]:
    spelled = {
        "gb_per_s": _giga(link.bytes_per_s),
        "latency_us": _micro(link.latency_s),
        "all_reduce_speed": _short(link.all_reduce_speed),
        "all_to_all_speed": _short(link.all_to_all_speed),
        "send_speed": _short(link.send_speed),
    }
    return {name: value for name, value in spelled.items() if value is not None}


def fits_of(figures: Figures) -> list[dict[str, Any]]:
    """The curves, each with its error, for people and programs."""
    rows: list[dict[str, Any]] = [
        {
            "of": f"matmul {dtype}",
            "tflops": _short(curve.flops_per_s / 1e12),
            "latency_us": _micro(curve.latency_s),
            "error": _short(curve.error),
        }
        for dtype, curve in figures.products.items()
    ]
    rows += [
        {
            "of": kind + suffix,
            "gb_per_s": _giga(curve.bytes_per_s),
            "latency_us": _micro(curve.latency_s),
            "error": _short(curve.error),
        }
        for suffix, curves in (("", figures.links), (" between nodes", figures.network))
        for kind, curve in curves.items()
    ]
    rows += [
        {"of": f"{kind} of all ranks", "beyond": _short(times)}
        for kind, times in figures.beyond.items()
    ]
    return rows


def _not_written(path: Path, error: OSError) -> JobError:
    return JobError(f"--out {path}: cannot be written: {error.strerror or error}", _NAME_HINT)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "device"


def _giga(value: float | None) -> float | None:
    return None if value is None else _short(value / 1e9)


def _micro(value: float | None) -> float | None:
    return None if value is None else _short(value * 1e6)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
