"""The benchmarks of the cost model run on a made-up table, and say what they promise."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.cost.errors import Ends, Widths
from tests.captured import captured
from tests.cost.rows import ROW, row

REPOSITORY = Path(__file__).resolve().parents[2]
EXTRA = {"fully_specified": "1", "config_basis": "published", "peak_mem_unit": "GB (nvidia-smi)"}


def run(name: str, *arguments: str) -> str:
    done = captured(
        [sys.executable, str(REPOSITORY / "benchmarks" / f"{name}.py"), *arguments],
        cwd=REPOSITORY,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """One sweep of eight layouts, and a row that ran out of memory."""
    names = [*ROW, *EXTRA]
    rows = []
    for tp in (1, 2, 4, 8):
        for micro_batch in (1, 2):
            dp = 64 // (tp * 2)
            changes = {"tp": tp, "dp": dp, "micro_batch": micro_batch, "step_time_s": 10 + tp}
            rows.append(row(**{name: str(value) for name, value in changes.items()}))
    rows.append(row(tp="1", dp="32", status="OOM", step_time_s="", peak_mem_gb=""))
    rows.append(row(n_layers=""))
    lines = [",".join(names)]
    lines += [",".join({**one, **EXTRA}[name] for name in names) for one in rows]
    (tmp_path / "made_up.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_accuracy_says_what_was_scored(tables: Path) -> None:
    found = json.loads(run("accuracy", "--published", str(tables), "--json"))
    assert (found["rows"], found["not_predicted"]) == (9, 1)
    assert found["fit"]["ran"] == 8
    assert found["fit"]["oom"] == 1
    [time], [memory], [rank] = found["time"], found["memory"], found["rank"]
    assert (time["rows"], time["split"], time["kind"]) == (8, "held_out", "dense")
    assert time["after_5"]["median_error"] < time["median_error"]
    assert {"median_error", "inside", "width"} == time["after_1"].keys() == time["after_0"].keys()
    assert memory["kind"] == "dense total"
    assert rank["groups"] == 1
    assert rank["regret_first"] >= rank["regret_of_three"] >= 1
    assert "median" in run("accuracy", "--published", str(tables))


def test_widths_are_fitted_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    fit_errors = importlib.import_module("fit_errors")
    parts = dict(zip(("doubt", "experts"), np.random.default_rng(0).random((2, 400)), strict=True))
    sizes = 0.1 * Widths(kinds={}, wider={"doubt": 2.0, "experts": 1.0}).scale(parts)
    sources = np.repeat(np.array([f"source {i}" for i in range(8)]), 50)
    found = fit_errors._wider(sizes, parts, sources)
    assert found == pytest.approx({"doubt": 2.0, "experts": 1.0}, abs=0.01)
    times = [fit_errors._of_few(Ends(low=1.0, high=1.0, sources=9), n).high for n in (1, 3, 5)]
    assert times == pytest.approx([3.0, 2.92 / 1.645, 2.132 / 1.645], abs=1e-3), "Student's t"


def test_planning_speed_ends_with_its_figures() -> None:
    text = run("planning_speed", "--candidates", "20000", "--repeats", "1", "--json")
    found = json.loads(text.splitlines()[-1])
    assert found["candidates_per_s"] > 0
    assert found["plan_1t_16384_s"] > 0
    assert found["plan_tp"] * found["plan_pp"] * found["plan_cp"] * found["plan_dp"] == 16_384
