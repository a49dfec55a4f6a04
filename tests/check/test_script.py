"""What a training script tells of its defaults."""

import pytest

from autotune.engines.deepspeed.sources.script import (
    made_arguments,
    own_defaults,
    trains_with,
    trls_defaults,
)
from tests.check.files import checked, rules, write

PLAIN = """
from transformers import HfArgumentParser, TrainingArguments
parser = HfArgumentParser((ModelArguments, TrainingArguments))
"""
DERIVED = """
import transformers
class Mine(transformers.TrainingArguments):
    adam_beta2: float = field(default=0.95)
    max_grad_norm = 0.5
parser = transformers.HfArgumentParser(Mine)
"""
CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
}

Z1 = {"zero_optimization": {"stage": 1}}
Z2 = {"zero_optimization": {"stage": 2}}
Z3 = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}
OFFLOAD = {
    "train_batch_size": 4,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}
PLAIN_MADE = "from transformers import Trainer, TrainingArguments\nTrainingArguments('out')\n"
_OPTIMIZER = "offload.script_optimizer"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (PLAIN, set()),
        ("from transformers import TrainingArguments as A, HfArgumentParser as H", None),
        (PLAIN.replace("TrainingArguments", "Seq2SeqTrainingArguments"), set()),
        (DERIVED, {"adam_beta2", "max_grad_norm"}),
        ("from trl import SFTConfig, TrlParser\nTrlParser(SFTConfig)", {"learning_rate"}),
        ("from mine import TrainingArguments\nHfArgumentParser(TrainingArguments)", None),
        (PLAIN + "parser.set_defaults(learning_rate=1e-4)", None),
        ("from transformers import TrainingArguments\nTrainingArguments('out')", None),
        ("this is no Python", None),
        ("", None),
    ],
)
def test_defaults_are_those_of_trainer_or_of_the_script(tmp_path, text, fields):
    assert own_defaults(write(tmp_path, text, "train.py")) == fields


def test_a_script_that_is_not_there_tells_nothing(tmp_path):
    assert own_defaults(tmp_path / "train.py") is None


@pytest.mark.parametrize(
    ("script", "levels"), [(None, ["note"]), (PLAIN, ["error"]), (DERIVED, [])]
)
def test_a_default_of_trainers_is_an_error_where_the_script_has_none(tmp_path, script, levels):
    if script is not None:
        write(tmp_path, script, "train.py")
    line = "torchrun --nproc_per_node 2 train.py --deepspeed ds_config.json --learning_rate 1e-4"
    report = checked(write(tmp_path, CONFIG), launch=line)
    found = [one.violation for one in report.found]
    assert [one.level for one in found if one.rule == "huggingface.default_mismatch"] == levels


MAKES = """
import argparse
from transformers import Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=2e-5)
parser.add_argument("-b", "--per-rank", dest="size", type=int, default=8)
parser.add_argument("--half", action="store_true")
parser.add_argument("--deepspeed")
parser.add_argument("--clip", default=float("inf"))
options = parser.parse_args()
made = TrainingArguments(
    "out", learning_rate=options.rate, per_device_train_batch_size=options.size,
    fp16=options.half, weight_decay=0.1, warmup_steps=steps(), max_grad_norm=options.clip,
)
"""


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, {"learning_rate": 2e-5, "per_device_train_batch_size": 8, "fp16": False}),
        (
            {"rate": 1e-3, "per_rank": 2, "half": True},
            {"learning_rate": 1e-3, "per_device_train_batch_size": 2, "fp16": True},
        ),
        ({"b": 4, "rate": "$LR"}, {"per_device_train_batch_size": 4, "fp16": False}),
    ],
)
def test_arguments_that_a_script_makes_are_literals_and_its_own_flags(tmp_path, given, known):
    made = made_arguments(write(tmp_path, MAKES, "train.py"), given)
    assert made.known == known | {"weight_decay": 0.1}
    unread = {"warmup_steps", "max_grad_norm"} | ({"learning_rate"} - known.keys())
    assert made.unknown == unread


@pytest.mark.parametrize("text", [PLAIN, "TrainingArguments()\nTrainingArguments()", ""])
def test_arguments_that_a_script_makes_in_another_way_are_not_read(tmp_path, text):
    assert made_arguments(write(tmp_path, text, "train.py"), {}) is None


@pytest.mark.parametrize(
    ("before", "known"),
    [
        ("N = 4", {"per_device_train_batch_size": 4}),
        ("from config import N\ndef f():\n    N = 4", {}),
        ("N = 4\nfrom config import M as N", {}),
        ("def f():\n    N = 4\nfrom config import *", {}),
        ("N = 4\nif debug:\n    N = 2", {}),
        ("if debug:\n    N = 4", {"per_device_train_batch_size": 4}),
        ("class N:\n    pass\ndef f():\n    N = 4", {}),
    ],
)
def test_a_constant_of_a_script_is_set_once_in_it(tmp_path, before, known):
    text = f"{before}\nTrainingArguments('o', per_device_train_batch_size=N)"
    assert made_arguments(write(tmp_path, text, "train.py"), {}).known == known


def test_what_a_script_makes_is_compared_with_its_file(tmp_path):
    write(tmp_path, MAKES, "train.py")
    config = CONFIG | {"gradient_accumulation_steps": 1, "gradient_clipping": 0.3}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}
    line = "torchrun --nproc_per_node 4 train.py --per-rank 2 --deepspeed ds_config.json"
    report = checked(write(tmp_path, config), launch=line)
    found = {one.violation.at[0]: one.violation.level for one in report.found}
    assert found == {"optimizer.params.lr": "error"}
    assert [(one.what, one.why) for one in report.not_judged] == [
        ("gradient_clipping against max_grad_norm", "train.py sets them in its own way")
    ]


LOADS = "model = AutoModelForCausalLM.from_pretrained('m', device_map={})\n"
STARTS = "import deepspeed, torch\n{}\ndeepspeed.initialize(model=m, optimizer=o)\n"
STAGES = """
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--deepspeed_config")
args = parser.parse_args()
net = deepspeed.pipe.PipelineModule(layers, num_stages={})
"""
IN_MAIN = f"""from transformers import TrainingArguments
def main():
    TrainingArguments("out")
    {LOADS.format("'auto'")}
if __name__ == "__main__":
    main()
"""
IN_FIELD = f"""from transformers import HfArgumentParser, TrainingArguments
class Mine:
    placed: str = field(default="auto")
mine, given = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()
{LOADS.format("mine.placed")}"""
IN_CHAT = f"def chat():\n    {LOADS.format(repr('auto'))}"
IF = f"if {{}}:\n    {LOADS.format(repr('auto'))}"
OWN = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
STARTS_O = "o = SGD(p)\n{}\n    deepspeed.initialize(model=m, optimizer=o)\n"
PIPED = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, **Z1}
"""Of four ranks in two stages, two train on samples of their own."""


@pytest.mark.parametrize(
    ("script", "config", "flags", "found"),
    [
        (PLAIN + LOADS.format("'auto'"), Z3 | Z2, "", {"accelerate.device_map": "warning"}),
        (PLAIN_MADE + LOADS.format("'auto'"), Z3, "", {"huggingface.device_map": "error"}),
        (
            PLAIN_MADE + LOADS.format("'auto' if torch.cuda.is_available() else None"),
            Z3,
            "",
            {"huggingface.device_map": "error"},
        ),
        (
            LOADS.format("'auto'") + PLAIN_MADE,
            Z3,
            "",
            {"huggingface.device_map": "warning", "huggingface.loaded_first": "warning"},
        ),
        (PLAIN_MADE + LOADS.format("None"), Z3, "", {}),
        (IN_MAIN, Z3, "", {"huggingface.device_map": "error"}),
        (IN_FIELD, Z3, "", {"huggingface.device_map": "error"}),
        (IN_FIELD, Z3, "--placed $WHERE", {}),
        (IN_FIELD, Z3, "$MORE", {}),
        (PLAIN_MADE + IN_CHAT, Z3, "", {"huggingface.device_map": "warning"}),
        (PLAIN_MADE + IF.format("args.lora"), Z3, "", {"huggingface.device_map": "warning"}),
        (PLAIN_MADE + IF.format("not is_deepspeed_zero3_enabled()"), Z3, "", {}),
        (PLAIN + LOADS.format("None"), Z3, "", {}),
        (PLAIN + LOADS.format("placed()"), Z3, "", {}),
        (STARTS.format("o = torch.optim.AdamW(p)"), OFFLOAD, "", {_OPTIMIZER: "error"}),
        (STARTS.format("o = DeepSpeedCPUAdam(p)"), OFFLOAD, "", {}),
        (STARTS.format("o = made(p)"), OFFLOAD, "", {_OPTIMIZER: "note"}),
        (STARTS.format("o = SGD(p)"), OFFLOAD | OWN, "", {_OPTIMIZER: "error"}),
        (STARTS.format("def g():\n    o = SGD(p)"), OFFLOAD, "", {_OPTIMIZER: "note"}),
        (STARTS_O.format("def f(o):"), OFFLOAD, "", {_OPTIMIZER: "note"}),
        (STARTS_O.format("def f():"), OFFLOAD, "", {_OPTIMIZER: "error"}),
        (STAGES.format("args.stages"), PIPED, "", {}),
        (STAGES.format("args.stages"), PIPED, "--stages 1", {"batch.product": "error"}),
        (STAGES.format("stages()"), PIPED, "", {}),
        (
            STAGES.replace("num_stages=", "").format("2"),
            PIPED | Z2,
            "",
            {"pipeline.stage": "error"},
        ),
        (STAGES.format("2"), PIPED | Z2, "", {"pipeline.stage": "error"}),
    ],
)
def test_what_a_script_decides_beside_its_file(tmp_path, script, config, flags, found):
    write(tmp_path, script, "train.py")
    name = "deepspeed" if "TrainingArguments" in script else "deepspeed_config"
    line = f"torchrun --nproc_per_node 4 train.py --{name} ds_config.json {flags}"
    report = checked(write(tmp_path, config), launch=line)
    levels = {one.violation.rule: one.violation.level for one in report.found}
    assert levels == found
    is_open = "the optimizer that the script brings" in {one.what for one in report.not_judged}
    assert is_open == ("note" in found.values())


@pytest.mark.parametrize(("norm", "found"), [(1.0, []), (0.5, ["accelerate.clips_by_file"])])
def test_a_script_clips_by_what_accelerate_hands_on(tmp_path, norm, found):
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n"
    write(tmp_path, text, "a.yaml")
    line = "accelerate launch --config_file a.yaml train.py\n"
    torchs = "Accelerator().prepare({}, dl)\ntorch.nn.utils"
    for clipper in (
        "Accelerator()",
        torchs.format("p"),
        torchs.format("q"),
        "if zero: Accelerator()",
    ):
        write(tmp_path, f"{clipper}.clip_grad_norm_(p, {norm})", "train.py")
        is_clipped = "q" not in clipper and "if" not in clipper
        assert rules(checked(write(tmp_path, line, "run.sh"))) == (found if is_clipped else [])
    write(tmp_path, {"train_micro_batch_size_per_gpu": "auto", **Z2}, "ds.json")
    write(tmp_path, text.replace("zero_stage: 2", "deepspeed_config_file: ds.json"), "a.yaml")
    for script, rule in (
        ("Accelerator().prepare(m)", ["accelerate.no_loader"]),
        ("Accelerator().prepare(m, train_dl)", []),
        ("Accelerator().prepare(*all)", []),
        ("tokenizer.prepare(m); Accelerator().prepare(m, batches)", []),
        ("def later(): accelerator.prepare(m)\nAccelerator().prepare(m, batches)", []),
        ("config['train_micro_batch_size_per_gpu'] = 4; Accelerator().prepare(m)", []),
    ):
        write(tmp_path, script, "train.py")
        assert rules(checked(write(tmp_path, line, "run.sh"))) == rule


def test_stages_that_are_not_read_leave_the_ranks_open(tmp_path):
    write(tmp_path, STAGES.format("None, topology=t"), "train.py")
    line = "deepspeed --num_gpus 4 train.py --deepspeed_config ds_config.json"
    (found,) = checked(write(tmp_path, PIPED), launch=line).not_judged
    why = "the stages of its PipelineModule are not read"
    assert (found.what, found.why) == ("what the number of ranks decides", why)


@pytest.mark.parametrize(
    ("text", "is_trainers"),
    [
        (PLAIN, True),
        (MAKES, True),
        ("from trl import SFTTrainer", True),
        ("import transformers\ntransformers.Trainer()", True),
        (
            "from accelerate import Accelerator\nfrom transformers import Trainer\nAccelerator()",
            False,
        ),
        ("import deepspeed", None),
        ("import lightning as pl\npl.Trainer()", None),
        ("", None),
    ],
)
def test_who_trains_in_a_script(tmp_path, text, is_trainers):
    assert trains_with(write(tmp_path, text, "train.py")) is is_trainers


_OWN = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n"
_OWN_CLASS = "from transformers import HfArgumentParser\nclass Mine:\n    lr: float = 1.0\n"


@pytest.mark.parametrize(
    ("text", "launcher", "is_refused"),
    [
        (_OWN + "parser.parse_args()", "deepspeed", True),
        (_OWN + "parser.parse_args()\nf(1).train()", "deepspeed", True),
        (_OWN + "parser.parse_args()", "deepspeed --no_local_rank", False),
        (_OWN + "parser.parse_args()", "torchrun --nproc_per_node 2", False),
        (_OWN + "parser.parse_known_args()", "deepspeed", False),
        (_OWN + "parser.add_argument('--local_rank')\nparser.parse_args()", "deepspeed", False),
        (_OWN + "add_more(parser)\nparser.parse_args()", "deepspeed", False),
        (_OWN + "parser = add_more(parser=parser)\nparser.parse_args()", "deepspeed", False),
        (_OWN + "extend(p=parser)\nparser.parse_args()", "deepspeed", False),
        (_OWN.replace("()", "(parents=[a()])", 1) + "parser.parse_args()", "deepspeed", False),
        (_OWN + "p = Theirs()\np.parse_args()", "deepspeed", False),
        (_OWN + "parser.add_argument(*a[0], **a[1])\nparser.parse_args()", "deepspeed", False),
        (_OWN_CLASS + "HfArgumentParser(Mine).parse_args_into_dataclasses()", "deepspeed", True),
        (PLAIN + "parser.parse_args_into_dataclasses()", "deepspeed", False),
    ],
)
def test_a_parser_without_the_rank_that_deepspeeds_launcher_adds(
    tmp_path, text, launcher, is_refused
):
    write(tmp_path, text, "train.py")
    write(tmp_path, CONFIG, "ds_config.json")
    line = f"{launcher} train.py --deepspeed ds_config.json --lr 1\n"
    path = write(tmp_path, f"#!/bin/bash\n{line}", "run.sh")
    assert ("file.local_rank" in rules(checked(path))) is is_refused


def test_trls_configuration_trains_in_bf16_unless_it_is_told(tmp_path):
    made = "from trl import GRPOConfig\nGRPOConfig(output_dir='out', learning_rate=1e-5{})"
    for more, unread, bf16 in (("", (), True), (", fp16=True", (), False), ("", ("fp16",), None)):
        path = write(tmp_path, made.format(more), "train.py")
        known = trls_defaults(path, {"fp16": bool(more)}, unread)
        assert (known.get("bf16"), known["num_generations"]) == (bf16, 8)
