"""What Trainer and accelerate fill in, refuse and overwrite before DeepSpeed reads anything."""

import json
from dataclasses import make_dataclass

import pytest

from autotune.base.nested import merge
from autotune.engines.deepspeed.sources.consumers import Consumer
from tests.check.files import AUTO, all_chosen, checked, messages, rules, write


def trained(tmp_path, config, arguments="", world=2, **how):
    line = f"torchrun --nproc_per_node {world} train.py --deepspeed ds_config.json {arguments}"
    return checked(write(tmp_path, config), launch=line, **how)


def test_auto_at_a_key_that_nobody_fills_in_is_refused_and_goes(tmp_path):
    config = merge(AUTO, {"zero_optimization": {"sub_group_size": "auto"}})
    path = write(tmp_path, config)
    assert rules(checked(path)) == ["huggingface.auto_not_filled"]
    assert checked(path).exit_code(fixed=True) == 2, "to remove it is the user's to choose"
    report = all_chosen(path)
    assert report.exit_code(fixed=False) == 2
    assert report.exit_code(fixed=True) == 0
    assert '-    "sub_group_size": "auto"' in report.diff


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


@pytest.mark.cases("change", "arguments", "named")
def test_values_that_differ_from_the_arguments_become_auto(tmp_path, change, arguments, named):
    report = trained(tmp_path, merge(AUTO, change), arguments)
    assert rules(report) == ["huggingface.mismatch"]
    assert named in messages(report, "huggingface.mismatch")
    assert report.fixed_text is None
    (question,) = report.needed
    assert '"auto"' in question.options[0].words or " auto" in question.options[0].words


@pytest.mark.cases("arguments")
def test_a_variable_of_the_shell_is_not_known(tmp_path, arguments):
    config = AUTO | {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    }
    report = trained(tmp_path, config, arguments)
    assert set(rules(report)) <= {"huggingface.default_mismatch"}
    assert report.fixed_text is None


PLAIN = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("script", "flags", "says"),
    [
        (PLAIN, "--optimm adafactor --no_bf16", {"optimm": "train.py: did you mean optim?"}),
        (PLAIN, "--evaluation_strategy no", {"evaluation_strategy": "mean eval_strategy?"}),
        (
            PLAIN,
            "--overwrite_output_dir",
            {"overwrite_output_dir": "transformers 5.0.0"},
        ),
        (PLAIN, "--lr 1e-4 --per_device_train_bat 2", {"lr": "did you mean learning_rate?"}),
        (PLAIN.replace("(TrainingA", "(of_another_module, TrainingA"), "--optimm a", {}),
        (PLAIN.replace("dataclasses()", "dataclasses(words)"), "--optimm a", {}),
        (PLAIN.replace("dataclasses()", "dataclasses()\n# sys.argv"), "--epoch 1", {"epoch": ""}),
    ],
)
def test_names_that_no_parser_of_a_script_takes(tmp_path, script, flags, says):
    write(tmp_path, script, "train.py")
    report = trained(tmp_path, AUTO, flags)
    found = {one.at[0]: one.message for one in report.left if one.rule == "file.misspelt_argument"}
    assert found.keys() == says.keys()
    assert all(words in found[name] for name, words in says.items())


WARM = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 40, "total_num_steps": 500}}


@pytest.mark.cases("arguments", "refused", "open_")
def test_the_steps_of_a_schedule_are_compared_or_named(tmp_path, arguments, refused, open_):
    write(tmp_path, PLAIN, "train.py")
    report = trained(tmp_path, AUTO | {"scheduler": WARM}, f"--weight_decay 0 {arguments}")
    errors = [
        one.at for one in report.left if one.level == "error" and one.at != ("warmup_ratio",)
    ]
    assert errors == [(f"scheduler.params.{name}",) for name in refused]
    named = "; ".join(f"{one.what} ({one.why})" for one in report.not_judged)
    assert open_ in named
    assert bool(open_) == bool(named)


@pytest.mark.cases("arguments", "refused", "is_open")
def test_a_global_batch_is_compared_with_trainers_defaults(tmp_path, arguments, refused, is_open):
    write(tmp_path, PLAIN, "train.py")
    report = trained(tmp_path, AUTO | {"train_batch_size": 16}, arguments)
    assert ("huggingface.mismatch" in rules(report)) is refused
    assert bool(report.not_judged) is is_open


def accelerate_reads(section):
    """What accelerate's own class says of it: whether it is stage 3; an exception's type."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    try:
        return HfDeepSpeedConfig({"zero_optimization": section}).is_zero3()
    except AttributeError as error:
        return type(error)


@pytest.mark.parametrize("switch", [True, False])
def test_a_switch_is_no_section_for_accelerate(tmp_path, switch):
    assert accelerate_reads(switch) is AttributeError
    config = AUTO | {"zero_optimization": switch}
    report = checked(write(tmp_path, config))
    assert "huggingface.zero_switch" in rules(report)
    assert json.loads(report.fixed_text)["zero_optimization"] == {"stage": int(switch)}
    alone = write(tmp_path, {"train_batch_size": 8, "zero_optimization": switch})
    assert "huggingface.zero_switch" not in rules(checked(alone))


def test_stage_3_as_text_is_none_for_accelerate(tmp_path):
    assert accelerate_reads({"stage": "3"}) is False
    config = AUTO | {"zero_optimization": {"stage": "3"}}
    report = checked(write(tmp_path, config))
    assert "huggingface.stage_as_text" in rules(report)
    assert accelerate_reads(json.loads(report.fixed_text)["zero_optimization"]) is True


@pytest.mark.cases("asked", "config", "refused")
def test_the_precision_of_accelerate(tmp_path, asked, config, refused):
    path = write(tmp_path, {"zero_optimization": {"stage": 2}} | AUTO | config)
    line = f"accelerate launch --use_deepspeed --mixed_precision {asked} train.py"
    assert any(rule.startswith("huggingface.") for rule in rules(checked(path, launch=line))) == (
        refused
    )


OFFLOADED = AUTO | {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("optim", "level"),
    [("rmsprop", "warning"), ("adafactor", "error"), ("apollo_adamw", "warning")],
)
def test_an_offloaded_optimizer_that_accelerate_replaces(tmp_path, optim, level):
    report = trained(tmp_path, OFFLOADED, f"--optim {optim}")
    (found,) = report.found
    assert (found.violation.rule, found.violation.level) == (
        "huggingface.optimizer_replaced",
        level,
    )
    mended = trained(
        tmp_path,
        OFFLOADED,
        f"--optim {optim}",
        chosen=["huggingface.optimizer_replaced=1"],
    )
    assert json.loads(mended.fixed_text)["zero_force_ds_cpu_optimizer"] is False
    assert mended.left == ()


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "lion_32bit", "adagrad"])
def test_an_optimizer_that_deepspeed_has_for_the_cpu_stays(tmp_path, optim):
    assert rules(trained(tmp_path, OFFLOADED, f"--optim {optim}")) == []
    assert rules(trained(tmp_path, OFFLOADED)) == []


def test_what_accelerate_takes_for_an_offloaded_optimizer(monkeypatch):
    """The choice of the installed accelerate, with optimizers that are never built."""
    import deepspeed.ops.adagrad
    import deepspeed.ops.adam
    import torch
    from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed
    from transformers.optimization import Adafactor

    for module, name in (
        (deepspeed.ops.adam, "DeepSpeedCPUAdam"),
        (deepspeed.ops.adagrad, "DeepSpeedCPUAdagrad"),
    ):
        monkeypatch.setattr(module, name, lambda groups, name=name, **more: name)
    made = {
        kind: map_pytorch_optim_to_deepspeed(kind([torch.nn.Parameter(torch.ones(2))]))
        for kind in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop)
    }
    assert made == {
        torch.optim.AdamW: "DeepSpeedCPUAdam",
        torch.optim.Adagrad: "DeepSpeedCPUAdagrad",
        torch.optim.RMSprop: "DeepSpeedCPUAdam",
    }
    # Its C++ takes one number there.
    monkeypatch.setattr(deepspeed.ops.adam, "DeepSpeedCPUAdam", lambda groups, **more: groups)
    adafactor = Adafactor([torch.nn.Parameter(torch.ones(2))], lr=1e-3, relative_step=False)
    assert isinstance(map_pytorch_optim_to_deepspeed(adafactor)[0]["eps"], tuple)


def test_what_accelerate_inserts_and_refuses_by_itself(tmp_path, monkeypatch):
    """The plugin of the installed accelerate, on what the rules above are about."""
    from accelerate.utils import DeepSpeedPlugin

    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 2}})
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 1
    plugin.set_mixed_precision("bf16")
    assert plugin.deepspeed_config["bf16"] == {"enabled": True}
    assert plugin.deepspeed_config["steps_per_print"] == float("inf")

    given = {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 8}
    plugin = DeepSpeedPlugin(hf_ds_config=given | {"bf16": {"enabled": False}})
    plugin.set_mixed_precision("bf16")
    assert plugin.deepspeed_config["gradient_accumulation_steps"] == 8
    assert plugin.deepspeed_config["bf16"] == {"enabled": False}

    filled = DeepSpeedPlugin(hf_ds_config=given | {"gradient_accumulation_steps": "auto"})
    assert filled.deepspeed_config["gradient_accumulation_steps"] == 4
    with pytest.raises(ValueError, match="cannot be set to `bf16`"):
        DeepSpeedPlugin(hf_ds_config=given | {"fp16": {"enabled": True}}).set_mixed_precision(
            "bf16"
        )


def test_the_defaults_of_trainers_arguments():
    from dataclasses import fields

    from transformers import TrainingArguments

    from autotune.check.huggingface import _DEFAULTS
    from autotune.engines.deepspeed.sources.consumers import ARGUMENTS

    own = {one.name: one.default for one in fields(TrainingArguments)}
    names = {one.key: one.name for one in ARGUMENTS}
    for key, value in _DEFAULTS.items():
        if key == "optimizer.params.betas":
            assert value == [own["adam_beta1"], own["adam_beta2"]]
        elif key == "scheduler.params.warmup_num_steps":
            assert value == max(1, own["warmup_steps"]), "Trainer makes 1 of 0"
        else:
            assert value == own[names[key]]


def accelerates(section, precision="no"):
    """The configuration that accelerate hands over, after what it does to a file's."""
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 1}, **section})
    plugin.set_mixed_precision(precision)
    return plugin.deepspeed_config


@pytest.mark.parametrize(("precision", "level"), [("no", "warning"), ("bf16", "warning")])
def test_the_old_name_of_bf16_is_overruled(tmp_path, precision, level):
    """DeepSpeed reads bf16 where both are there (runtime/precision_config.py)."""
    from deepspeed.runtime.config import DeepSpeedConfig

    old = {"bfloat16": {"enabled": True}, "train_batch_size": 2}
    handed = accelerates(old, precision)
    assert handed["bf16"] == {"enabled": precision == "bf16"}
    assert DeepSpeedConfig(handed).bfloat16_config.enabled is (precision == "bf16")
    config = old | {"zero_optimization": {"stage": 1}}
    line = f"accelerate launch --num_processes 1 --mixed_precision {precision} train.py"
    report = checked(write(tmp_path, config), launch=line)
    found = {one.violation.rule: one.violation for one in report.found}
    assert found["huggingface.old_bf16"].level == level
    assert "schema.deprecated_name" not in found
    assert '"bf16": {' in report.fixed_text


@pytest.mark.parametrize("consumer", [Consumer.TRAINER, Consumer.ACCELERATE])
def test_an_accumulation_of_null_is_multiplied_with(tmp_path, consumer):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": None,
        "zero_optimization": {"stage": 1},
    }
    assert accelerates(config)["gradient_accumulation_steps"] is None
    report = checked(write(tmp_path, config), consumer=consumer, world=1)
    levels = {one.violation.rule: one.violation.level for one in report.found}
    assert levels["huggingface.null_accumulation"] == "error"
    alone = config | {"train_micro_batch_size_per_gpu": None, "train_batch_size": 2}
    assert "huggingface.null_accumulation" not in rules(
        checked(write(tmp_path, alone), consumer=consumer, world=1)
    )


def arguments_in_yaml(tmp_path, **changes):
    arguments = {"output_dir": "out", "learning_rate": 1e-4, "max_steps": 2} | changes
    text = "\n".join(f"{name}: {value}" for name, value in arguments.items())
    return write(tmp_path, f"{text}\ndeepspeed:\n  zero_optimization: {{stage: 1}}\n", "a.yaml")


@pytest.mark.cases("name", "text", "fix")
def test_a_number_that_is_text_reaches_trainer_as_text(tmp_path, name, text, fix):
    """HfArgumentParser reads the file with PyYAML, and converts nothing."""
    from transformers import HfArgumentParser

    one = write(tmp_path, f"{name}: {text}\n", "one.yaml")
    (parsed,) = HfArgumentParser(make_dataclass("Arguments", [(name, float)])).parse_yaml_file(one)
    assert getattr(parsed, name) == text.strip("'")
    path = arguments_in_yaml(tmp_path, **{name: text})
    report = checked(path)
    (found,) = (one for one in report.found if one.violation.rule == "huggingface.number_as_text")
    assert found.violation.level == "error"
    assert found.violation.fix == f"write {name}: {fix}"
    assert path.read_text(encoding="utf-8").splitlines()[found.place.line - 1].startswith(name)


@pytest.mark.cases("changes", "launch")
def test_readers_that_convert_are_not_told_so(tmp_path, changes, launch):
    report = checked(arguments_in_yaml(tmp_path, **changes), launch=launch)
    assert "huggingface.number_as_text" not in rules(report)


@pytest.mark.parametrize(
    ("program", "levels"),
    [("trl sft", []), ("swift sft", []), ("FORCE_TORCHRUN=1 llamafactory-cli train", ["error"])],
)
def test_programs_that_train_without_being_asked(tmp_path, program, levels):
    line = f"{program} --deepspeed ds_config.json --do_eval true"
    path = write(tmp_path, merge(AUTO, {"zero_optimization": {"stage": 2}}))
    found = checked(path, launch=line).found
    rule = "huggingface.evaluation_alone"
    assert [one.violation.level for one in found if one.violation.rule == rule] == levels


def test_a_file_of_arguments_that_nobody_starts_may_evaluate_alone(tmp_path):
    config = merge(AUTO, {"zero_optimization": {"stage": 2}})
    path = write(tmp_path, {"deepspeed": config, "do_eval": True, "output_dir": "o"}, "args.json")
    assert [one.violation.level for one in checked(path).found] == ["warning"]


@pytest.mark.cases("given", "arguments", "script", "found")
def test_what_trainer_does_at_a_stage_or_with_a_section(tmp_path, given, arguments, script, found):
    section = {name: value for name, value in given.items() if name != "stage"}
    config = {"zero_optimization": {"stage": given["stage"]}, "activation_checkpointing": section}
    if script:
        write(tmp_path, script, "train.py")
    report = trained(tmp_path, merge(AUTO, config), arguments)
    levels = {one.violation.rule: one.violation.level for one in report.found}
    assert levels == {f"huggingface.{name}": level for name, level in found.items()}
