"""Pages of the site that are not written under docs/, and the links to them.

Those are the commands, which the command line tells itself, files that stand where their readers
look for them first, such as SECURITY.md, and the reports of recorded studies.
"""

import contextlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import autotune.cli  # noqa: F401  its modules add the commands
from autotune.app.pages import write_page
from autotune.cli.base import cli
from autotune.record.study import Study

REPOSITORY = Path(__file__).parent

ELSEWHERE = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
"""File of the repository -> its page."""

RECORDED = REPOSITORY / "results" / "recorded" / "studies"
"""Studies that were run, a file each: see `tests/record_gallery.py`."""

_LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file under docs/ has."""
    files.append(File.generated(config, "commands.md", content=commands()))
    for recorded in sorted(RECORDED.glob("*.json")):
        uri = f"gallery/{recorded.stem}.html"
        files.append(File.generated(config, uri, content=report_of(recorded)))
    for path, page in ELSEWHERE.items():
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, Path(path).parent, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the pages of the site."""
    if page.file.generated_by is not None:
        return markdown
    path = Path("docs", page.file.src_uri)
    return linked(markdown, path.parent, page.file.src_uri)


def linked(markdown: str, folder: Path, page: str) -> str:
    """Markdown of a file in a folder of the repository, with the links of its page.

    A file that has no page stands as its path.
    """

    def lead(match: re.Match[str]) -> str:
        target = (REPOSITORY / folder / match["path"]).resolve()
        if not target.is_relative_to(REPOSITORY):
            return match[0]
        path = target.relative_to(REPOSITORY)
        if not target.exists():
            return match[0]  # the build says that it leads nowhere
        if path.parts[0] == "docs":
            uri = Path(*path.parts[1:]).as_posix()
        elif path.as_posix() in ELSEWHERE:
            uri = ELSEWHERE[path.as_posix()]
        else:
            return f"] (`{path.as_posix()}`)"
        up = "../" * (len(Path(page).parts) - 1)
        return f"]({up}{uri}{match['anchor'] or ''})"

    # What leads to no page is no link: its brackets go as well.
    text = _LINK.sub(lead, markdown)
    return re.sub(r"\[([^\[\]]*)\] \(`", r"\1 (`", text)


def report_of(recorded: Path) -> str:
    """The page of a recorded study."""
    files = json.loads(recorded.read_text(encoding="utf-8"))["files"]
    # The page names the study's folder: as a user would see it, not where this is built.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        study = Study(Path("results"), recorded.stem)
        for name, text in files.items():
            path = study.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return write_page(study, Path("page.html")).read_text(encoding="utf-8")


def commands() -> str:
    """Every command with its flags, as a page."""
    command = typer.main.get_command(cli)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="autotune")
    return text.replace("# `autotune`", "# Commands", 1)
