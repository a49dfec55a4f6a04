"""Rules of launches: each breaks on a line of its own, and a checkout refuses it, too."""

import os
from pathlib import Path

import pytest

from autotune.engines.megatron.flags import newest_release, release_of
from autotune.engines.megatron.launch_rules import (
    ARGUMENT_RULES,
    changed,
    judge_launch,
    nearest_legal,
)
from autotune.engines.megatron.launched import launch_of_line, launches_of
from tests.megatron_parser import REFUSED, validated

WORLD = 16
LEGAL = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 64 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255 --train-iters 2 --lr 1e-4"
)
BROKEN = {
    "precision.one": "--fp16 --bf16",
    "overlap.needs_sharding": "--overlap-param-gather --overlap-grad-reduce",
    "overlap.gather_needs_reduce": "--overlap-param-gather --use-distributed-optimizer",
    "overlap.with_optimizer_step": "--overlap-param-gather-with-optimizer-step "
    "--use-distributed-optimizer --num-virtual-stages-per-pipeline-rank 2 "
    "--pipeline-model-parallel-size 2",
    "overlap.tp_needs_sequence_parallel": "--tp-comm-overlap --tensor-model-parallel-size 2",
    "sequence_parallel.tp": "--sequence-parallel",
    "recompute.full_method": "--recompute-granularity full",
    "recompute.selective_method": "--recompute-granularity selective --recompute-method block",
    "recompute.saved_by_sequence": "--distribute-saved-activations --sequence-parallel "
    "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1",
    "vp.one_way": "--num-layers-per-virtual-pipeline-stage 2 "
    "--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-size 2",
    "optimizer_offload.precision_aware": "--optimizer-cpu-offload",
    "experts.none": "--expert-model-parallel-size 2",
    "fsdp.pipeline": "--use-torch-fsdp2 --pipeline-model-parallel-size 2 "
    "--untie-embeddings-and-output-weights --no-gradient-accumulation-fusion",
    "fsdp.optimizer": "--use-torch-fsdp2 --use-distributed-optimizer "
    "--untie-embeddings-and-output-weights --no-gradient-accumulation-fusion",
    "tp.heads": "--tensor-model-parallel-size 16",
    "world.product": "--pipeline-model-parallel-size 3",
    "batch.product": "--micro-batch-size 3",
    "pp.split": "--pipeline-model-parallel-size 16",
    "cp.sequence": "--context-parallel-size 16 --seq-length 80",
    "vp.micro_batches": "--pipeline-model-parallel-size 4 --micro-batch-size 4 "
    "--num-virtual-stages-per-pipeline-rank 2 --global-batch-size 32",
}
AT_RUN_TIME = {"vp.micro_batches", "batch.product"}
"""Rules of what starts after the checks of arguments: the schedule, the count of micro-batches."""


def launch(flags, release=None):
    line = f"torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py {LEGAL} {flags}"
    return launch_of_line(line, release=release or newest_release())


def test_every_rule_of_arguments_has_a_line_that_breaks_it():
    missing = {rule.name for rule in ARGUMENT_RULES} - set(BROKEN)
    assert missing == {"batch.micro"}


def test_the_line_that_all_start_from_is_legal():
    assert judge_launch(launch("")) == []


@pytest.mark.parametrize(("rule", "flags"), BROKEN.items())
def test_a_rule_breaks_and_its_change_mends_it(rule, flags):
    broken = launch(flags)
    found = {each.rule: each for each in judge_launch(broken)}
    assert rule in found
    mended = broken
    for _ in range(9):
        changes = next((one.changes for one in judge_launch(mended) if one.changes), None)
        if changes is None:
            break
        mended = changed(mended, changes)
    assert judge_launch(mended) == []


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout")
def test_a_checkout_refuses_what_the_rules_refuse():
    checkout = Path(os.environ["MEGATRON_PATH"])
    release = release_of(checkout)
    lines = {
        rule: f"{LEGAL} {flags}".split()
        for rule, flags in BROKEN.items()
        if rule not in AT_RUN_TIME and not launch(flags, release).problems
    }
    answers = validated(checkout, list(lines.values()), world=WORLD)
    for rule, answer in zip(lines, answers, strict=True):
        raised = {each.rule for each in judge_launch(launch(BROKEN[rule], release))}
        if rule == "sequence_parallel.tp":
            assert answer["sequence_parallel"] is False, "it is turned off"
        else:
            assert raised
            assert REFUSED in answer, rule


def test_what_only_the_shell_knows_is_not_judged():
    found = launch_of_line(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers $LAYERS "
        "--tensor-model-parallel-size 8 --num-attention-heads 4 $MORE",
        release="0.16",
    )
    assert found.unknown == {"num_layers"}
    assert found.is_partial
    assert {each.rule for each in judge_launch(found)} == {"tp.heads"}


def test_the_nearest_change_is_the_smallest():
    assert nearest_legal(launch("--tensor-model-parallel-size 6")) == {
        "tensor_model_parallel_size": 8
    }


def test_older_releases_share_no_head_among_ranks():
    grouped = "--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4"
    assert judge_launch(launch(grouped, "0.16")) == []
    assert [each.rule for each in judge_launch(launch(grouped, "0.15"))] == ["tp.kv_heads"]


def test_a_yaml_of_megatrons_is_read():
    text = (
        "language_model:\n  num_layers: 8\n  num_attention_heads: 8\n"
        "model_parallel:\n  tensor_model_parallel_size: 3\n  sequence_parallel: true\n"
        "micro_batch_size: 1\nbf16: true\n"
    )
    (found,) = launches_of(text, Path("gpt_config.yaml"), release="0.16")
    assert {each.rule for each in judge_launch(found)} == {"tp.heads", "tp.kv_heads"}
    assert launches_of("model: x\n", Path("other.yaml"), release="0.16") == []
