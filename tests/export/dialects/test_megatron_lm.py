"""Layouts as flags of Megatron-LM."""

import pytest

from autotune.export.dialects.megatron_lm import arguments
from tests.jobs import tiny_job

PLAIN = {
    **{name: 1 for name in ("tp", "pp", "vp", "cp", "ep", "micro_batch", "dp", "grad_accum")},
    **{name: 0 for name in ("ends_as_layers", "sequence_parallel", "distributed_optimizer")},
    **{"recompute": 0, "recompute_layers": 0},
}


def flags(folder, precision="bf16", **changes):
    job = tiny_job(folder, precision=precision)
    return {words[0]: words[1:] for words in arguments({**PLAIN, **changes}, job)}


def test_what_is_at_its_default_has_no_flag(tmp_path):
    found = flags(tmp_path)
    assert set(found) == {
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--context-parallel-size",
        "--expert-model-parallel-size",
        "--micro-batch-size",
        "--global-batch-size",
        "--seq-length",
        "--overlap-grad-reduce",
        "--bf16",
    }
    assert found["--global-batch-size"] == ["8"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vp": 4}, {"--num-virtual-stages-per-pipeline-rank": ["4"]}),
        ({"ends_as_layers": 1}, {"--account-for-loss-in-pipeline-split": []}),
        ({"sequence_parallel": 1}, {"--sequence-parallel": []}),
        ({"distributed_optimizer": 1}, {"--use-distributed-optimizer": []}),
        ({"distributed_optimizer": 1}, {"--overlap-param-gather": []}),
        ({"recompute": 1}, {"--recompute-granularity": ["selective"]}),
        ({"recompute": 2}, {"--recompute-method": ["uniform"]}),
        ({"recompute": 2}, {"--recompute-num-layers": ["1"]}),
        ({"recompute": 2, "recompute_layers": 3}, {"--recompute-method": ["block"]}),
        ({"recompute": 2, "recompute_layers": 3}, {"--recompute-num-layers": ["3"]}),
        ({"precision": "fp16"}, {"--fp16": []}),
    ],
)
def test_a_choice_has_its_flag(tmp_path, changes, expected):
    assert expected.items() <= flags(tmp_path, **changes).items()


def test_fp32_is_what_megatron_trains_in_by_itself(tmp_path):
    assert not {"--bf16", "--fp16"} & set(flags(tmp_path, precision="fp32"))
