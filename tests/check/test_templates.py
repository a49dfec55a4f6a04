"""Files that are filled in, completed or read by somebody else before DeepSpeed sees them."""

import pytest

from autotune.base.errors import RenderError
from autotune.check import read_sources
from tests.check.files import checked, messages, rules, write

ACCELERATE = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\nnum_processes: 8\n"
NEOX = (
    "pipe_parallel_size: 1\nnorm: layernorm\npos_emb: rotary\ntrain_micro_batch_size_per_gpu: 4\n"
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"train_batch_size": {{ batch }}}', "{{ batch }}"),
        ('{"train_batch_size": ${BATCH}, "fp16": {"enabled": true}}', "${BATCH}"),
        ('{"zero_optimization": {"stage": <stage>}}', "<stage>"),
        ('{"zero_optimization": {"stage": ZERO_STAGE}}', "ZERO_STAGE"),
        ('{"train_batch_size": 8, {% if fp16 %}"fp16": {}{% endif %}}', "{% if fp16 %}"),
    ],
)
def test_a_template_is_said_to_be_one(tmp_path, text, what):
    with pytest.raises(RenderError, match="is a template") as said:
        read_sources(write(tmp_path, text))
    assert what in str(said.value)


def test_a_word_that_hjson_reads_as_text_is_a_placeholder(tmp_path):
    text = '{"train_batch_size": CONFIG_BATCH_SIZE,\n "bf16": {"enabled": true}}'
    assert rules(checked(write(tmp_path, text))) == ["file.template"]


def test_a_yaml_template_is_said_to_be_one_and_its_words_are_no_placeholders(tmp_path):
    text = f"compute_environment: LOCAL_MACHINE\n{ACCELERATE}debug: {{{{ debug }}}}\n"
    with pytest.raises(RenderError, match=r":6: is a template: \{\{ debug \}\}"):
        read_sources(write(tmp_path, text, "a.yaml"))


def test_placeholders_are_one_finding_and_the_rest_is_checked(tmp_path):
    config = {
        "train_batch_size": "${BATCH}",
        "gradient_accumulation_steps": "{{ accumulation }}",
        "zero_optimization": {"stage": "<STAGE>", "overlap_com": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "$LR"}},
        "tensorboard": {"enabled": False, "output_path": "${OUT}"},
    }
    report = checked(write(tmp_path, config))
    assert rules(report).count("file.template") == 1
    said = messages(report, "file.template")
    assert "and 1 more" in said
    assert "OUT" not in said
    assert "schema.unknown_key" in rules(report)
    assert not {"schema.section_value", "schema.top_level_value"} & set(rules(report))
    assert not report.passes


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
