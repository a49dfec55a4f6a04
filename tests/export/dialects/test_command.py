"""A user's own command with the edits in it: in the words that its program takes."""

from typing import Any

import pytest

from autotune.export.dialects.command import edited_command, in_code_of
from autotune.trial.guest.edits import Edits
from tests.observed import TRAINER, observed

EDITS = Edits(
    configuration={
        "zero_optimization.stage": 1,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    },
    arguments={
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
    },
)
FILLED_IN = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
FLAGS = (
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
    "--gradient_checkpointing False"
)
FILE = "AUTOTUNE_EXPORT_FOLDER/ds_config.json"


def script_of(command: str, **said: Any) -> Any:
    description = {**TRAINER, "config_written": FILLED_IN, **said}
    return observed(description, command=command.split())


@pytest.mark.parametrize(
    ("command", "said", "expected"),
    [
        (
            "accelerate launch train.py --config sft.yaml",
            {"framework": "trl", "parses_arguments": True, "config_file": ""},
            ("accelerate launch train.py --config sft.yaml --deepspeed", FILE, FLAGS),
        ),
        (
            "torchrun train.py --deepspeed ds_config.json --per_device_train_batch_size 4",
            {"parses_arguments": True},
            ("torchrun train.py --deepspeed", FILE, FLAGS),
        ),
        (
            "llamafactory-cli train a.yaml gradient_accumulation_steps=4",
            {"framework": "llama-factory"},
            (
                f"llamafactory-cli train a.yaml deepspeed={FILE} per_device_train_batch_size=8",
                "gradient_accumulation_steps=1 disable_gradient_checkpointing=true",
            ),
        ),
        (
            "axolotl train a.yml --micro-batch-size=4 -- --nproc-per-node 2",
            {"framework": "axolotl"},
            (
                f"axolotl train a.yml --micro-batch-size=8 --deepspeed {FILE}",
                "--gradient-accumulation-steps 1 --gradient-checkpointing False",
                "-- --nproc-per-node 2",
            ),
        ),
    ],
    ids=["trl", "trainer", "llama-factory", "axolotl"],
)
def test_a_program_is_told_in_its_own_words(
    command: str, said: dict[str, Any], expected: tuple[str, ...]
) -> None:
    script = script_of(command, **said)
    assert edited_command(script, EDITS, {}) == " ".join(expected).split()
    assert not dict(in_code_of(script, EDITS))


@pytest.mark.parametrize(
    ("framework", "command", "expected"),
    [
        ("trainer", "torchrun train.py --optim adamw_torch", "--optim adamw_torch_fused"),
        ("llama-factory", "llamafactory-cli train a.yaml", "optim=adamw_torch_fused"),
        ("axolotl", "axolotl train a.yml", "--optimizer adamw_torch_fused"),
    ],
)
def test_an_optimizer_is_called_as_the_program_does(
    framework: str, command: str, expected: str
) -> None:
    edits = Edits(arguments={"optim": "adamw_torch_fused"})
    script = script_of(command, framework=framework, parses_arguments=True)
    words = expected.split()
    assert edited_command(script, edits, {})[-len(words) :] == words
    assert "adamw_torch" not in edited_command(script, edits, {})


@pytest.mark.parametrize(
    ("framework", "command", "expected"),
    [
        ("trl", "torchrun train.py", "--attn_implementation eager"),
        ("llama-factory", "llamafactory-cli train a.yaml", "flash_attn=disabled"),
        ("axolotl", "axolotl train a.yml", "--attn-implementation eager"),
    ],
)
def test_an_attention_is_called_as_the_program_does(
    framework: str, command: str, expected: str
) -> None:
    script = script_of(command, framework=framework, parses_arguments=True)
    edits = Edits(arguments={"attn_implementation": "eager"})
    words = expected.split()
    assert edited_command(script, edits, {})[-len(words) :] == words


def test_what_is_set_in_code_is_listed() -> None:
    """It names one argument, and reads the others from nowhere."""
    script = script_of("torchrun train.py --gradient_accumulation_steps 2", config_file="")
    assert edited_command(script, EDITS, {})[2:] == ["--gradient_accumulation_steps", "1"]
    assert dict(in_code_of(script, EDITS)) == {
        "per_device_train_batch_size": 8,
        "gradient_checkpointing": False,
        "DeepSpeed's configuration: zero_optimization.stage": 1,
    }
