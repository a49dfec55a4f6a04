"""Findings that the user does not want."""

import pytest

from autotune.base.errors import JobError
from autotune.check.ignored import KEY, ignored_in

TEXT = """\
# autotune: ignore huggingface.*
train_batch_size: 8  # autotune: ignore batch.product -- the launcher sets the world
zero_optimization:
  # autotune: ignore zero.inert_key, schema.unknown_key
  stage: 2
"""


def held(rule: str, line: int) -> bool:
    return ignored_in(TEXT, {}, ["nvme.*"], name="f.yaml").holds(rule, line)


def test_comments_speak_of_a_line_or_of_the_file():
    assert held("huggingface.mismatch", 5)
    assert held("nvme.path", 1) is held("nvme.missing", 3) is True
    assert [line for line in range(1, 7) if held("batch.product", line)] == [2]
    for rule in ("zero.inert_key", "schema.unknown_key"):
        assert [line for line in range(1, 7) if held(rule, line)] == [5]
    assert not held("zero.stage", 5)


@pytest.mark.parametrize("given", [["batch.product"], "batch.product, zero.inert_key"])
def test_a_key_speaks_of_the_file(given):
    found = ignored_in("{}", {KEY: given}, [], name="f.json")
    assert found.holds("batch.product", 7)


def test_what_is_no_rule_is_refused_with_the_near_ones():
    for text, config, flags, where in (
        ("# autotune: ignore batch.produkt", {}, [], "f.yaml:1"),
        ("", {KEY: ["batch.produkt"]}, [], "f.yaml"),
        ("", {}, ["batch.produkt"], "--ignore"),
    ):
        with pytest.raises(JobError, match=r"batch\.produkt is no rule") as caught:
            ignored_in(text, config, flags, name="f.yaml")
        assert caught.value.message.startswith(where)
        assert "batch.product" in caught.value.hint
    with pytest.raises(JobError, match="not a list of rules"):
        ignored_in("", {KEY: 7}, [], name="f.json")
