import functools
import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.data import data_folder, shipped_spaces
from autotune.base.secrecy import (
    HIDDEN,
    holds_secret,
    is_secret,
    scrubbed,
    scrubbed_document,
    scrubbed_text,
)
from autotune.base.yaml_file import dump_yaml
from autotune.job.model import presets
from tests.cases import data_beside

DATA = data_beside(__file__)

SECRET = "Zq7xV2mK9pLw"
"""Nothing in it but that it is nobody's word."""


@pytest.mark.cases("name")
def test_names_of_secrets(name):
    assert is_secret(name)
    assert scrubbed({"a": [{name: SECRET}]}) == {"a": [{name: HIDDEN}]}


@pytest.mark.cases("name")
def test_names_of_settings(name):
    assert not is_secret(name)


@pytest.mark.cases("value")
def test_values_that_show_what_they_are(value):
    for text in (scrubbed_text(value), scrubbed({"a": [[value]]})["a"][0][0]):
        assert HIDDEN in text
        assert not any(part in text for part in (SECRET, "hunter2", "ter2", "EXAMPLE", "MII"))
    assert not any(part in str(scrubbed({value: 1})) for part in (SECRET, "hunter2", "ter2"))
    assert scrubbed_text(scrubbed_text(value)) == scrubbed_text(value)


@pytest.mark.cases("text")
def test_what_is_no_secret_stays_as_it_is(text):
    assert scrubbed_text(text) == text


def test_what_is_shipped_holds_nothing_that_is_withheld():
    for name in presets():
        file = resources.files("autotune.job") / "presets" / f"{name}.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        assert scrubbed(config) == config
    for name in shipped_spaces():
        text = (data_folder("search_spaces") / f"{name}.yaml").read_text(encoding="utf-8")
        assert scrubbed_text(text) == text


def test_secrets_are_withheld_at_any_depth_and_settings_are_not():
    section = {
        "comet": {"api_key": "abc", "project": "p"},
        "layer_tokens": 3,
        "token": ["a"],
        "credentials": {"user": "me", "id": 7},
        "password": 12,
        "session": {"steps": 3},
        "bos_token": "<s>",
        "_commit_hash": "0123456789abcdef0123456789abcdef01234567",
        "arguments": ["--lr", "0.1", "--token", "abc", "--flag"],
    }
    before = json.dumps(section)
    assert scrubbed(section) == {
        "comet": {"api_key": HIDDEN, "project": "p"},
        "layer_tokens": 3,
        "token": HIDDEN,
        "credentials": HIDDEN,
        "password": 12,
        "session": {"steps": 3},
        "bos_token": "<s>",
        "_commit_hash": "0123456789abcdef0123456789abcdef01234567",
        "arguments": ["--lr", "0.1", "--token", HIDDEN, "--flag"],
    }
    assert json.dumps(section) == before
    assert not holds_secret("use_auth", True)


def test_a_text_keeps_all_but_its_secrets():
    text = (
        '{"comet": {"api_key": "a\\"b",\n "project" : "key"}, "tokens": 3,\n "hf_token": ["b"]}\n'
    )
    assert scrubbed_text(text) == (
        '{"comet": {"api_key": "***",\n "project" : "key"}, "tokens": 3,\n "hf_token": "***"}\n'
    )


def test_a_secret_of_the_environment_is_known_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "plain-words-here")
    assert scrubbed_text("refused: plain-words-here") == f"refused: {HIDDEN}"


def test_a_document_without_secrets_stays_byte_for_byte():
    text = '{"b":1,\n"a": 2}'
    assert scrubbed_document("ds_config.json", text) == text
    hidden = scrubbed_document("ds_config.json", '{"pwd": "hunter2"}')
    assert json.loads(hidden) == {"pwd": HIDDEN}


@pytest.mark.parametrize("value", ["12345678", "2718281828e1"])
def test_a_long_number_may_be_a_secret(value):
    assert scrubbed({"password": value, "token": "3"}) == {"password": HIDDEN, "token": "3"}
    assert scrubbed_text(f'"password": "{value}"') == f'"password": "{HIDDEN}"'


@given(st.recursive(st.none() | st.integers() | st.text(), lambda of: st.lists(of)))
def test_scrubbing_twice_changes_nothing(data):
    assert scrubbed(scrubbed(data)) == scrubbed(data)


@pytest.mark.cases("unit")
@pytest.mark.timeout(120)
def test_no_text_takes_the_square_of_its_length(unit):
    """Where it did, this took hours."""
    text = unit * (100_000 // len(unit))
    assert len(scrubbed_text(text)) <= len(text) + len(HIDDEN)


SECTIONS = DATA["SECTIONS"]


@pytest.mark.parametrize("data", SECTIONS, ids=json.dumps)
def test_secrets_in_what_is_built_otherwise(data):
    assert "hunter2" not in json.dumps(scrubbed(data))
    assert "hunter2" not in json.dumps(scrubbed({"a": [[data]]}))


@pytest.mark.cases("data")
def test_secrets_in_texts_as_messages_and_reports_spell_them(data):
    for spell in (json.dumps, functools.partial(json.dumps, indent=2), dump_yaml, repr):
        assert "hunter2" not in scrubbed_text(spell({"b": [[data]], "c": {"d": {"e": data}}}))


def test_labels_of_a_classifier_are_no_names_of_secrets():
    config = {"label2id": {"B-secret": 0, "password": 1}, "id2label": {"0": "B-secret"}}
    assert scrubbed(config) == config
