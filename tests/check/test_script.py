"""What a training script tells of its defaults."""

import pytest

from autotune.engines.deepspeed.sources.script import own_defaults
from tests.check.files import checked, write

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


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (PLAIN, set()),
        ("from transformers import TrainingArguments as A, HfArgumentParser as H", None),
        (PLAIN.replace("TrainingArguments", "Seq2SeqTrainingArguments"), set()),
        (DERIVED, {"adam_beta2", "max_grad_norm"}),
        ("from trl import SFTConfig, TrlParser\nTrlParser(SFTConfig)", None),
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
