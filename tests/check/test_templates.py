"""Files that are filled in, completed or read by somebody else before DeepSpeed sees them."""

import pytest

from tests.check.files import checked, messages, rules, write

ACCELERATE = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\nnum_processes: 8\n"
NEOX = (
    "pipe_parallel_size: 1\nnorm: layernorm\npos_emb: rotary\ntrain_micro_batch_size_per_gpu: 4\n"
)


def test_placeholders_are_not_judged_and_the_rest_is_checked(tmp_path):
    config = {
        "train_batch_size": "${BATCH}",
        "gradient_accumulation_steps": "{{ accumulation }}",
        "zero_optimization": {"stage": "<STAGE>", "overlap_com": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "$LR"}},
        "tensorboard": {"enabled": False, "output_path": "${OUT}"},
    }
    report = checked(write(tmp_path, config))
    open_keys = {one.what for one in report.not_judged}
    assert {"train_batch_size", "zero_optimization.stage"} <= open_keys
    assert "tensorboard.output_path" not in open_keys
    assert "schema.unknown_key" in rules(report)
    assert report.would_run(fixed=True) is None


def test_a_key_twice_in_yaml_is_as_its_reader_takes_it(tmp_path):
    path = write(tmp_path, ACCELERATE.replace("2\n", "2\n  zero_stage: 3\n"), "a.yaml")
    report = checked(path)
    assert report.passes
    assert rules(report) == ["file.key_twice"]
    assert "zero_stage (line 4)" in messages(report, "file.key_twice")
    assert report.source.config["zero_optimization"]["stage"] == 3
    factory = "finetuning_type: lora\ncutoff_len: 8\ndeepspeed: {zero_optimization: {stage: 2}}\n"
    report = checked(write(tmp_path, f"{factory}cutoff_len: 9\n", "b.yaml"))
    assert "LLaMA-Factory refuses" in messages(report, "file.key_twice")
    assert not report.passes


def test_a_field_of_accelerates_among_trainers_arguments_is_told(tmp_path):
    text = "output_dir: out\nzero_stage: 3\ndeepspeed: {zero_optimization: {stage: 2}}\n"
    report = checked(write(tmp_path, text, "a.yaml"))
    assert "zero_stage beside deepspeed" in messages(report, "huggingface.accelerates_field")


def test_trainer_refuses_two_precisions_before_deepspeed_is_asked(tmp_path):
    text = "output_dir: out\n{}deepspeed: {{zero_optimization: {{stage: 2}}}}\n"
    both = checked(write(tmp_path, text.format("fp16: true\nbf16: true\n"), "a.yaml"))
    assert rules(both) == ["batch.no_size", "huggingface.two_precisions"]
    one = checked(write(tmp_path, text.format("fp16: false\nbf16: true\n"), "b.yaml"))
    assert "huggingface.two_precisions" not in rules(one)


def test_neox_drops_what_its_sections_of_precision_do_not_know(tmp_path):
    report = checked(write(tmp_path, f"{NEOX}fp16: {{fp16: true, enabled: true}}\n", "a.yml"))
    assert report.passes
    assert rules(report) == ["schema.unknown_key"]
    assert "GPT-NeoX installs drops it" in messages(report, "schema.unknown_key")


@pytest.mark.parametrize(
    ("module", "is_filled"), [("lightning.pytorch.strategies", True), ("accelerate.utils", False)]
)
def test_lightning_fills_in_what_the_file_of_a_script_lacks(tmp_path, module, is_filled):
    script = f"from {module} import DeepSpeedPlugin as Other, DeepSpeedPlugin\nDeepSpeedPlugin()\n"
    write(tmp_path, script, "train.py")
    path = write(tmp_path, {"zero_optimization": {"stage": 2}})
    assert "batch.no_size" in rules(checked(path))
    launched = checked(path, launch=f"python train.py --config {path.name}")
    assert ("batch.no_size" not in rules(launched)) is is_filled
    assert (launched.source.reader == "Lightning") is is_filled


def test_a_diff_masks_a_secret_beside_the_change_of_a_long_file(tmp_path):
    lines = [f' "own_{n}": {n},' for n in range(1000)]
    lines[500] = ' "wall_clock_breakdown": 1,\n "api_key": "0a1b2c3d4e5f60718293",'
    text = "{\n" + "\n".join(lines) + '\n "zero_optimization": {"stage": 2}\n}\n'
    diff = checked(write(tmp_path, text)).diff
    assert '+ "wall_clock_breakdown": true,' in diff
    assert "@@ -499," in diff
    assert "0a1b2c3d" not in diff
    assert '"api_key": ' in diff


def test_who_fills_a_template_in_may_write_plain_json(tmp_path):
    """Words of others make it Hjson, and a program of its own makes its own optimizer."""
    text = '{\n"train_batch_size": GLOBAL_BATCH,\n"gradient_accumulation_steps": "auto"\n}'
    assert "file.hjson" not in rules(checked(write(tmp_path, text, "ds_config_TEMPLATE.json")))
    commented = '{\n// our sizes\n"train_batch_size": "${SIZE}",\n"fp16": {"enabled": "auto"}\n}'
    assert "file.hjson" in rules(checked(write(tmp_path, commented, "ds_config.json")))
    section = "deepspeed: {train_batch_size: 8, optimizer: {type: sat.ops.FusedEmaAdam}}"
    report = checked(write(tmp_path, f"model: {{}}\n{section}\n", "sft.yaml"))
    (found,) = [one for one in report.found if one.violation.rule == "optimizer.unknown_type"]
    assert found.violation.consequence == "may_raise"
