"""Links to the documentation, where somebody has published it.

`[project.urls]` of pyproject.toml names the address as `Documentation`: that of the site that
`make docs` builds. While it names none, a page is told by its path, such as `docs/search.md`.
"""

import re
from collections.abc import Iterator
from functools import cache

_PAGE = re.compile(r"(?<![\w/.-])docs/(?P<name>[\w/-]+)\.md(?P<anchor>#[\w-]+)?")


@cache
def docs_root() -> str:
    """Address of the site, without a slash at its end; empty: nobody has published it."""
    from importlib.metadata import PackageNotFoundError, metadata  # slow to load

    try:
        urls = metadata("autotune").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = (re.fullmatch(r"Documentation, (https://\S+?)/*", url) for url in urls)
    return next((url[1] for url in found if url), "")


def address_of_rule(rule: str) -> str | None:
    """Address of a rule's section; None: nobody has published it."""
    anchor = re.sub(r"[^\w-]", "", rule).lower()
    return f"{docs_root()}/rules.html#{anchor}" if docs_root() else None


def linked(text: str) -> Iterator[tuple[str, str]]:
    """A text in pieces, each with the address of the page that it names; empty: it names none."""
    at = 0
    for page in _PAGE.finditer(text) if docs_root() and "docs/" in text else ():
        yield text[at : page.start()], ""
        yield page[0], f"{docs_root()}/{page['name']}.html{page['anchor'] or ''}"
        at = page.end()
    yield text[at:], ""
