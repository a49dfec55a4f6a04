"""Launch scripts as people write them: what `check` says, held against Megatron's own checks.

bash runs each script with programs that only tell what they were started with; a checkout that
MEGATRON_PATH names is then asked about these words.
"""

import os
from pathlib import Path

import pytest

from autotune.engines.megatron.flags import release_of
from autotune.engines.megatron.launch_rules import judge_launch
from autotune.engines.megatron.launched import MegatronLaunch, read_launches
from tests.bash_launch import started_by
from tests.megatron_parser import REFUSED, validated

SCRIPTS = Path(__file__).with_name("megatron_launches")
FOUND = {
    "bf16_and_fp16": (8, {"precision.one", "overlap.gather_needs_reduce"}),
    "deepseek_style": (64, {"recompute_modules.fp8", "experts.router_bias"}),
    "dense_with_experts": (8, {"experts.none"}),
    "fsdp": (8, {"checkpoint.format", "environment.connections"}),
    "interleaved": (
        32,
        {
            *("overlap.needs_sharding", "vp.one_way"),
            *("overlap.tp_needs_sequence_parallel", "batch.product"),
        },
    ),
    "llama3_8b_fp8": (16, {"sequence_parallel.tp"}),
    "long_context": (32, {"cp.sequence"}),
    "mixtral_8x7b": (8, {"ep.ranks", "sequence_parallel.experts"}),
    "moe_shared_tp": (32, {"overlap_shared_experts.dispatcher"}),
    "no_connections": (8, set()),
    "offload": (8, {"optimizer.precision_aware"}),
    "passes_on": (8, {"tp.heads"}),
    "recompute": (4, {"recompute.selective_method", "recompute.distributed"}),
    "slurm_70b": (64, set()),
    "slurm_direct": (32, {"world.product"}),
    "vp_without_pp": (8, {"sequence.positions", "vp.pipeline"}),
}
"""Script -> its ranks, and the rules that it breaks in Megatron Core 0.16."""
LEGAL = {"slurm_70b", "no_connections", "llama3_8b_fp8"}
"""Scripts that train, if CUDA_DEVICE_MAX_CONNECTIONS is set where one leaves it out."""


def launch_in(name: str, release: str = "0.16") -> MegatronLaunch:
    (found,) = read_launches(SCRIPTS / f"{name}.sh", release=release)
    return found


@pytest.mark.parametrize("name", FOUND)
def test_a_script_is_read_and_judged(name):
    launch = launch_in(name)
    assert (launch.world, {each.rule for each in judge_launch(launch)}) == FOUND[name]


def test_every_script_is_judged():
    assert {path.stem for path in SCRIPTS.iterdir()} == FOUND.keys()


def test_bash_gives_the_training_the_words_that_are_read(tmp_path):
    for name in FOUND:
        words = started_by(SCRIPTS / f"{name}.sh", tmp_path).words
        named = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert named == {each.flag for each in launch_in(name).given.values()} | {
            word for word in named if word.lstrip("-").replace("-", "_") in launch_in(name).unknown
        }, name


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout")
def test_a_checkout_refuses_the_same_scripts(tmp_path):
    checkout = Path(os.environ["MEGATRON_PATH"])
    release = release_of(checkout)
    lines = []
    for name, (world, _) in FOUND.items():
        started = started_by(SCRIPTS / f"{name}.sh", tmp_path)
        kept = ("CUDA_", "NVTE_", "NCCL_")
        variables = {k: v for k, v in started.variables.items() if k.startswith(kept)}
        variables.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        lines.append({"words": started.words, "variables": variables, "world": world})
    answers = validated(checkout, lines, world=8)
    for name, answer in zip(FOUND, answers, strict=True):
        errors = [e for e in judge_launch(launch_in(name, release)) if e.level == "error"]
        assert (REFUSED in answer) == bool(errors) == (name not in LEGAL), (name, answer, errors)
