"""Changes of a JSON text: what they say happens, and nothing else does."""

import difflib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.check import json_text
from autotune.check.changes import same_data
from autotune.check.edit import edit
from autotune.check.json_text import duplicates
from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.base import changed
from tests.engines.deepspeed.rules.cases import NEWEST, setup_of, witnesses

WRITTEN = """{
    "zeta": 1,          "not_known": [1,
        2],
    "zero_optimization": {
        "stage": 3, "sub_group_size": 1e9,
        "offload_param": {"device": "cpu"}
    },
    "empty": {},
    "alpha": null
}
"""


REMARKED = """{
  // about both
  "http://a": "/* no comment, }",
  "micro": 4, // of a rank
  "accum": 2,
  "zero_optimization": {
    "stage": 1, # for now
    "bucket": 5e8, // the default
  },
  "last": 1 /* of
  all */
}
"""


def changed_lines(before: str, after: str) -> list[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.cases("changes", "lines")
def test_only_the_lines_of_a_change_change(changes, lines):
    after = edit(WRITTEN, changes)
    assert json.loads(after) == changed(json.loads(WRITTEN), changes)
    if lines is not None:
        assert changed_lines(WRITTEN, after) == lines


@pytest.mark.cases("changes", "lines")
def test_comments_that_deepspeed_reads_stay(changes, lines):
    after = edit(REMARKED, changes, "hjson")
    assert changed_lines(REMARKED, after) == lines
    data = json_text.data(after, reads_exponents=True)
    assert data == changed(json_text.data(REMARKED, reads_exponents=True), changes)
    for mark, end in (("\ufeff", "\n"), ("", "\r\n")):
        text = mark + REMARKED.replace("\n", end)
        assert edit(text, changes, "hjson") == mark + after.replace("\n", end)


def test_what_would_take_comments_with_it_is_not_edited():
    assert edit(REMARKED, {"zero_optimization": None}, "hjson") is None
    assert edit('{"a" /* of it */: 2}', {"a": None}, "hjson") is None
    assert edit("{stage: 2}", {}, "hjson") is None, "Hjson that is no JSON"


def test_a_renamed_key_stays_in_its_place():
    after = edit(WRITTEN, {"zeta": None, "theta": 1}, moves={("zeta",): ("theta",)})
    assert after == WRITTEN.replace('"zeta"', '"theta"')


def test_order_unknown_keys_and_line_ends_stay():
    text = WRITTEN.replace("\n", "\r\n")
    after = edit(text, {"zero_optimization": {"stage": 2}})
    assert after == text.replace('"stage": 3', '"stage": 2')
    assert list(json.loads(after)) == list(json.loads(WRITTEN))


def test_a_section_that_was_empty_is_filled_with_the_line_ends_of_the_file():
    text = '{\r\n  "a": {},\r\n  "b": 1\r\n}\r\n'
    after = edit(text, {"a": {"c": 2}, "b": 1})
    assert json.loads(after) == {"a": {"c": 2}, "b": 1}
    assert after.count("\n") == after.count("\r\n") > text.count("\r\n")


def test_the_last_of_two_equal_keys_is_the_one_that_changes():
    after = edit('{"a": 1, "b": 2, "a": 3}', {"a": 4})
    assert after == '{"a": 1, "b": 2, "a": 4}'


def test_what_would_be_read_too_often_is_not_edited():
    keys = {f"unknown_{at}": at for at in range(20_000)}
    assert edit(json.dumps({"a": 1, **keys, "b": 2}), dict.fromkeys(keys)) is None
    assert duplicates(json.dumps(keys)) == []


def test_keys_that_are_written_twice_are_named():
    assert duplicates('{"a": {"b": 1, "b": 2}, "c": 1, "c": {"c": 1}}') == ["c", "a.b"]
    assert duplicates(WRITTEN) == []


_KEYS = st.sampled_from(["a", "b", "c", 'quote"', "ünder"])
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(_KEYS, _VALUES, max_size=4)


@given(config=_OBJECTS, changes=_OBJECTS, indent=st.sampled_from([None, 0, 2, "\t"]))
def test_any_text_says_after_any_changes_what_they_say(config, changes, indent):
    after = edit(json.dumps(config, indent=indent), changes)
    wanted = changed(config, changes)
    assert json.dumps(json.loads(after), sort_keys=True) == json.dumps(wanted, sort_keys=True)


@given(config=st.dictionaries(_KEYS, _SCALARS), changes=_OBJECTS, comma=st.sampled_from(["", ","]))
def test_comments_between_keys_are_no_obstacle(config, changes, comma):
    first, *lines = json.dumps({**config, "last": 0}, indent=2).split("\n")
    lines[-2] += comma
    text = "\n".join([first, *(f'  # "{n}": {{\n{line} // {n}' for n, line in enumerate(lines))])
    after = json_text.data(edit(text, changes, "hjson"), reads_exponents=True)
    assert same_data(after, changed({**config, "last": 0}, changes))


def test_the_fix_of_every_rule_can_be_written():
    for name, rule, witness in witnesses():
        broken = setup_of(witness.broken, version=witness.deepspeed or NEWEST)
        (violation,) = (found for found in judge(broken) if found.rule == rule.name)
        after = json.loads(edit(json.dumps(broken.ds_config, indent=4), violation.changes))
        assert after == changed(broken.ds_config, violation.changes), name
        # As text: to Python, 16.0 is 16 and 1 is True.
        is_same = json.dumps(after) == json.dumps(broken.ds_config)
        assert is_same == (not violation.changes), name


def test_data_with_keys_of_yaml_is_compared_key_by_key_and_type_by_type():
    there = {"stage": 2, True: 1, None: [{3: "x"}]}
    assert same_data(there, {None: [{3: "x"}], True: 1, "stage": 2})
    assert not same_data(there, {"stage": 2, "true": 1, None: [{3: "x"}]})
    assert not same_data(there, {"stage": 2, True: 1, None: [{"3": "x"}]})
