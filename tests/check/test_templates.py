"""Files that are filled in, completed or read by somebody else before DeepSpeed sees them."""

from tests.check.files import checked, rules, write


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
