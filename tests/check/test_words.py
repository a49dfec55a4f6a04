"""Findings in words for people: renames, odd keys, odd numbers, one finding a fact."""

import pytest

from autotune.base.errors import AutotuneError
from autotune.base.nested import dotted, path_of
from autotune.base.user_text import STANDARD_INPUT
from autotune.check import read
from autotune.engines.deepspeed.sources.reading import parsed
from tests.check.files import checked, write

BATCH = {"train_micro_batch_size_per_gpu": 1}


def fixes(path, **how):
    return [found.violation.fix for found in checked(path, **how).found]


@pytest.mark.cases("config", "fix")
def test_what_moves_is_told_as_a_move(config, fix, tmp_path):
    assert fixes(write(tmp_path, BATCH | config)) == [fix]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a.b", '"a.b"'), ("", '""'), ('say "x"', r'"say \"x\""'), ("plain-1", "plain-1")],
)
def test_a_key_that_would_be_misread_is_quoted_and_found(name, shown, tmp_path):
    config = BATCH | {"zero_optimization": {"stage": 1, name: 5}}
    (found,) = checked(write(tmp_path, config)).found
    assert found.violation.at == (f"zero_optimization.{shown}",)
    assert found.violation.message.startswith(f"zero_optimization.{shown} is not a key")
    assert found.place.line == 5
    assert path_of(dotted(("a", name))) == ("a", name)


@pytest.mark.parametrize("name", ["true", "null"])
def test_a_key_of_yaml_that_is_no_text_is_spelled_as_yaml_spells_it(name, tmp_path):
    text = f"zero_optimization:\n  stage: 1\n  {name}: 5\ntrain_batch_size: 2\n"
    (found,) = checked(write(tmp_path, text, "a.yaml")).found
    assert found.violation.at == (f"zero_optimization.{name}",)
    assert found.place.line == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"train_batch_size": %s}'), ("a.yaml", "train_batch_size: %s\n")],
)
def test_a_number_of_thousands_of_digits_is_no_lesson_in_python(name, text, tmp_path):
    path = write(tmp_path, text % ("9" * 5001), name)
    with pytest.raises(AutotuneError) as error:
        read(path)
    assert "sys." not in str(error.value)
    assert "digits" in str(error.value) or "no number is so long" in str(error.value)


def test_nothing_at_all_on_standard_input_says_what_to_do():
    with pytest.raises(AutotuneError, match="standard input is empty") as error:
        parsed(" \n", STANDARD_INPUT)
    assert "autotune check - <" in error.value.hint
