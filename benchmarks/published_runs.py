"""Published training runs for the benchmarks: what was measured, beside what is predicted."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from published import rows_to_plans

from autotune.base.errors import JobError
from autotune.cost.errors import Errors, RunFacts
from autotune.cost.plans import Plans
from autotune.cost.table import TableRows, read_table
from autotune.devices.accelerators import Accelerator, shipped_accelerators

SPLIT = Path(__file__).resolve().parent / "sources.json"
GIB = 2**30
_ENOUGH_ROWS = 6
_SCORED_BASES = {"published", "published+HEAD recipe"}
_HELD_OUT = SPLIT.parent / "published" / "held_out.csv"
"""Complete rows that are in no fit either, and were predicted before they taught any width."""
ALIKE = ("source", "chip", "engine", "model")
"""What runs of a group that is left out share."""
_OPEN = " open"
"""Ending of the source of rows that leave something open: one apart from the complete ones."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The rows that may be scored: fully specified, their configuration published; and others."""

    rows: tuple[dict[str, str], ...]
    plans: Plans
    fewest_logit_bytes: NDArray[np.float64]
    """Column `logit_bytes` at least, where a row leaves open how its loss is computed."""
    open: Mapping[str, NDArray[np.bool_]]
    """What rows leave open -> which do."""
    sources: NDArray[np.str_]
    """The repository that a row is from; with ` open` behind it where the row leaves open what
    constants need, so that it only says how far off forecasts are."""
    devices: NDArray[np.str_]
    times_s: NDArray[np.float64]
    """NaN where none was published."""
    peaks_bytes: NDArray[np.float64]
    meters: NDArray[np.str_]
    """`allocated_bytes`, `reserved_bytes` or `peak_bytes`, as `Memory` calls them."""
    status: NDArray[np.str_]
    offloads: NDArray[np.bool_]
    """Whether DeepSpeed runs it with states on the host."""
    frameworks: NDArray[np.str_]
    """Names of their traits."""
    accelerators: tuple[Accelerator, ...]
    n_unpredicted: int
    """Rows that may be scored, but not predicted."""

    @property
    def repositories(self) -> NDArray[np.str_]:
        """Repositories of the rows, complete or not."""
        return np.char.partition(self.sources, " ")[:, 0]

    def alike(self, by: str) -> NDArray[np.str_]:
        """The group that each row is left out with, by one of `ALIKE`.

        Chips of a generation have the same narrowest precision and maker; models of a family the
        same first word.
        """
        if by == "source":
            return self.repositories
        if by == "engine":
            return self.frameworks
        if by == "chip":
            return np.array([_generation(accelerator) for accelerator in self.accelerators])
        names = [row.get("model_name", "").rpartition("/")[2].lower() for row in self.rows]
        return np.array(
            [re.sub(r"^meta.|^megatron.|[^a-z].*", "", name) or "other" for name in names]
        )

    @property
    def host_bound(self) -> NDArray[np.bool_]:
        """Whether the source says that the host sets the pace: tests of small models."""
        return np.array(["host-bound" in row.get("notes", "") for row in self.rows], bool)

    def part(self, mask: NDArray[np.bool_]) -> "Runs":
        """Some of them."""
        kept = np.flatnonzero(mask)
        return Runs(
            rows=tuple(self.rows[i] for i in kept),
            plans=self.plans.take(kept),
            fewest_logit_bytes=self.fewest_logit_bytes[kept],
            open={name: which[kept] for name, which in self.open.items()},
            sources=self.sources[kept],
            devices=self.devices[kept],
            times_s=self.times_s[kept],
            peaks_bytes=self.peaks_bytes[kept],
            meters=self.meters[kept],
            status=self.status[kept],
            offloads=self.offloads[kept],
            frameworks=self.frameworks[kept],
            accelerators=tuple(self.accelerators[i] for i in kept),
            n_unpredicted=self.n_unpredicted,
        )

    def facts(self, errors: Errors) -> RunFacts:
        """What is known of them, to those errors."""
        return errors.facts_of(
            self.frameworks.tolist(),
            self.accelerators,
            self.open,
            self.fewest_logit_bytes.tolist(),
        )

    def groups(self) -> list[NDArray[np.intp]]:
        """Rows of the same source, model, devices and global batch: what a search chooses from."""
        keys: dict[tuple[str, ...], list[int]] = {}
        for index, row in enumerate(self.rows):
            names = ("model_name", "n_layers", "hidden", "seq_len", "gpu_type", "gpu_mem_gb")
            names = (*names, "n_gpus", "global_batch", "framework", "precision")
            key = (str(self.sources[index]), *(row.get(name, "") for name in names))
            keys.setdefault(key, []).append(index)
        return [np.array(members) for members in keys.values()]

    def thinned(self, most: int) -> "Runs":
        """At most so many of each source and device, spread over its rows."""
        keys = np.char.add(np.char.add(self.sources, "|"), self.devices)
        kept = np.zeros(len(keys), bool)
        for key in np.unique(keys):
            rows = np.flatnonzero(keys == key)
            kept[rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))]] = True
        return self.part(kept)

    def weights(self) -> NDArray[np.float64]:
        """One for each source and device together, less where it has few rows."""
        keys = np.char.add(np.char.add(self.sources, "|"), self.devices)
        _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        return np.minimum(1.0, counts / _ENOUGH_ROWS)[which] / counts[which]


def read_runs(folder: Path, *, with_open: bool = False) -> Runs:
    """Read every CSV of a folder, the complete rows or those with something open too.

    Raises:
        JobError: There is none, or one cannot be read.
    """
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise JobError(f"{folder}: holds no CSV file", "name the folder of the published tables")
    every = [row for file in files for row in read_table(file)[1]]
    known = json.loads(SPLIT.read_text(encoding="utf-8"))
    # Tables of a reader's own are scored alone.
    if with_open and {_repository(row["source"]) for row in every} & {*known["fitted"]}:
        every += read_table(_HELD_OUT)[1]
    scored = [row for row in every if _is_scored(row) or (with_open and _is_open(row))]
    read = rows_to_plans(scored, shipped_accelerators())
    if read.plans is None:
        raise JobError(f"{folder}: no row can be predicted", read.reasons[0] if scored else "")
    return _runs(scored, read, read.plans)


def _runs(scored: Sequence[dict[str, str]], read: TableRows, plans: Plans) -> Runs:
    rows = tuple(scored[position] for position in read.positions)
    return Runs(
        rows=rows,
        plans=plans,
        fewest_logit_bytes=np.array(read.fewest_logit_bytes),
        open=read.open,
        sources=np.array(
            [_repository(row["source"]) + _OPEN * (not _is_scored(row)) for row in rows]
        ),
        devices=np.array([row["gpu_type"].split("(")[0].strip() for row in rows]),
        times_s=np.array([_float(row.get("step_time_s", "")) for row in rows]),
        peaks_bytes=np.array([_peak_bytes(row) for row in rows]),
        meters=np.array(read.meters),
        status=np.array([row.get("status", "") for row in rows]),
        offloads=np.array([row.get("offload", "").startswith("cpu") for row in rows]),
        frameworks=np.array(read.frameworks),
        accelerators=read.accelerators,
        n_unpredicted=len(scored) - len(rows),
    )


def _generation(accelerator: Accelerator) -> str:
    narrowest = next(
        name for name in ("fp4", "fp8", "bf16", "fp16") if name in accelerator.peak_flops
    )
    return f"AMD {narrowest}" if accelerator.name.startswith("MI") else narrowest


def _is_scored(row: dict[str, str]) -> bool:
    complete = row.get("fully_specified", "") in {"1", "1.0"}
    return complete and row.get("config_basis", "") in _SCORED_BASES


def _is_open(row: dict[str, str]) -> bool:
    """Whether a run that is not scored says how long its samples were, and what it measured."""
    results = (_float(row.get(name, "")) > 0 for name in ("step_time_s", "peak_mem_gb"))
    is_said = row.get("status", "") == "ok" and _float(row.get("seq_len", "")) > 0
    return is_said and any(results) and "inconsistent" not in row.get("config_basis", "")


def _repository(source: str) -> str:
    """`owner/name`, of a text such as `InternLM/InternEvo@c628a8c doc/en/train.md:37`."""
    found = re.search(r"[\w.-]+/[\w.-]+", source)
    return found[0] if found else source


def _peak_bytes(row: dict[str, str]) -> float:
    # GB of nvidia-smi and of torch are binary ones.
    return _float(row.get("peak_mem_gb", "")) * GIB


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
