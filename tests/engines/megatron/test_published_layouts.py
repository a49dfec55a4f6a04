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

_FP8 = "fp8=e4m3 fp8_recipe=blockwise"
_MXFP8 = "fp8=e4m3 fp8_recipe=mxfp8"
_FLEX = "dispatcher=deepep etp=1"
JOBS = {
    "deepseek-v3 on 1,024 H100": ("deepseek-v3", "H100", 1024, 8192),
    "deepseek-v3 on 2,048 H800": ("deepseek-v3", "H800", 2048, 15360),
    "deepseek-v3 on 256 GB300": ("deepseek-v3", "GB300", 256, 4096),
    "deepseek-v3 on 256 B200": ("deepseek-v3", "B200", 256, 2048),
    "qwen3-235b on 256 H100": ("qwen3-235b-a22b", "H100", 256, 2048),
    "qwen3-235b on 256 GB300": ("qwen3-235b-a22b", "GB300", 256, 8192),
    "qwen3-30b on 16 H100": ("qwen3-30b-a3b", "H100", 16, 1024),
    "gpt-oss on 64 H100": ("gpt-oss-120b", "H100", 64, 1280),
    "deepseek-67b on A100": ("deepseek-67b", "A100", 16, 128),
}
"""Job -> model, accelerator, ranks and samples of a step, of 4,096 tokens each."""
LAYOUTS = [
    (
        "deepseek-v3 on 1,024 H100",
        f"tp=2 pp=8 vp=4 ep=64 stages=balanced recompute_modules=mla_up_proj+mlp {_FP8} {_FLEX}",
    ),
    ("deepseek-v3 on 1,024 H100", "tp=2 pp=16 vp=1 ep=64 stages=balanced micro_batch=1 etp=1"),
    ("deepseek-v3 on 2,048 H800", f"tp=1 pp=16 vp=1 ep=64 stages=balanced {_FP8}"),
    ("deepseek-v3 on 256 GB300", f"pp=2 vp=8 ep=32 micro_batch=1 {_MXFP8} dispatcher=hybridep"),
    ("deepseek-v3 on 256 GB300", f"pp=2 vp=8 ep=32 micro_batch=2 {_MXFP8}"),
    ("deepseek-v3 on 256 B200", f"pp=16 ep=8 recompute_modules=mla_up_proj {_MXFP8}"),
    ("qwen3-235b on 256 H100", f"tp=2 pp=8 vp=4 ep=32 stages=balanced {_FP8} {_FLEX}"),
    ("qwen3-235b on 256 GB300", f"pp=4 vp=12 ends_as_layers=true ep=32 micro_batch=2 {_MXFP8}"),
    (
        "qwen3-30b on 16 H100",
        "pp=1 ep=16 micro_batch=1 dispatcher=deepep overlap_experts=true delay_weight_grads=true",
    ),
    ("qwen3-30b on 16 H100", "pp=2 vp=24 ep=8 micro_batch=2"),
    ("gpt-oss on 64 H100", "pp=4 ep=8 micro_batch=1 recompute_modules=layernorm+moe_act"),
    ("deepseek-67b on A100", "tp=2 pp=2 micro_batch=8 stages=balanced"),
]


@cache
def lattice_of(name: str) -> Layouts:
    model, gpu, world, global_batch = JOBS[name]
    keys = {"model": model, "seq_len": 4096, "world": world, "global_batch": global_batch}
    found = open_outlook(
        None, {**keys, "engine": "megatron"}, FleetWishes(gpu=gpu)
    ).lattice.candidates
    assert isinstance(found, Layouts)
    return found


@pytest.mark.parametrize(("name", "settings"), LAYOUTS)
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
