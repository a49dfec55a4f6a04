"""Fit the constants of the cost model to published runs, and write them.

Only the sources that `benchmarks/sources.json` lists as fitted are looked at; `accuracy.py`
reports the others apart. Every source and device weighs the same, however many rows it has. Two
files are written: `autotune/cost/constants.yaml`, and in `autotune/devices/accelerators.yaml` the
`sustained_share`, what a kind of device holds in training beside an A100.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from calibrate import calibrate_constants, calibrate_with_shares
from numpy.typing import NDArray
from published_runs import SPLIT, Runs, read_runs

from autotune.cost.constants import SHIPPED, Constants, load_constants
from autotune.cost.plans import Column
from autotune.cost.predict import Prediction, predict
from autotune.devices import accelerators

Values = NDArray[np.float64]

_START = Constants(
    matmul_share=0.85,
    matmul_traffic=1.0,
    low_precision_share=0.9,
    grouped_traffic=3.0,
    attention_share=0.7,
    attention_backward_share=0.55,
    attention_start_tokens=400.0,
    memory_share=0.8,
    unfused_traffic=5.0,
    score_traffic_bytes=12.0,
    routed_traffic=1.5,
    # Dispatching a kernel takes 2.5e-5 on CPU ranks, the host alone; its launch some 5e-6 more.
    launch_s=3e-5,
    kernels_per_layer=20.0,
    routing_kernels=80.0,
    expert_launch_s=5e-6,
    skew_share=0.03,
    micro_batch_s=1e-3,
    fetch_s=2e-3,
    device_fetch_s=7e-4,
    cut_s=1e-5,
    send_s=1e-3,
    step_s=1.5e-2,
    nvlink_share=0.75,
    network_share=0.75,
    all_to_all_share=0.75,
    host_link_share=0.8,
    nvlink_latency_s=4e-6,
    network_latency_s=1.5e-5,
    # 1 to 2 us of overhead, three times as much for large messages: NVIDIA/nccl, tuning.cc.
    network_step_s=6e-6,
    overlap_share=0.15,
    scale_jitter=0.005,
    optimizer_traffic_bytes=8.0,
    page_s=2e-6,
    host_optimizer_share=0.5,
    context_bytes=1.2e9,
    # What nvidia-smi shows on two to four devices, in one group, beyond one device alone:
    # foundation-model-stack/fms-acceleration.
    communicator_bytes=1.2e9,
    fragmentation=0.06,
    # nvidia-smi beside allocated bytes of one run each: foundation-model-stack/fms-acceleration.
    logits_fragmentation=0.4,
    heap_bytes=2e8,
    heap_share=0.6,
    workspace_bytes=3e8,
)
"""What is known before any run: `benchmarks/calibrate.py` says how well."""
_SIGMA = 0.06
"""Noise of a published step, with what the model leaves out."""
_WEIGHT = 40.0
"""Rows that a source and device count as."""
_MOST_ROWS = 150
"""Rows of a source and device that are looked at; more say little, and take their time."""
_SHARE_SIGMA = 0.12
"""How far a device is from an A100, known before any run: of the logarithm."""
_OF_REFERENCE = "A100"
_SAME_CHIP = {
    **dict.fromkeys(("A100-40GB", "A100-80GB", "A100-PCIe", "A800"), _OF_REFERENCE),
    **dict.fromkeys(("H200", "H800", "GH200"), "H100"),
}
"""Accelerator -> another one with the same chip and power, so with the same share: a handful of
runs on an H200 are no evidence that its tensor cores are slower than those of an H100."""


def fitted_sources() -> list[str]:
    """Sources that constants and intervals are fitted on."""
    found: list[str] = json.loads(SPLIT.read_text(encoding="utf-8"))["fitted"]
    return found


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Constants, and the share of its rates that each kind of device holds."""

    constants: Constants
    shares: dict[str, float]


def fit(runs: Runs) -> Fitted:
    """All constants; those of the start where nothing ran."""
    if not runs.rows:
        return Fitted(constants=_START, shares={})
    timed = fit_time(runs)
    return replace(timed, constants=fit_memory(runs, timed.constants))


def fit_time(runs: Runs) -> Fitted:
    """The constants of the step time, and the share that each kind of device holds.

    Runs with states on the host are left out: their networks and hosts are not told; so are tests
    so small that their source says the host sets their pace.
    """
    ran = (runs.status == "ok") & np.isfinite(runs.times_s) & ~runs.offloads & ~runs.host_bound
    ran = runs.part(ran)
    ran = ran.thinned(_MOST_ROWS)
    names = _chips(ran)
    of_devices = sorted(set(names.tolist()) - {_OF_REFERENCE})
    kinds = np.array([of_devices.index(n) if n in of_devices else -1 for n in names.tolist()])
    fitted, shares = calibrate_with_shares(
        dataclasses.replace(ran.plans, sustained_share=_powered(ran)),
        ran.times_s,
        _START,
        kinds,
        share_sigma=_SHARE_SIGMA,
        sigma=_SIGMA,
        weights=_WEIGHT * ran.weights(),
    )
    return Fitted(constants=fitted, shares=dict(zip(of_devices, shares.tolist(), strict=True)))


def fit_memory(runs: Runs, start: Constants) -> Constants:
    """The constants of the peak memory, each row by its own meter."""
    seen = runs.part((runs.status == "ok") & np.isfinite(runs.peaks_bytes))
    if not seen.rows:
        return start
    return calibrate_constants(
        seen.plans,
        seen.peaks_bytes,
        start,
        meters=[str(meter) for meter in seen.meters],
        sigma=_SIGMA,
        weights=_WEIGHT * seen.weights(),
    )


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Predictions of every run by constants that its source had no part in; an element each."""

    predicted: tuple[Prediction, ...]
    """Of each source."""
    rows: tuple[NDArray[np.intp], ...]
    """Which runs these are."""

    def column(self, read: Callable[[Prediction], Column]) -> Values:
        """A figure of the predictions, by run."""
        found = np.full(sum(map(len, self.rows)), np.nan)
        for predicted, rows in zip(self.predicted, self.rows, strict=True):
            found[rows] = read(predicted)
        return found


def leave_one_out(runs: Runs, of_all: Fitted, by: str = "source") -> LeftOut:
    """Predict each group of runs by a fit on the others that are fitted.

    `by` says what runs of a group share: `Runs.alike`. Groups of which none is fitted are
    predicted by the fit on all that are, which is given. No fit begins at it: the search would
    end near it, and so near the group that is left out.
    """
    fitted_on = np.isin(runs.sources, fitted_sources())
    groups = runs.alike(by)
    predicted, rows = [], []
    for group in np.unique(groups):
        here = groups == group
        part = runs.part(here)
        is_fitted = bool(fitted_on[here].any())
        fitted = fit(runs.part(fitted_on & ~here)) if is_fitted else of_all
        kinds = _chips(part)
        # A device that no other source has counts as an A100 does.
        held = _with_shares(part, kinds, fitted.shares)
        predicted.append(predict(held.plans, fitted.constants))
        rows.append(np.flatnonzero(here))
    return LeftOut(predicted=tuple(predicted), rows=tuple(rows))


def _chips(runs: Runs) -> NDArray[np.str_]:
    """The entry of the table of accelerators whose share each row has."""
    names = [accelerator.name for accelerator in runs.accelerators]
    return np.array([_SAME_CHIP.get(name, name) for name in names])


def _with_shares(runs: Runs, kinds: NDArray[np.str_], shares: dict[str, float]) -> Runs:
    column = np.array([shares.get(str(kind), 1.0) for kind in kinds]) * _powered(runs)
    return dataclasses.replace(runs, plans=dataclasses.replace(runs.plans, sustained_share=column))


def _powered(runs: Runs) -> Values:
    """Share of the 16-bit rate that the power of each row's device pays for."""
    return np.array([one.powered_share(one.half) for one in runs.accelerators])


def write_constants(constants: Constants, path: Path, *, by: str) -> None:
    """As YAML, four digits each, with the name of the benchmark that writes them."""
    values = {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(constants).items()}
    head = f"# Written by benchmarks/{by}; autotune/cost/constants.py says what each is.\n"
    path.write_text(head + yaml.safe_dump(values, sort_keys=True), encoding="utf-8")


def write_shares(shares: dict[str, float], path: Path) -> None:
    """Into the table of accelerators, whose other lines stay as they are."""
    lines = []
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = re.fullmatch(r"  ([\w.-]+):", line)
        name = entry[1] if entry else name
        if line.startswith("    sustained_share:"):
            continue
        lines.append(line)
        share = shares.get(_SAME_CHIP.get(name, name), 1.0)
        if line.startswith("    achieved_tflops:") and share != 1.0:
            lines.append(f"    sustained_share: {share:.3f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what was fitted, write nothing"
    )
    options = parser.parse_args()
    runs = read_runs(options.published)
    fitted = fit(runs.part(np.isin(runs.sources, fitted_sources())))
    show(fitted)
    if not options.dry_run:
        write(fitted)


def show(fitted: Fitted) -> None:
    """Print what was fitted, beside where the fit began."""
    for name, value in dataclasses.asdict(fitted.constants).items():
        print(f"{name:26} {getattr(_START, name):<10.4g} -> {value:.4g}")
    for name, share in fitted.shares.items():
        print(f"sustained_share of {name:14} {share:.3f}")


def write(fitted: Fitted) -> None:
    """Write the constants and the table of accelerators."""
    write_constants(fitted.constants, SHIPPED, by=Path(__file__).name)
    write_shares(fitted.shares, accelerators.SHIPPED)
    load_constants.cache_clear()


if __name__ == "__main__":
    main()
