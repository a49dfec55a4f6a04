"""A user's command of Megatron-LM, read as the job that it is."""

import shlex
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.engines.megatron.own_command import is_megatrons, read_command
from tests.cases import data_beside
from tests.checkouts import checkout_in

DATA = data_beside(__file__)

LLAMA = DATA["LLAMA"]
LAYOUT = "--tensor-model-parallel-size 2 --micro-batch-size 2 --recompute-activations"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = checkout_in(tmp_path / "checkout")
    (checkout / "megatron/training").mkdir()
    (checkout / "pretrain_gpt.py").write_text("from megatron.training import pretrain\n")
    return checkout


def command(checkout: Path, arguments: str) -> list[str]:
    return shlex.split(f"torchrun --nproc-per-node 4 {checkout}/pretrain_gpt.py {arguments}")


def test_a_command_says_model_batch_and_world(checkout, tmp_path):
    read = read_command(command(checkout, f"{LLAMA} {LAYOUT}"), tmp_path)
    # Without a global batch of its own, Megatron takes a micro-batch for each replica.
    told = {"seq_len": 64, "global_batch": 4, "precision": "bf16", "world": 4}
    assert told.items() <= read.keys.items()
    assert read.keys["megatron_path"] == str(checkout)
    wanted = {"vocab_size": 1024, "num_key_value_heads": 2, "tie_word_embeddings": False}
    assert {name: read.model[name] for name in wanted} == wanted


def test_what_a_knob_governs_leaves_the_command_and_the_rest_stays(checkout, tmp_path):
    read = read_command(command(checkout, f"{LLAMA} {LAYOUT}"), tmp_path)
    words = " ".join(read.keys["megatron_arguments"])
    assert "--lr 1e-3" in words
    assert "--tokenizer-type NullTokenizer --vocab-size 1023" in words
    for gone in ("parallel-size", "micro-batch", "--bf16", "recompute", "--save", "ckpt", "500"):
        assert gone not in words
    assert read.left_out == ["--save", "--save-interval"]
    # Megatron's own defaults, where a job would bring others.
    assert "--hidden-dropout 0.1" in words
    assert "--seed 1234" in words


def test_files_are_found_from_another_folder(checkout, tmp_path):
    (tmp_path / "corpus.bin").write_text("")
    read = read_command(command(checkout, f"{LLAMA} {LAYOUT} --data-path corpus"), tmp_path)
    assert str(tmp_path / "corpus") in read.keys["megatron_arguments"]


@pytest.mark.cases("arguments", "message")
def test_a_command_that_cannot_be_told_is_refused(checkout, tmp_path, arguments, message):
    with pytest.raises(JobError, match=message):
        read_command(command(checkout, f"{arguments} {LAYOUT}"), tmp_path)


def test_it_is_recognised_by_what_its_script_imports(checkout, tmp_path):
    assert is_megatrons(command(checkout, LLAMA), tmp_path)
    (checkout / "pretrain_gpt.py").write_text("import torch\n")
    assert not is_megatrons(command(checkout, LLAMA), tmp_path)
    assert not is_megatrons(["torchrun", "train.py"], tmp_path)


@pytest.mark.parametrize("heads", ["", "--num-attention-heads 0"])
def test_a_model_without_heads_is_left_to_the_reader_of_its_config(checkout, tmp_path, heads):
    words = "--num-layers 4 --hidden-size 128 --seq-length 64 --max-position-embeddings 64 --bf16"
    read = read_command(command(checkout, f"{words} {heads} {LAYOUT}"), tmp_path)
    assert not read.model["n_head"]
