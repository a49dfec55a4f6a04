"""The order of 64 layouts that two CPU ranks trained is the one that the cost model predicts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.engines.megatron.engine import MegatronEngine
from autotune.job.job import make_job
from tests.jobs import CPU

RECORD = Path(__file__).parents[3] / "results" / "recorded" / "megatron-order-cpu-2.json"
JOB: dict[str, Any] = {
    **{"engine": "megatron", "model": "tiny-llama", "seq_len": 128, "global_batch": 16},
    **{"world": 2, "precision": "fp32"},
}
LEAST = {"fastest_step_s": 0.95, "peak_memory_bytes": 0.93}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """What was measured, with today's predictions."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    environment = dataclasses.replace(CPU, megatron_core=recorded["megatron_core"])
    engine = MegatronEngine(make_job(JOB, where="test"), environment)
    layouts = {
        engine.describe(tried_layout): tried_layout for tried_layout in engine.layouts() or ()
    }
    found = pd.DataFrame(recorded["rows"])
    tried = [layouts[layout] for layout in found["layout"]]
    predicted = predict(engine.plans(tried), constants_of(environment))
    found["said_fastest_step_s"] = predicted.step_time_s
    found["said_peak_memory_bytes"] = predicted.peak_memory_bytes
    return found


def test_it_is_the_measured_order(rows):
    assert len(rows) >= 60
    for name, least in LEAST.items():
        assert rows[name].rank().corr(rows[f"said_{name}"].rank()) > least, name


def test_the_predicted_best_is_nearly_the_best(rows):
    best = rows["said_fastest_step_s"].idxmin()
    assert rows["fastest_step_s"][best] < 1.05 * rows["fastest_step_s"].min()


def test_levels_are_right_in_the_median(rows):
    for name in LEAST:
        ratio = float(np.median(rows[name] / rows[f"said_{name}"]))
        assert ratio == pytest.approx(1, abs=0.1), name
