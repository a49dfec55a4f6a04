"""Line and column of what a finding is about."""

import time

import pytest

from autotune.check.key_positions import places_in
from autotune.space.rule import Choice, Violation

JSON = """\
{
  "train_batch_size": 8,
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
}
"""
YAML = """\
# a comment
deepspeed:
  train_batch_size: 8
  zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}
"""
HJSON = """\
{
  // train_batch_size: 1
  train_batch_size: 8
  "zero_optimization": {
    note: a { brace, stage: 5
    stage: 2, offload_optimizer: {"device": "cpu"}
  }
}
"""


def place(text: str, syntax, violation: Violation, at: tuple[str, ...] = ()) -> tuple[int, int]:
    found = places_in(text, at, syntax).of(violation)
    return found.line, found.column


def broken(message: str = "it is broken", **more) -> Violation:
    return Violation(rule="a.rule", message=message, fix="mend it", **more)


@pytest.mark.parametrize(
    ("text", "syntax", "at", "batch", "device"),
    [
        (JSON, "json", (), (2, 3), (3, 59)),
        (YAML, "yaml", ("deepspeed",), (3, 3), (4, 53)),
        (HJSON, "hjson", (), (3, 3), (6, 35)),
    ],
)
def test_a_key_is_found_however_it_is_told(text, syntax, at, batch, device):
    name = "zero_optimization.offload_optimizer.device"
    nested = {"zero_optimization": {"offload_optimizer": {"device": "none"}}}
    for violation in (
        broken(at=(name,)),
        broken(changes=nested),
        broken(choices=(Choice(changes=nested),)),
        broken(f"of both, {name}='cpu' is wrong"),
    ):
        assert place(text, syntax, violation, at) == device
    assert place(text, syntax, broken("train_batch_size=8 is wrong"), at) == batch


def test_a_key_that_is_not_there_has_the_place_of_its_section():
    assert place(JSON, "json", broken(at=("zero_optimization.overlap_comm",))) == (3, 3)
    assert place(JSON, "json", broken("nothing is named")) == (1, 1)
    assert place(YAML, "yaml", broken("nothing is named"), ("deepspeed",)) == (2, 1)


def test_of_a_key_that_stands_twice_the_last_counts():
    text = '{"a": 1,\n "a": 2}'
    assert place(text, "json", broken(at=("a",))) == (2, 2)


def test_a_long_word_of_hjson_is_passed_in_one_go():
    text = "{train_batch_size: t" + "x" * 100_000 + "\n zero_optimization: {}\n}"
    started = time.process_time()
    assert place(text, "hjson", broken(at=("zero_optimization",))) == (2, 2)
    assert time.process_time() - started < 5  # a second look at each letter takes minutes


@pytest.mark.parametrize("syntax", ["json", "yaml"])
def test_a_place_in_a_list_is_a_key(syntax):
    text = '{"runs": [[1], {"a": {"b": 2}},\n  [{"c": [3, {}]}]], "d": [1, {}]}\n'
    starts = places_in(text, (), syntax).starts
    assert starts["runs", "[1]", "a", "b"] == text.index('"b"')
    assert starts["runs", "[2]", "[0]", "c"] == text.index('"c"')
    assert starts["runs", "[1]"] == text.index('{"a"')
    assert starts["runs", "[2]", "[0]", "c", "[1]"] == text.index("{}")
    assert starts["d",] == text.index('"d"')
