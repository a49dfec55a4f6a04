"""Hjson is edited where it has to be, and says what is wanted afterwards."""

import json

import hjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.check.edit_hjson import edited_hjson

TEXT = """\
{
  // my configuration
  train_batch_size: 8,   # total
  "bf16": {"enabled": true},
  zero_optimization: {
    stage: 2  // two
    /* keep
       this */
    overlap_comm: true,
  },
  name: a text, with a comma # and no comment
}
"""


def data_of(text):
    return json.loads(json.dumps(hjson.loads(text)))


def test_a_value_a_new_key_and_one_that_goes():
    wanted = data_of(TEXT)
    wanted["zero_optimization"] = {"stage": 3, "reduce_bucket_size": 5000}
    after = edited_hjson(TEXT, wanted)
    assert after is not None
    assert data_of(after) == wanted
    kept = ("// two", "/* keep\n       this */", "# total", "// my configuration")
    assert all(comment in after for comment in kept)


def test_nothing_changes_nothing():
    assert edited_hjson(TEXT, data_of(TEXT)) == TEXT


def test_a_text_without_braces_or_quotes():
    text = "train_batch_size: 8\nzero_optimization: {\n  stage: 2\n  where: here it is\n}\n# end\n"
    wanted = data_of(text)
    wanted["zero_optimization"]["overlap_comm"] = True
    wanted["dump_state"] = False
    after = edited_hjson(text, wanted)
    assert after is not None
    assert data_of(after) == wanted
    assert "where: here it is\n" in after
    assert after.endswith("# end\n")


def test_one_line():
    text = "{a: 1, b: {c: true}} // end"
    assert edited_hjson(text, {"a": 2, "b": {"c": True, "d": 1}}) == (
        '{a: 2, b: {c: true, "d": 1}} // end'
    )


NAMES = st.sampled_from(["a", "b", "c_d", "e"])
VALUES = st.one_of(st.booleans(), st.integers(-9, 9), st.sampled_from(["x", "two words", "1, 2"]))
SECTIONS = st.dictionaries(NAMES, VALUES, max_size=4)
CONFIGS = st.dictionaries(NAMES, VALUES | SECTIONS, min_size=1, max_size=4)


def written(config, draw, depth=1):
    """A configuration as somebody might write it."""
    lines = []
    for name, value in config.items():
        remark = draw(st.sampled_from(["", " # why", " // why"]))
        if isinstance(value, dict):
            inner = written(value, draw, depth + 1)
            lines.append(f"{'  ' * depth}{name}: {{\n{inner}{'  ' * depth}}}{remark}\n")
        else:
            comma = draw(st.sampled_from(["", ","]))
            lines.append(f'{"  " * depth}"{name}": {json.dumps(value)}{comma}{remark}\n')
    return "".join(lines)


@settings(max_examples=150, deadline=None)
@given(before=CONFIGS, wanted=CONFIGS, data=st.data())
def test_any_configuration_becomes_any_other(before, wanted, data):
    text = f"{{\n{written(before, data.draw)}}}\n"
    assert data_of(text) == before
    after = edited_hjson(text, wanted)
    if after is None:  # a comment would have been lost
        assert "why" in text
        return
    assert data_of(after) == wanted
    assert edited_hjson(after, wanted) == after
    assert after.count("why") == text.count("why")


@pytest.mark.parametrize("text", ["[1]", "{a: 1"])
def test_what_is_no_object_is_not_edited(text):
    assert edited_hjson(text, {"a": 2}) is None
