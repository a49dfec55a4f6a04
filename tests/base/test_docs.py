"""Pages of the documentation become links where somebody has published them."""

import io
import re
from pathlib import Path

import pytest
from rich.text import Text

from autotune.base import docs
from autotune.base.templates import Templates
from autotune.check.rule_list import rule_names
from autotune.report.terminal.console import SafeConsole

ROOT = "https://example.org/autotune"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "docs_root", lambda: ROOT)


def test_the_address_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metadata:
        def get_all(self, _: str) -> list[str]:
            return ["Repository, https://example.org/code", f"Documentation, {ROOT}/"]

    monkeypatch.setattr("importlib.metadata.metadata", lambda _: Metadata())
    assert docs.docs_root.__wrapped__() == ROOT


def test_nothing_is_a_link_while_nobody_has_published_it() -> None:
    assert docs.docs_root() == "", "pyproject.toml names no address"
    assert list(docs.linked("see docs/spaces.md")) == [("see docs/spaces.md", "")]
    assert docs.address_of_rule("zero.stage") is None


@pytest.mark.usefixtures("published")
def test_a_page_in_a_terminal_is_a_link_and_its_text_stays() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    console.print(Text("name them in a space (docs/spaces.md#knobs), see docs/how-to/rent.md"))
    text = out.getvalue()
    found = re.findall(r"\x1b\]8;id=\d+;([^\x1b]+)\x1b\\([\w./#-]+)", text)
    assert found == [
        (f"{ROOT}/spaces.html#knobs", "docs/spaces.md#knobs"),
        (f"{ROOT}/how-to/rent.html", "docs/how-to/rent.md"),
    ]
    plain = io.StringIO()
    SafeConsole(file=plain, width=80).print("see docs/spaces.md")
    assert plain.getvalue() == "see docs/spaces.md\n"


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("path", ["/home/u/docs/notes.md", "../docs/notes.md", "my-docs/notes.md"])
def test_a_file_of_the_user_is_no_page(path: str) -> None:
    assert list(docs.linked(f"see {path}")) == [(f"see {path}", "")]


@pytest.mark.usefixtures("published")
def test_a_page_on_a_page_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "x.j2").write_text("{{ text | linked }}", encoding="utf-8")
    told = Templates(tmp_path).text("x.j2", {"text": "<b> docs/guard.md, and others"})
    assert told == f'&lt;b&gt; <a href="{ROOT}/guard.html">docs/guard.md</a>, and others'


@pytest.mark.usefixtures("published")
def test_a_rule_leads_to_its_section() -> None:
    toc = pytest.importorskip("markdown.extensions.toc", reason="comes with MkDocs")
    for rule in rule_names():
        assert docs.address_of_rule(rule) == f"{ROOT}/rules.html#{toc.slugify(rule, '-')}"
