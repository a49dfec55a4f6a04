"""What Trainer and accelerate fill in, refuse and overwrite before DeepSpeed reads anything."""

import pytest

from autotune.base.nested import merge
from autotune.check.consumers import Consumer
from tests.check.files import AUTO, all_chosen, checked, messages, rules, write


def trained(tmp_path, config, arguments="", world=2, **how):
    line = f"torchrun --nproc_per_node {world} train.py --deepspeed ds_config.json {arguments}"
    return checked(write(tmp_path, config), launch=line, **how)


def test_auto_that_trainer_fills_in_is_nothing_to_find(tmp_path):
    report = checked(write(tmp_path, AUTO))
    assert rules(report) == []
    assert report.source.consumer == Consumer.TRAINER
    assert '"auto" at train_batch_size' in report.source.because
    assert "zero_optimization.reduce_bucket_size" in report.unknown


def test_the_same_file_does_not_run_without_trainer(tmp_path):
    report = checked(write(tmp_path, AUTO), consumer=Consumer.DEEPSPEED)
    assert "schema.auto_unresolved" in rules(report)
    assert report.exit_code(fixed=False) == 2


def test_auto_under_zero_alone_does_not_mean_trainer(tmp_path):
    zero = {"stage": 3, "stage3_max_live_parameters": "auto"}
    report = checked(write(tmp_path, {"train_batch_size": 1, "zero_optimization": zero}), world=1)
    assert report.source.consumer == Consumer.DEEPSPEED
    assert rules(report) == ["schema.auto_dropped"]
    assert report.exit_code(fixed=False) == 0


def test_auto_at_a_key_that_nobody_fills_in_is_refused_and_goes(tmp_path):
    config = merge(AUTO, {"zero_optimization": {"sub_group_size": "auto"}})
    path = write(tmp_path, config)
    assert rules(checked(path)) == ["huggingface.auto_not_filled"]
    assert checked(path).exit_code(fixed=True) == 2, "to remove it is the user's to choose"
    report = all_chosen(path)
    assert report.exit_code(fixed=False) == 2
    assert report.exit_code(fixed=True) == 0
    assert '-    "sub_group_size": "auto"' in report.diff


def test_what_is_filled_in_is_judged(tmp_path):
    """Trainer sets fp16 from its arguments; with bf16 in the file that is two precisions."""
    config = merge(AUTO, {"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}})
    report = trained(tmp_path, config, "--fp16")
    assert "precision.fp16_and_bf16" in rules(report)
    assert rules(trained(tmp_path, config, "--bf16")) == []


def test_what_is_filled_in_is_multiplied(tmp_path):
    arguments = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    assert rules(trained(tmp_path, AUTO, arguments, world=8)) == []
    fixed = merge(AUTO, {"train_batch_size": 60})
    report = trained(tmp_path, fixed, arguments, world=8)
    assert "train_batch_size=60 against" in messages(report, "huggingface.mismatch")
    assert report.exit_code(fixed=True) == 2, "which of the two is meant is the user's to choose"
    launch = f"torchrun --nproc_per_node 8 train.py --deepspeed x {arguments}"
    report = all_chosen(report.source.path, launch=launch)
    assert '+  "train_batch_size": "auto",' in report.diff
    assert report.exit_code(fixed=True) == 0


@pytest.mark.parametrize(
    ("change", "arguments", "named"),
    [
        ({"gradient_clipping": 0.5}, "--max_grad_norm 1.0", "max_grad_norm=1.0"),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}},
            "--learning_rate 2e-5",
            "learning_rate=2e-05",
        ),
        ({"bf16": {"enabled": False}}, "--bf16", "bf16=True"),
        ({"train_micro_batch_size_per_gpu": 1}, "--per_device_train_batch_size 2", "=2"),
    ],
)
def test_values_that_differ_from_the_arguments_become_auto(tmp_path, change, arguments, named):
    report = trained(tmp_path, merge(AUTO, change), arguments)
    assert rules(report) == ["huggingface.mismatch"]
    assert named in messages(report, "huggingface.mismatch")
    assert report.fixed_text is None
    (question,) = report.needed
    assert '"auto"' in question.options[0].words or " auto" in question.options[0].words


@pytest.mark.parametrize(
    "arguments",
    [
        "--warmup_steps $STEPS",
        "--learning_rate $LR --max_grad_norm ${CLIP}",
        "--per_device_train_batch_size $MICRO --gradient_accumulation_steps $ACCUM",
        "--adam_beta1 $B1 --adam_beta2 $B2 --bf16 $BF16",
    ],
)
def test_a_variable_of_the_shell_is_not_known(tmp_path, arguments):
    config = AUTO | {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    }
    report = trained(tmp_path, config, arguments)
    assert rules(report) == []
    assert report.fixed_text is None


def test_a_batch_size_that_trainer_searches_for_is_not_compared(tmp_path):
    config = merge(AUTO, {"train_micro_batch_size_per_gpu": 1})
    arguments = "--per_device_train_batch_size 2 --auto_find_batch_size true"
    assert rules(trained(tmp_path, config, arguments)) == []


def test_a_file_without_a_zero_section_gets_one(tmp_path):
    config = {"train_micro_batch_size_per_gpu": "auto"}
    report = checked(write(tmp_path, config))
    assert rules(report) == ["huggingface.no_zero_section"]
    assert '"zero_optimization": {"stage": 0}' in report.diff
    tuned = {**config, "autotuning": {"enabled": True}}
    assert rules(checked(write(tmp_path, tuned))) == []


def test_what_accelerate_overwrites_is_a_warning(tmp_path):
    report = checked(write(tmp_path, AUTO | {"steps_per_print": 100}))
    assert rules(report) == ["huggingface.overwritten"]
    assert report.exit_code(fixed=False) == 0
    assert rules(checked(write(tmp_path, AUTO | {"steps_per_print": "auto"}))) == []


@pytest.mark.parametrize(
    ("asked", "config", "refused"),
    [
        ("bf16", {"fp16": {"enabled": True}, "bf16": {"enabled": False}}, True),
        ("bf16", {"fp16": {"enabled": False}, "bf16": {"enabled": True}}, False),
        ("fp16", {"bf16": {"enabled": True}}, True),
        ("no", {"bf16": {"enabled": True}}, False),
    ],
)
def test_the_precision_of_accelerate(tmp_path, asked, config, refused):
    path = write(tmp_path, {"zero_optimization": {"stage": 2}} | AUTO | config)
    line = f"accelerate launch --use_deepspeed --mixed_precision {asked} train.py"
    assert any(rule.startswith("huggingface.") for rule in rules(checked(path, launch=line))) == (
        refused
    )
