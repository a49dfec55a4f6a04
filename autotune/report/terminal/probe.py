"""A probe in a terminal: what was reached beside what the class promises, and what is slow."""

from rich.console import Console
from rich.text import Text

from autotune.base.units import format_bytes, format_seconds
from autotune.probe.run import Probe
from autotune.report.terminal.tables import plain_table

_LINK_NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send": "send to the next",
}


def print_probe(console: Console, probe: Probe) -> None:
    """Print a row per figure, then the warnings."""
    n_ranks = len(probe.devices)
    where = f" on {probe.n_nodes} nodes" if probe.n_nodes > 1 else ""
    device_class = (
        "no class in the table" if probe.device_class is None else probe.device_class.name
    )
    console.print(
        Text(
            f"measured on {n_ranks} x {probe.environment.device_name}{where} in "
            f"{format_seconds(probe.wall_s)}, all ranks at once, each figure that of the slowest; "
            f"class: {device_class}"
        )
    )
    table = plain_table("*what", ">reached", ">class", ">latency", ">fit off by")
    for row in _rows(probe):
        table.add_row(*row)
    console.print(table)
    for warning in probe.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))


def _rows(probe: Probe) -> list[tuple[str, ...]]:
    figures, device_class = probe.figures, probe.device_class
    found = figures.measured
    rows: list[tuple[str, ...]] = [
        (
            f"{dtype} products",
            _flops(curve.best_flops_per_s),
            "-" if device_class is None else _flops(device_class.achieved_flops.get(dtype)),
            _latency(curve.latency_s),
            f"{curve.error:.0%}",
        )
        for dtype, curve in figures.products.items()
    ]
    if found.layer_s is not None:
        rows.append(("issuing a layer's kernels", "-", "-", _latency(found.layer_s), "-"))
    for dtype, rates in found.attention.items():
        for way, flops_per_s in (
            ("forward", rates.forward_flops_per_s),
            ("backward", rates.backward_flops_per_s),
        ):
            rows.append((f"{dtype} attention, {way}", _flops(flops_per_s), "-", "-", "-"))
    rows += [
        (f"{dtype} loss, of a logit", "-", "-", _latency(seconds), "-")
        for dtype, seconds in found.logit_s.items()
    ]
    promised = None if device_class is None else device_class.memory_bytes_per_s
    rows.append(("memory stream", _rate(found.memory_bytes_per_s), _rate(promised), "-", "-"))
    for name, rate in (
        (f"the same up to {format_bytes(found.cache_bytes or 0.0)}", found.cached_bytes_per_s),
        ("the same, into new pages", found.fresh_bytes_per_s),
    ):
        if rate is not None:
            rows.append((name, _rate(rate), "-", "-", "-"))
    if found.host_bytes_per_s is not None:
        promised = None if device_class is None else device_class.host_bytes_per_s
        rows.append(("host link", _rate(found.host_bytes_per_s), _rate(promised), "-", "-"))
    if found.nvme_bytes_per_s is not None:
        rows.append(("disk, all ranks", _rate(found.nvme_bytes_per_s), "-", "-", "-"))
    per_node = len(probe.devices) / probe.n_nodes
    link = None if device_class is None else device_class.links(per_node)[0]
    network = None if device_class is None else device_class.network_bytes_per_s
    rows += [
        (
            _LINK_NAMES[kind] + suffix,
            _rate(curve.bytes_per_s),
            _rate(promised),
            _latency(curve.latency_s),
            f"{curve.error:.0%}",
        )
        for suffix, promised, curves in (
            ("", link, figures.links),
            (", between nodes", network, figures.network),
        )
        for kind, curve in curves.items()
    ]
    rows += [
        (f"{_LINK_NAMES[kind]}, all ranks", f"{times - 1:+.0%} time", "-", "-", "-")
        for kind, times in figures.beyond.items()
    ]
    return rows


def _flops(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e12:.3g} TB/s" if value >= 1e12 else f"{value / 1e9:.3g} GB/s"


def _latency(value: float) -> str:
    # Before the third digit is rounded: 999.6 us would be 1e+03.
    if value >= 999.5e-6:
        return f"{_three_digits(value * 1e3)} ms"
    if 0.1e-9 <= value < 100e-9:
        return f"{_three_digits(value * 1e9)} ns"
    return f"{_three_digits(value * 1e6)} us"


def _three_digits(value: float) -> str:
    """Without an exponent: what is far below one is 0."""
    return f"{value:.0f}" if value >= 100 else f"{round(value, 3):.3g}"
