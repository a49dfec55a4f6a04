"""The order of layouts that two CPU ranks trained, and places of published ones, are predicted."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autotune.app.planning import open_outlook
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import KNOBS, code_of
from autotune.engines.megatron.layouts import Layouts
from autotune.job.job import make_job
from autotune.planning.outlook import FleetWishes
from autotune.space.knobs import parse_settings
from tests.cases import data_beside
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


DATA = data_beside(__file__)
JOBS = DATA["JOBS"]


@cache
def lattice_of(name: str) -> Layouts:
    model, gpu, world, global_batch = JOBS[name]
    keys = {"model": model, "seq_len": 4096, "world": world, "global_batch": global_batch}
    found = open_outlook(
        None, {**keys, "engine": "megatron"}, FleetWishes(gpu=gpu)
    ).lattice.candidates
    assert isinstance(found, Layouts)
    return found


@pytest.mark.cases("name", "settings")
def test_a_published_layout_has_a_place(name: str, settings: str) -> None:
    columns = lattice_of(name).columns
    keep = np.ones(len(columns["tp"]), dtype=np.bool_)
    for knob, value in parse_settings(settings.split(), KNOBS).items():
        code = code_of(KNOBS[knob], value) if KNOBS[knob].kind == "choice" else int(value)
        keep &= columns[knob] == code
        assert keep.any(), f"{knob}={value}"


def test_lattices_are_small_enough_to_rank_in_seconds() -> None:
    sizes = {name: len(lattice_of(name)) for name in JOBS}
    assert max(sizes.values()) < 400_000, sizes
