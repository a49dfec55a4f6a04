"""Pages of the site that are not written under docs/, and the links to them.

Those are what the code tells itself (commands, knobs, rules, columns), files that stand
where their readers look for them first, such as SECURITY.md, and the reports of the gallery.
"""

import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

import autotune.cli  # noqa: F401  its modules add the commands
from autotune.cli.base import cli
from tests import site_pages
from tests.record_gallery import RECORDED, SIMULATED, report_of, write_simulated

REPOSITORY = Path(__file__).parent

ELSEWHERE = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "skills/autotune/SKILL.md": "agents.md",
}
"""File of the repository -> its page."""

SIMULATED_PAGES = REPOSITORY / "build" / "gallery"
"""Where the pages of simulated searches are kept once they are made; `make clean` removes them."""

_PICTURE = re.compile(r"\)\]\(gallery/(?P<name>[\w-]+)\.png\)")
"""What a picture of the gallery leads to: itself, where no page is built."""
_LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file under docs/ has."""
    for uri, told in TOLD_BY_CODE.items():
        files.append(File.generated(config, uri, content=told()))
    if not all((SIMULATED_PAGES / f"{name}.html").is_file() for name in SIMULATED):
        write_simulated(SIMULATED_PAGES)
    for name in SIMULATED:
        page = (SIMULATED_PAGES / f"{name}.html").read_text(encoding="utf-8")
        files.append(File.generated(config, f"gallery/{name}.html", content=page))
    for recorded in sorted(RECORDED.glob("*.json")):
        uri = f"gallery/{recorded.stem}.html"
        files.append(File.generated(config, uri, content=report_of(recorded)))
    for path, page in ELSEWHERE.items():
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, Path(path).parent, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/, and pictures of the gallery, to the pages of the site."""
    if page.file.generated_by is not None:
        return markdown
    markdown = _PICTURE.sub(r")](gallery/\g<name>.html)", markdown)
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


def commands() -> str:
    """Every command with its flags, as a page."""
    command = typer.main.get_command(cli)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="autotune")
    return text.replace("# `autotune`", "# Commands", 1)


TOLD_BY_CODE = {
    "commands.md": commands,
    "knobs.md": site_pages.knobs,
    "rules.md": site_pages.rules,
    "table.md": site_pages.table,
}
"""Page -> what writes it."""
