"""How far off are predictions with a probe's figures, and with the shipped table alone?

    python benchmarks/probed_predictions.py --out DIR [--candidates N] [--json]

Probes this machine, runs N random legal candidates of two model families on its devices, and
predicts each by the shipped table and by the probe's file: rank correlation with the measured
step times, and how far step time and peak memory are off in the median. Nothing is fitted, and
no trial corrects the predictions. A second probe in the end says how far the machine itself went
away meanwhile: by how much its best product and its stream changed.

The folder, a new one, gets the probe's file, `rows.csv` (a row per candidate that ran) and the
studies.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from search_wall_clock import Progress
from wall_clock_searches import Table

from autotune.app.probe import probe_place
from autotune.app.run import search
from autotune.app.session import open_session
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.devices.accelerators import Accelerator, accelerators_with, shipped_accelerators
from autotune.devices.hardware import detect_environment
from autotune.engines.deepspeed.plans import plans_of
from autotune.fleet.transports.local import Here
from autotune.probe.hardware_file import write_hardware
from autotune.probe.run import Probe

FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {
        "llama": {"model": "tiny-llama-32k", "seq_len": 64, "global_batch": 32, "space": "cpu"},
        "gpt2": {"model": "tiny-gpt2", "seq_len": 128, "global_batch": 32, "space": "cpu"},
    },
    "cuda": {
        "llama": {"model": "llama-3.2-1b", "seq_len": 1024, "global_batch": 64, "space": "full"},
        "gpt2": {"model": "gpt2-xl", "seq_len": 1024, "global_batch": 64, "space": "full"},
    },
}
"""Job of each family, by kind of device."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of studies and tables")
    parser.add_argument("--candidates", type=int, default=36, help="of each model family")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--out {options.out}: is there; figures of two hours would be mixed")
    before = probed(options.out / "hardware.yaml")
    tables = {
        "shipped": shipped_accelerators(),
        "probed": accelerators_with(options.out / "hardware.yaml"),
    }
    environment = before.environment
    rows = pd.concat(
        [
            measured(family, job, tables, options)
            for family, job in FAMILIES[environment.accelerator].items()
        ],
        ignore_index=True,
    )
    rows.to_csv(options.out / "rows.csv", index=False, float_format="%.6g")
    after = probed(options.out / "hardware-after.yaml")
    found = {
        "device_name": environment.device_name,
        "ranks": len(before.devices),
        "versions": {
            "deepspeed": environment.deepspeed_version,
            "torch": environment.torch_version,
        },
        "families": {
            family: {
                "candidates": len(theirs),
                **{table: errors(theirs, table) for table in tables},
            }
            for family, theirs in rows.groupby("family", sort=False)
        },
        "probe_after_over_before": drift(before, after),
    }
    say(found)
    if options.json:
        print(json.dumps(found))
    return 0


def probed(out: Path) -> Probe:
    """Of as many devices as a search takes."""
    here = Here(detect_environment(), {})
    found = probe_place(out, here, world=None, disk=None, is_quick=False, note=print)
    assert found is not None, "one node is all there is"
    write_hardware(out, found.entry, found.about)
    return found


def measured(
    family: str,
    job: dict[str, Any],
    tables: dict[str, tuple[Accelerator, ...]],
    options: argparse.Namespace,
) -> pd.DataFrame:
    """A row per candidate that ran, with what each table of accelerators makes of it."""
    session = open_session(
        None,
        {
            **job,
            "precision": "bf16",
            "sampler": "random",
            "seed": 1,
            "trials": options.candidates,
            "study": family,
            "diagnose": False,
        },
        results=options.out,
    )
    answer = search(session, Progress(family), fresh=False)
    if answer.problem is not None:
        raise answer.problem.error
    ran = [
        (row, row.samples_per_s, row.result.peak_memory_bytes)
        for row in Table.of(session).rows.values()
        if row.samples_per_s is not None and row.result.peak_memory_bytes is not None
    ]
    candidates = [row.candidate for row, _, _ in ran]
    frame = pd.DataFrame(
        {
            "family": family,
            "model": job["model"],
            "seq_len": job["seq_len"],
            "global_batch": job["global_batch"],
            "world": session.job.world,
            **{name: [each.get(name) for each in candidates] for name in session.lattice.values},
            "runs": [row.n_runs for row, _, _ in ran],
            "step_time_s": [job["global_batch"] / rate for _, rate, _ in ran],
            "peak_memory_bytes": [peak for _, _, peak in ran],
        }
    )
    for name, table in tables.items():
        plans = plans_of(candidates, session.job, session.environment, accelerators=table)
        said = predict(plans, constants_of(session.environment))
        frame[f"{name}_step_time_s"] = said.step_time_s
        frame[f"{name}_peak_memory_bytes"] = said.peak_memory_bytes
    return frame


def errors(rows: pd.DataFrame, table: str) -> dict[str, float]:
    """Of one table of accelerators on one family."""
    said_s = rows[f"{table}_step_time_s"]
    return {
        "rank_correlation": float(said_s.rank().corr(rows["step_time_s"].rank())),
        "time_error": _off(said_s, rows["step_time_s"]),
        "memory_error": _off(rows[f"{table}_peak_memory_bytes"], rows["peak_memory_bytes"]),
    }


def _off(said: pd.Series, measured: pd.Series) -> float:
    off: NDArray[np.float64] = np.abs(said.to_numpy(float) / measured.to_numpy(float) - 1.0)
    return float(np.median(off))


def drift(before: Probe, after: Probe) -> dict[str, float]:
    """Rates of the second probe over those of the first."""
    first, second = before.figures, after.figures
    memories = [each.measured.memory_bytes_per_s for each in (first, second)]
    assert memories[0] is not None, "every probe measures a stream"
    assert memories[1] is not None, "every probe measures a stream"
    products = [each.products["bf16"].best_flops_per_s for each in (first, second)]
    return {"products": products[1] / products[0], "memory": memories[1] / memories[0]}


def say(found: dict[str, Any]) -> None:
    print(f"{found['ranks']} x {found['device_name']}")
    for family, figures in found["families"].items():
        for table in ("shipped", "probed"):
            of_it = figures[table]
            print(
                f"{family:6} {table:8} {figures['candidates']} candidates: rank correlation "
                f"{of_it['rank_correlation']:.2f}, step time {of_it['time_error']:.1%} and memory "
                f"{of_it['memory_error']:.1%} off in the median"
            )
    moved = ", ".join(
        f"{name} {ratio - 1:+.0%}" for name, ratio in found["probe_after_over_before"].items()
    )
    print(f"the second probe beside the first: {moved}")


if __name__ == "__main__":
    sys.exit(main())
