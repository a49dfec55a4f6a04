"""The documentation builds as a site, and every link in it leads somewhere."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.captured import captured

REPOSITORY = Path(__file__).resolve().parents[2]
NETWORK = re.compile(r"""<(?:script|link|img)\b[^>]*(?:src|href)="https?:[^"]*["']""")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site of these pages and of one with a link that leads nowhere, and what the build said.

    It fails in the end, once all pages are written.
    """
    folder = tmp_path_factory.mktemp("site")
    pages = shutil.copytree(REPOSITORY / "docs", folder / "docs")
    (pages / "lost.md").write_text("[a page](nowhere.md)\n")
    shipped = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for ours, there in (
        ("docs_dir: docs", f"docs_dir: {pages}"),
        ("[mkdocs_hooks.py]", f"[{REPOSITORY / 'mkdocs_hooks.py'}]"),
        ("  - Glossary:", "  - Lost: lost.md\n  - Glossary:"),
    ):
        assert shipped.count(ours) == 1
        shipped = shipped.replace(ours, there)
    (folder / "mkdocs.yml").write_text(shipped)
    command = (sys.executable, "-m", "mkdocs", "build", "--strict")
    done = captured(
        [*command, "--config-file", folder / "mkdocs.yml", "--site-dir", folder / "site"],
        cwd=REPOSITORY,
        timeout=300,
    )
    assert done.returncode != 0
    return folder / "site", done.stderr


@pytest.fixture(scope="module")
def site(built: tuple[Path, str]) -> Path:
    return built[0]


def test_a_link_that_leads_nowhere_ends_the_build_and_no_other_does(built):
    (warning,) = (line for line in built[1].splitlines() if line.startswith(("WARNING", "ERROR")))
    assert "nowhere.md" in warning


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.glob("**/*.html")}
    written = {
        path.relative_to(REPOSITORY / "docs").with_suffix(".html").as_posix()
        for path in (REPOSITORY / "docs").glob("**/*.md")
    }
    assert written <= pages
    assert {"commands.html", "security.html", "contributing.html", "examples.html"} <= pages
    assert {"knobs.html", "rules.html", "table.html"} <= pages


def test_recorded_studies_have_pages_that_say_how_they_were_measured(site: Path) -> None:
    gallery = (REPOSITORY / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = (site / "gallery.html").read_text(encoding="utf-8")
    records = list((REPOSITORY / "results" / "recorded" / "studies").glob("*.json"))
    assert records
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert json.loads(text)["command"] in " ".join(gallery.split())
        assert "/site-packages/" not in text
        page = site / "gallery" / f"{record.stem}.html"
        assert page.stat().st_size < 1_500_000
        assert "CPU RANKS" in page.read_text(encoding="utf-8")
        assert f'href="gallery/{record.stem}.html"' in shown


def test_links_lead_to_files_of_the_repository() -> None:
    """A forge shows the pages as they are, without those that only the site has."""
    link = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
    for path in (REPOSITORY / "docs").glob("**/*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        lost = [found for found in link.findall(text) if not (path.parent / found).exists()]
        assert not lost, f"{path.name}: {lost}"


def test_commands_are_those_of_the_command_line(site: Path) -> None:
    page = (site / "commands.html").read_text(encoding="utf-8")
    for name in ("search", "diagnose", "check", "--global-batch", "--what-if"):
        assert name in page


def test_files_outside_docs_are_pages_or_paths(site: Path) -> None:
    assert 'href="security.html"' in (site / "faults.html").read_text(encoding="utf-8")
    trainer = (site / "scripts" / "trainer.html").read_text(encoding="utf-8")
    assert 'href="../examples.html"' in trainer
    assert "<code>results/recorded/versions</code>" in (site / "versions.html").read_text("utf-8")


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    for page in site.glob("**/*.html"):
        found = [
            tag
            for tag in NETWORK.findall(page.read_text(encoding="utf-8"))
            if 'rel="canonical"' not in tag
        ]
        assert not found, f"{page.name}: {found}"
