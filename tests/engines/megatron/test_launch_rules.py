"""Rules of launches: each breaks on a line of its own, and a checkout refuses it, too."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.megatron.argument_rules import ARGUMENT_RULES, CONNECTIONS
from autotune.engines.megatron.choices import DISPATCHERS
from autotune.engines.megatron.flags import release_of
from autotune.engines.megatron.launch_rules import judge_launch, rows_of
from autotune.engines.megatron.launched import launch_of_line, on_gpu
from tests.cases import data_beside
from tests.megatron_parser import REFUSED, validated

DATA = data_beside(__file__)

WORLD = 16
LEGAL = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255 --train-iters 2 --lr 1e-4"
)
# Each breaks the rule of its name, on top of what is legal.
BROKEN = DATA["BROKEN"]
OF_NODES = ("connections", "visible_devices", "ranks", "tasks", "lone_nodes", "idle_devices")
OTHERWISE = {
    *("world.degrees", "batch.stages", "tp.attention", "sequence.shares"),
    "ep.ranks",
    "batch.micro",
    *("batch.ppo_mini", "batch.verl", "rollout.ranks", "sp.padding", "environment.lightning"),
    *("batch.easyr1", "rollout.one_sample", "batch.packing", "batch.logprob", "batch.on_policy"),
    *("batch.rollout", "rollout.one_kl", "rollout.experts", "rollout.pipeline", "rollout.swift"),
    *("batch.swift", "batch.skyrl", "rollout.advantages", "rollout.logprobs", "rollout.weights"),
    *("rollout.critic", "rollout.heads", "sp.heads", "world.experts"),
    *(f"environment.{name}" for name in OF_NODES),
}
"""Rules of what is missing and of the environment: they have other tests."""
AT_RUN_TIME = {
    *("vp.micro_batches", "batch.product", "schedule.warmup", "data.tokenizer", "experts.topk"),
    *("experts.group_capacity", "attention.groups", "optimizer.instances", "fp8.reused_buffer"),
}
"""Rules of what starts after the checks of arguments: schedules, the model, its groups."""


def launch(flags, release=None):
    line = f"torchrun --nproc-per-node 8 --nnodes 2 --node-rank 0 pretrain_gpt.py {LEGAL} {flags}"
    return launch_of_line(line, release=release or "0.16")


@pytest.mark.cases("flags", "release", "dispatcher")
def test_deepep_is_read_from_either_flag(flags, release, dispatcher):
    experts = "--num-experts 8 --disable-bias-linear --bf16 --expert-model-parallel-size 8"
    one = launch(f"{experts} --moe-token-dispatcher-type flex {flags}", release)
    assert rows_of(one).row(0)["dispatcher"] == DISPATCHERS.index(dispatcher)
    assert not [found for found in judge_launch(one) if "dispatcher" in found.rule]


def test_every_rule_of_arguments_has_a_line_that_breaks_it():
    of_lines = {rule for *_, broken in DATA["test_a_line_breaks_these_rules"] for rule in broken}
    missing = {rule.name for rule in ARGUMENT_RULES} - set(BROKEN)
    assert missing - of_lines == OTHERWISE
    assert not [rule.name for rule in ARGUMENT_RULES if "{" in rule.says]


@pytest.mark.parametrize("release", ["0.16", "0.17", "0.18", "0.19", "0.20"])
def test_a_rule_breaks_in_every_release_that_has_its_flags(release):
    """A release may store a flag under another name: 0.17 does with that of gloo's groups."""
    launches = {rule: launch(flags, release) for rule, flags in BROKEN.items()}
    judged = {
        rule: {violation.rule for violation in judge_launch(one)}
        for rule, one in launches.items()
        if not one.problems
    }
    assert [rule for rule, found in judged.items() if rule not in found] == []


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout")
def test_a_checkout_refuses_what_the_rules_refuse():
    checkout = Path(os.environ["MEGATRON_PATH"])
    release = release_of(checkout)
    lines = {
        rule: shlex.split(f"{LEGAL} {flags}")
        for rule, flags in BROKEN.items()
        if rule not in AT_RUN_TIME and not launch(flags, release).problems
    }
    variables = [
        {CONNECTIONS: "8" if "fsdp" in " ".join(flags) else "1"} for flags in lines.values()
    ]
    answers = validated(
        checkout,
        [
            {"words": words, "variables": environment}
            for words, environment in zip(lines.values(), variables, strict=True)
        ],
        world=WORLD,
    )
    for rule, answer in zip(lines, answers, strict=True):
        found = judge_launch(launch(BROKEN[rule], release))
        raised = [violation.rule for violation in found if violation.level == "error"]
        if rule == "sequence_parallel.tp":
            assert answer["sequence_parallel"] is False, "it is turned off"
        else:
            assert (REFUSED in answer) == bool(raised), (rule, answer.get(REFUSED))


_IDENTIFIER = re.compile(r"(?<![\w-])[a-z0-9]+_\w+(?![\w.]*=)")
_OF_VALUES = {
    *("fsdp_dtensor", "torch_dist", "torch_dcp", "aux_loss", "moe_act", "core_attn"),
    *("mla_up_proj", "shared_experts"),
    "learned_absolute",
}
"""Values of flags that look like names."""
CLASHES = DATA["CLASHES"]
"""Lines that break rules of layouts alone, or in some releases."""


@pytest.mark.parametrize(("rule", "flags"), [*BROKEN.items(), *CLASHES.items()])
def test_messages_name_flags_and_nothing_of_ours(rule, flags):
    found = judge_launch(launch(flags))
    assert rule in {violation.rule for violation in found}
    for violation in found:
        names = set(_IDENTIFIER.findall(f"{violation.message}; {violation.fix}"))
        assert not names - _OF_VALUES, violation
        assert "{" not in violation.message + violation.fix
        assert "recompute=" not in violation.fix


@pytest.mark.cases("flags", "release", "broken")
def test_a_line_breaks_these_rules(flags, release, broken):
    found = judge_launch(launch(flags, release))
    assert {violation.rule: violation.level for violation in found} == broken


def test_what_only_the_shell_knows_is_not_judged():
    found = launch_of_line(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers $LAYERS "
        "--tensor-model-parallel-size 8 --num-attention-heads 4 $MORE",
        release="0.16",
    )
    assert found.unknown == {"num_layers"}
    assert found.is_partial
    assert {violation.rule for violation in judge_launch(found)} == {"tp.heads"}


@pytest.mark.cases("flags", "message")
def test_counts_that_nothing_can_be_divided_by_are_all_that_is_said(flags, message):
    (found,) = judge_launch(launch(flags))
    assert found.rule == "sizes.count"
    assert message in found.message


def test_rules_of_what_is_missing_and_of_the_environment():
    def rules(line):
        return {violation.rule for violation in judge_launch(launch_of_line(line, release="0.16"))}

    start = "torchrun --nproc-per-node 8 pretrain_gpt.py "
    assert rules(f"{start} --num-layers 2") >= {"batch.micro"}
    split = "--tensor-model-parallel-size 2"
    assert rules(f"{CONNECTIONS}=8 {start} {LEGAL} {split}") == {"environment.connections"}
    assert rules(f"{CONNECTIONS}=1 {start} {LEGAL} {split}") == set()


def test_fp8_is_refused_where_the_gpu_has_none():
    found = launch("--fp8-format hybrid --bf16")
    (violation,) = judge_launch(replace(found, **on_gpu("A100", where="--gpu")))
    assert violation.rule == "fp8.device"
    assert judge_launch(replace(found, **on_gpu("H100", where="--gpu"))) == []


RECIPE = DATA["RECIPE"]


@pytest.mark.cases("micro_batches", "group", "rule")
def test_micro_batches_of_interleaved_chunks_come_in_groups(micro_batches, group, rule):
    # schedules.py: a group is no smaller than the pipeline, and its last one is none or as large.
    line = (
        "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 16 --hidden-size 64 "
        "--num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --bf16 "
        "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
        f"--micro-batch-size 2 --global-batch-size {2 * micro_batches} --train-iters 5 --lr 1e-4 "
        "--mock-data --tokenizer-type NullTokenizer --vocab-size 100"
    )
    if group is not None:
        line += f" --microbatch-group-size-per-virtual-pipeline-stage {group}"
    found = judge_launch(launch_of_line(line, release="0.16"))
    assert [violation.rule for violation in found] == ([] if rule is None else [rule])


@pytest.mark.cases("recipe", "words", "broken")
def test_a_recipe_is_judged_where_the_line_decides(recipe, words, broken):
    found = judge_launch(launch_of_line(f"{DATA[recipe]} {words}", release="0.16"))
    assert [violation.rule for violation in found] == broken


def test_what_only_megatrons_own_parser_refuses_is_a_warning_in_a_recipe():
    overlap = "overlap_param_gather=true ddp.overlap_grad_reduce=false"
    line = f"{RECIPE.replace('size=3', 'size=4')} ddp.use_distributed_optimizer=true ddp.{overlap}"
    (found,) = judge_launch(launch_of_line(line, release="0.16"))
    assert (found.rule, found.level) == ("overlap.gather_needs_reduce", "warning")


def test_overrides_of_a_recipe_are_judged_as_far_as_they_say():
    found = launch_of_line(RECIPE, release="0.16")
    assert (found.world, found.is_partial, found.unknown) == (8, True, {"micro_batch_size"})
    clean = launch_of_line(RECIPE.replace("size=3", "size=4"), release="0.16")
    assert judge_launch(clean) == []
    nemo = (
        "python megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=2 "
        "model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=3 "
        "model.context_parallel_size=1 ++model.sequence_parallel=true"
    )
    (violation,) = judge_launch(launch_of_line(nemo, release="0.16"))
    assert violation.rule == "world.product"
    assert "model.pipeline_model_parallel_size 3" in violation.message


@pytest.mark.cases("flags", "rule", "message", "fix")
def test_a_finding_is_told_in_flags(flags, rule, message, fix):
    """Its message begins so, and its fix has this in it."""
    (found,) = (one for one in judge_launch(launch(flags)) if one.rule == rule)
    assert found.message.startswith(message)
    assert fix in found.fix


def test_a_clash_is_told_where_another_of_its_arguments_is_not_known():
    one = replace(launch(BROKEN["graphs.one_way"]), unknown=frozenset({"external_cuda_graph"}))
    assert "graphs.one_way" in {found.rule for found in judge_launch(one)}
