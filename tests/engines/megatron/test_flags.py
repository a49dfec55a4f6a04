"""Flags of Megatron-LM by release: the recorded file, and a checkout's own parser."""

import json
import os
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.engines.megatron.flags import (
    DATA_FILE,
    flag_of,
    flags,
    known_release,
    newest_release,
    release_of,
    releases,
    words_of,
)
from tests.record_megatron_flags import flags_of, gathered, spread
from tests.recorded_json import as_text


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout")
def test_the_file_is_what_a_checkouts_parser_says():
    checkout = Path(os.environ["MEGATRON_PATH"])
    known = spread(json.loads(DATA_FILE.read_text(encoding="utf-8")))
    assert known[release_of(checkout)] == flags_of(checkout)


def test_the_file_is_as_it_is_written():
    text = DATA_FILE.read_text(encoding="utf-8")
    assert as_text(gathered(spread(json.loads(text))), 2) == text


@pytest.mark.parametrize("release", releases())
def test_every_release_has_what_every_layout_says(release):
    for name in ("tensor-model-parallel-size", "micro-batch-size", "overlap-grad-reduce"):
        assert flag_of(f"--{name}", release).name == f"--{name}"
    assert len(flags(release)) > 400


def test_a_flag_that_came_later_names_the_releases_that_have_it():
    with pytest.raises(JobError) as raised:
        flag_of("--fine-grained-activation-offloading", "0.14")
    assert raised.value.message == (
        "--fine-grained-activation-offloading: Megatron Core 0.14 has no such flag: "
        "0.16 to 0.20 do"
    )


def test_a_misspelt_flag_is_answered_with_the_nearest():
    with pytest.raises(JobError) as raised:
        flag_of("--tensor-model-paralel-size", "0.19")
    assert raised.value.hint == "did you mean --tensor-model-parallel-size?"


@pytest.mark.cases("name", "value", "words")
def test_words_of_an_argument(name, value, words):
    assert words_of(name, value, newest_release()) == words


@pytest.mark.cases("name", "value", "message")
def test_a_value_that_the_parser_refuses_is_refused(name, value, message):
    with pytest.raises(JobError, match=message):
        words_of(name, value, "0.14")


def test_a_patch_release_counts_as_its_minor_one():
    assert known_release("0.16.1") == "0.16"
    assert known_release("main") == newest_release()
    with pytest.raises(JobError, match=r"--megatron-release: .* Megatron Core 0\.9"):
        known_release("0.9", where="--megatron-release")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(JobError, match="no checkout of Megatron-LM"):
        release_of(tmp_path)
