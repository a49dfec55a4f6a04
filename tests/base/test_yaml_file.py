"""YAML of ours is YAML 1.2, by its core schema; what we write is read back the same."""

import itertools
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import JobError
from autotune.base.yaml_file import dump_yaml, only_switch, parse_yaml, read_yaml

CORE = {
    "0": 0,
    "010": 10,
    "-010": -10,
    "+7": 7,
    "0o10": 8,
    "0x1F": 31,
    "1e3": 1000.0,
    "5e8": 5e8,
    "1E-4": 1e-4,
    "12e03": 12000.0,
    "1.": 1.0,
    ".5": 0.5,
    "-.5e3": -500.0,
    ".inf": math.inf,
    "-.INF": -math.inf,
    "true": True,
    "True": True,
    "FALSE": False,
    "null": None,
    "~": None,
    "": None,
}
TEXT = (
    *("on", "off", "On", "OFF", "yes", "no", "Yes", "NO", "y", "n", "tRue", "nULL"),
    *("1:04", "1:04:05", "190:20:30.15", "1_000", "5_0.0", "0b101", "0o8", "08_0", "+0o7", "-0x1"),
    *("2001-01-01", "2001-12-14t21:59:43.10-05:00", "=", "<<", ".", "e3", "1e", "0x", "0o"),
    *("inf", "nan", "NaN", ".Nan", "+.nan", "\u0661\u0662", "\uff11", "1 2"),
)
CHAIN = list(itertools.pairwise(["a", *(f"b{n}" for n in range(40))]))
"""Names of which each holds the one before twice."""
ODD = (*CORE, *TEXT, "", " ", "- a", "a: b", "# no", "a #b", "{", "]", "&a", "*a", "!a", "|", ">")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.yaml"


def read(file: Path, text: str) -> dict:
    file.write_text(text, encoding="utf-8")
    return read_yaml(file)


@pytest.mark.parametrize("text", CORE)
def test_the_core_schema_of_yaml_1_2(file, text):
    value = read(file, f"a: {text}\n")["a"]
    assert value == CORE[text]
    assert type(value) is type(CORE[text])


@pytest.mark.parametrize("text", TEXT)
def test_what_yaml_1_2_does_not_know_is_text(file, text):
    assert read(file, f"a: {text}\n{text}: a\n") == {"a": text, text: "a"}


def test_not_a_number_is_one_of_its_numbers(file):
    assert math.isnan(read(file, "a: .nan")["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1e999", "is no number"),
        ("a: -1e999", "is no number"),
        ("a: " + "9" * 5000, "is no number"),
        ("a: 0x" + "f" * 5000, "is no number"),
        ("a: !!int 1_000", "is no number of YAML 1.2"),
        ("a: !!timestamp 2001-01-01", "tag"),
        ("a: !!set {b}", "tag"),
        ("a: !!binary aGk=", "tag"),
        ("a: !mine b", "tag"),
        ("a: !!python/name:os.system", "tag"),
        ("a: &a [1, 1]\n" + "".join(f"{k}: &{k} [*{b}, *{b}]\n" for b, k in CHAIN), "aliases"),
        ("a: &a [*a]", "aliases"),
        ("a: 1\n'a': 2", "twice"),
        ("16: 1\n0x10: 2", "mean the same"),
        ("1: a\n1.0: b", "mean the same"),
        ("true: a\n1: b", "mean the same"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper"),
        ("a: " + "[" * 200_000, "nested deeper"),
        ("a:\n" + "".join(f"{' ' * n}b:\n" for n in range(1, 90)), "nested deeper"),
    ],
    ids=lambda text: text[:12],
)
def test_what_hides_mistakes_is_refused(file, text, message):
    with pytest.raises(JobError, match=message):
        read(file, text)


def test_an_alias_is_what_it_names(file):
    assert read(file, "a: &x [1]\nb: *x") == {"a": [1], "b": [1]}


def test_what_another_program_reads_is_read_as_it_does(file):
    text = "a: 010\nb: on\nc: 1:04\nd: 5e8\n"
    assert parse_yaml(text, file) == {"a": 8, "b": True, "c": 64, "d": "5e8"}
    assert parse_yaml(text, file, reads_exponents=True)["d"] == 5e8
    assert parse_yaml(text, file) == yaml.safe_load(text)


scalars = (
    st.sampled_from(ODD)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
    | st.text("0123456789.eExo_:+-infa~", max_size=8)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ODD), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(ODD), values, min_size=1, max_size=4))
def test_what_is_written_is_read_back_the_same_by_both(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "round.yaml"
    text = dump_yaml(data)
    assert repr(read(file, text)) == repr(data)
    assert repr(yaml.safe_load(text)) == repr(data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "yes is text in YAML 1.2, write true"),
        ("Off", "Off is text in YAML 1.2, write false"),
        ("true", "write true"),
        ("maybe", "should be true or false$"),
        (1, "should be true or false$"),
        (None, "should be true or false$"),
    ],
)
def test_what_is_no_switch_is_told_how_to_write_one(value, message):
    with pytest.raises(ValueError, match=message):
        only_switch(value)


def test_a_tab_is_answered_with_what_to_write(file):
    with pytest.raises(JobError) as caught:
        read(file, "model: gpt2\n\tworld: 8")
    assert "takes no tab" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: \xb6\xff", r"file\.yaml: is no text: byte 4 is not UTF-8"),
        (b"a: \0\1", r"file\.yaml: is no text: it holds the character #x0000"),
    ],
)
def test_a_file_that_is_no_text_is_told_so_in_our_words(file, data, message):
    file.write_bytes(data)
    with pytest.raises(JobError, match=message) as error:
        read_yaml(file, hint="a mapping of knobs")
    assert "codec" not in str(error.value)
    assert error.value.hint.startswith("name a YAML file")
    assert error.value.hint.endswith("a mapping of knobs")
