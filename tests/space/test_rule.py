"""What a rule sees of a configuration of which not everything is known."""

import json

import pytest

from autotune.base.nested import Unknown, as_written, look_up
from autotune.space.rule import Facts, UnknownFactError, facts_of

LATER = Unknown("put in at run time")


def test_to_ask_for_an_unknown_value_is_to_learn_nothing():
    facts = facts_of({"fp16": {"enabled": LATER, "loss_scale": 0}, "world": 2})
    for ask in (facts["fp16"].get, facts["fp16"].__getitem__):
        with pytest.raises(UnknownFactError, match=r"^fp16\.enabled$"):
            ask("enabled")
    with pytest.raises(UnknownFactError):
        look_up(facts, "fp16.enabled")
    assert (facts["fp16"]["loss_scale"], facts.get("world")) == (0, 2)
    assert facts.get("bf16") is facts["fp16"].get("auto_cast") is None


def test_an_unknown_value_is_in_its_section_as_any_other():
    section = facts_of({"fp16": {"enabled": True}}, {("fp16", "enabled")}, LATER.why)["fp16"]
    assert isinstance(section, Facts)
    assert "enabled" in section
    assert (len(section), list(section), list(section.items())) == (
        *(1, ["enabled"]),
        [("enabled", Unknown(LATER.why, True))],
    )


def test_what_stands_there_is_what_moves():
    facts = facts_of({"fp16": {"enabled": "auto"}}, {("fp16", "enabled")})
    assert as_written(facts) == {"fp16": {"enabled": "auto"}}
    assert json.dumps(as_written(facts["fp16"])) == '{"enabled": "auto"}'


def test_a_path_that_is_not_there_stays_away():
    assert facts_of({"a": 1}, {("b",)}) == {"a": 1}
