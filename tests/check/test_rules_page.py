"""What people read of a rule: every rule has a page, and its examples are true."""

import ast
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.check.rule_list import rule_names
from autotune.check.rules_page import all_names, markdown_of, page_of
from autotune.engines.deepspeed.rules import ALL_RULES
from autotune.engines.deepspeed.sources.file_rules import FILE_RULES
from tests import site_pages

AUTOTUNE = Path(__file__).parents[2] / "autotune"
FOLDERS = (AUTOTUNE / "check", AUTOTUNE / "engines" / "deepspeed" / "sources")


def test_a_page_tells_what_check_says_of_an_example():
    for name in (rule.name for rule in ALL_RULES):
        page = page_of(name)
        # A rule about the script's model may depend on what only a training script knows.
        assert any(example.says for example in page.examples) or name.startswith("pipeline."), name
        text = markdown_of(page)
        assert f"## {name}" in text
        assert page.source in text, name


def test_every_name_that_the_check_of_files_uses_is_told():
    used = {
        word.value
        for folder in FOLDERS
        for path in folder.glob("*.py")
        for word in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(word, ast.Constant) and word.value in FILE_RULES
    }
    assert set(FILE_RULES) <= set(rule_names())
    assert {name for name in FILE_RULES if name.startswith("huggingface.")} <= used


def test_a_slip_of_a_name_gets_the_near_ones():
    with pytest.raises(JobError, match=r"batch\.produkt is no rule") as caught:
        page_of("batch.produkt")
    assert "batch.product" in caught.value.hint


def test_a_rule_is_found_by_the_name_that_a_refused_layout_gives_it():
    assert page_of("overlap_experts.modules").name == "megatron.overlap_experts.modules"
    assert "`megatron.batch.product`" in page_of("batch.product").says
    assert "Fix: take a tp that divides n_heads." in page_of("megatron.tp.heads").says


def test_the_page_is_made_from_the_rules():
    page = site_pages.rules()
    assert [name for name in all_names() if f"## {name}\n" not in page] == []
