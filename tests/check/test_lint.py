"""The check as a whole: what is found, what the fix makes of it, what is not known."""

import json

import pytest

from autotune.app.check import CheckFlags, check_config
from autotune.engines.deepspeed.sources.consumers import Consumer
from tests.check.files import all_chosen, checked, messages, rules, write

ZERO = {"stage": 2, "overlap_com": True, "stage3_max_live_parameters": 1000}
BROKEN = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "train_batch_size": 32,
    "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 10}},
    "zero_optimization": ZERO,
    "wandb": {"enabled": False},
}


def test_everything_that_is_wrong_is_found_and_mended(tmp_path):
    path = write(tmp_path, BROKEN)
    report = checked(path, world=8)
    assert sorted(rules(report)) == [
        "batch.product",
        "schema.unknown_key",
        "version.removed_optimizer",
        "zero.inert_key",
    ]
    assert report.exit_code(fixed=False) == 2
    assert report.exit_code(fixed=True) == 2, "another optimizer is the user's to choose"
    after = json.loads(report.fixed_text)
    assert after["gradient_accumulation_steps"] == 1
    assert after["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": True,
        "stage3_max_live_parameters": 1000,
    }
    assert after["optimizer"] == BROKEN["optimizer"]
    report = all_chosen(path, world=8)
    assert report.exit_code(fixed=True) == 0
    assert report.left == ()
    after = json.loads(report.fixed_text)
    assert list(after) == list(BROKEN)
    assert after["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert after["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-3}}
    again = checked(write(tmp_path, report.fixed_text, "again.json"), world=8)
    assert rules(again) == []


PIPELINE = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "train_batch_size": 16,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def test_an_exported_pipeline_is_judged_in_its_layout(tmp_path):
    path = write(tmp_path, PIPELINE)
    assert rules(checked(path, world=8)) == ["batch.product"]
    (tmp_path / "settings.json").write_text('{"pp": 2, "tp": 2, "transformer": {}}')
    report = checked(path)
    assert (report.world, rules(report)) == (8, ["pipeline.stage"])
    for others in (
        '{"pp": 2, "tp": 2}',
        "[]",
        "no JSON",
        '{"pp": "2", "tp": 2, "transformer": 0}',
    ):
        (tmp_path / "settings.json").write_text(others)
        assert rules(checked(path, world=8)) == ["batch.product"]
    (tmp_path / "settings.json").unlink()
    (tmp_path / "settings.json").symlink_to("/dev/zero")  # which has no end
    assert rules(checked(path, world=8)) == ["batch.product"]


def test_exported_split_sequences_are_judged_as_the_scripts(tmp_path):
    sequences = PIPELINE | {"zero_optimization": {"stage": 1}, "sequence_parallel_size": 2}
    path = write(tmp_path, sequences)
    assert rules(checked(path, world=4)) != []
    (tmp_path / "settings.json").write_text('{"pp": 1, "tp": 1, "sp": 2}')
    report = checked(path)
    assert (report.world, rules(report)) == (4, [])
    (tmp_path / "settings.json").write_text('{"pp": 1, "tp": 1, "sp": 4}')
    report = all_chosen(path, world=8)
    assert "sequence.degree" in rules(report)
    assert '"sequence_parallel_size": 4' in report.fixed_text


def test_the_diff_is_one_that_patch_takes(tmp_path):
    report = checked(write(tmp_path, '{"zero_optimization": {"stage": 2, "overlap_com": true},\n'
                                     '"train_micro_batch_size_per_gpu": 1}'))  # fmt: skip
    name = report.source.path
    assert report.diff.splitlines() == [
        f"--- {name}",
        f"+++ {name}",
        "@@ -1,2 +1,2 @@",
        '-{"zero_optimization": {"stage": 2, "overlap_com": true},',
        '+{"zero_optimization": {"stage": 2, "overlap_comm": true},',
        ' "train_micro_batch_size_per_gpu": 1}',
        "\\ No newline at end of file",
    ]


def test_the_diff_hides_secrets_and_the_fix_keeps_them(tmp_path):
    text = (
        '{"comt": {"api_key": "s3cret"},\n "zero_optimization": {"stage": 2, "overlap_com": true}}'
    )
    report = checked(write(tmp_path, text))
    assert "s3cret" not in report.diff + json.dumps(report.to_dict(fixed=False))
    assert '"api_key": "***"' in report.diff
    assert report.fixed_text is not None
    assert '"api_key": "s3cret"' in report.fixed_text


def test_sizes_that_fit_no_world_are_said_and_no_world_is_made_up(tmp_path):
    sizes = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
    }
    report = checked(write(tmp_path, sizes))
    assert (report.world, rules(report)) == (None, ["batch.product"])
    (found,) = report.found
    assert "64 is no multiple of" in found.violation.message
    assert not found.violation.changes
    assert not found.violation.choices
    there = checked(write(tmp_path, sizes), world=8)
    assert rules(there) == ["batch.product"]
    assert there.found[0].violation.choices
    elastic = {"elasticity": {"enabled": True, "ignore_non_elastic_batch_info": True}}
    before = checked(write(tmp_path, sizes | elastic), version="0.17.6")
    assert "batch.product" not in rules(before)


def test_one_value_that_nobody_can_read_does_not_hide_the_rest(tmp_path):
    config = BROKEN | {"gradient_clipping": "much"}
    report = checked(write(tmp_path, config), world=8)
    assert {"schema.top_level_value", "version.removed_optimizer"} <= set(rules(report))
    assert report.exit_code(fixed=True) == 2
    assert "schema.top_level_value" in [violation.rule for violation in report.left]


def test_a_byte_order_mark_is_read_past_and_kept(tmp_path):
    text = '\ufeff{"train_batch_size": 1, "gradient_cliping": 1.0}'
    report = checked(write(tmp_path, text))
    assert rules(report) == ["schema.unknown_top_level_key"]
    assert report.fixed_text == text.replace("cliping", "clipping")
    twice = checked(write(tmp_path, text.replace("train_batch_size", "gradient_cliping")))
    assert "file.key_twice" in rules(twice)


@pytest.mark.parametrize(
    ("consumer", "section", "consequence"),
    [
        (Consumer.DEEPSPEED, "", "raised"),
        (Consumer.TRAINER, "", "ignored"),
        (Consumer.ACCELERATE, "", "ignored"),
        (Consumer.DEEPSPEED, "deepspeed", "ignored"),
    ],
)
def test_who_reads_the_file_decides_what_becomes_of_a_key_twice(
    tmp_path, consumer, section, consequence
):
    """DeepSpeed refuses it in a file that it reads itself; the others take the last one."""
    text = '{"train_batch_size": 8, "train_batch_size": 16}'
    path = write(tmp_path, f'{{"{section}": {text}}}' if section else text)
    report = checked(path, consumer=consumer)
    (twice,) = [one.violation for one in report.found if one.violation.rule == "file.key_twice"]
    assert twice.consequence == consequence
    assert twice in report.left


@pytest.mark.parametrize("name", ["_comment", "//", "#1", "comment"])
def test_a_remark_is_no_key_that_was_mistaken(tmp_path, name):
    config = {"train_micro_batch_size_per_gpu": 1, name: "https://example.org"}
    assert rules(checked(write(tmp_path, config))) == []
    config["zero_optimization"] = {name: "DeepSpeed raises on it here"}
    assert rules(checked(write(tmp_path, config))) == ["schema.unknown_key"]


@pytest.mark.parametrize(("n", "n_findings"), [(10, 10), (11, 1), (1_000, 1)])
def test_of_many_keys_of_an_application_one_finding_tells(tmp_path, n, n_findings):
    unknown = {f"{'x' * 9}{at}": at for at in range(n)}
    config = {"train_batch_size": 1, "gradient_cliping": 1, **unknown}
    report = checked(write(tmp_path, config))
    told = [found.violation.message for found in report.found]
    assert len(told) == n_findings + 1
    assert f"{'x' * 9}9" in " ".join(told)
    assert (f"{n} keys of the file are none of DeepSpeed's" in " ".join(told)) is (n > 10)
    assert unknown.keys() <= json.loads(report.fixed_text).keys()


def test_the_answer_for_programs(tmp_path):
    answer = checked(write(tmp_path, BROKEN), world=8).to_dict(fixed=False)
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["would_run"], answer["would_run_after_fix"]) == (False, False)
    needed = [one["choose"] for one in answer["to_choose"] if one["is_needed"]]
    assert needed == ["version.removed_optimizer=1"]
    first = answer["findings"][0]
    keys = {
        "rule",
        "level",
        "line",
        "column",
        "message",
        "fix",
        "changes",
        "choices",
        "consequence",
        "after_fix",
        "docs",
    }
    assert set(first) == keys
    assert first["changes"] == {"zero_optimization": {"overlap_com": None, "overlap_comm": True}}


def test_keys_and_values_that_only_yaml_has_are_printed_for_programs(tmp_path):
    text = """\
deepspeed:
  train_batch_size: 2
  2020-01-01: 3
  prescale_gradient: 2020-01-01
  memory_breakdown: !!set {a}
  optimizer: {type: Adam, params: {torch_adam: true, lr: 2020-01-01}}
  zero_optimization: {stage: 2, overlap_com: true, 3: 4, null: 5}
"""
    report = checked(write(tmp_path, text, "train.yaml"))
    told = json.loads(json.dumps(report.to_dict(fixed=False)))
    assert {"2020-01-01": None} in [
        choice["changes"] for one in told["findings"] for choice in one["choices"]
    ]
    assert "+  zero_optimization: {stage: 2, overlap_comm: true, 3: 4, null: 5}" in report.diff


def test_numbers_too_large_for_a_float_are_refused_with_the_others(tmp_path):
    adam = {"type": "Adam", "params": {"torch_adam": True, "betas": [10**400, 1]}}
    report = checked(write(tmp_path, {"train_batch_size": 2, "optimizer": adam}))
    (message,) = messages(report, "optimizer.param_value").splitlines()
    assert len(message) < 300


@pytest.mark.parametrize("value", ["all", [0, 1], [2, 7]])
def test_what_the_autotuner_tries_is_a_note(tmp_path, value):
    config = {
        "train_micro_batch_size_per_gpu": [1, 2],
        "autotuning": {"enabled": True, "fast": False},
        "zero_optimization": {"stage": value},
    }
    report = checked(write(tmp_path, config))
    levels = [one.violation.level for one in report.found]
    assert levels == ["error" if value == [2, 7] else "note", "note"]
    report = checked(write(tmp_path, config | {"autotuning": {"enabled": False}}))
    assert [one.violation.level for one in report.found][:2] == ["error", "error"]


def test_a_section_that_moves_keeps_the_values_that_its_consumer_fills_in():
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    config = {"train_batch_size": "auto", "bf16": {"enabled": "auto", "zero_optimization": zero}}
    run = check_config(config, CheckFlags(consumer="trainer", accelerator="cpu"))
    after = json.loads(str(run.reports[0].fixed_text))
    assert (after["zero_optimization"], after["bf16"]) == (zero, {"enabled": "auto"})
