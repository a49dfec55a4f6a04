"""Layouts that others trained with have a place in the lattice that `plan` ranks.

Sources: NVIDIA's performance tables of Megatron-Bridge and NeMo, and DeepSeek-AI (arXiv:2412.19437
and arXiv:2401.02954).
"""

from functools import cache

import numpy as np
import pytest

from autotune.app.planning import open_outlook
from autotune.engines.megatron.knobs import KNOBS, code_of
from autotune.engines.megatron.layouts import Layouts
from autotune.planning.outlook import FleetWishes
from autotune.space.knobs import parse_settings
from tests.cases import data_beside

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
