"""Facts in words: a template of `templates/report/text/` writes them, as names with their texts.

Such a template begins each fact with `{{ fact("name") }}`; its text may go over several lines.
"""

import re
from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Encoded, Templates

Fact = tuple[str, str]
"""A name, and a text about it."""
_BEGIN, _END = "\x1e", "\x1f"
"""Around a name: no value holds them, since filters spell what cannot be seen."""
_LINE_END = re.compile(r"\s*\n\s*")


def tell(template: str, values: Mapping[str, Any]) -> list[Fact]:
    """The facts of a template, by its name.

    Raises:
        RenderError: It does not render.
    """
    text = Templates().text(f"report/text/{template}.j2", {**values, "fact": begin})
    facts = []
    for part in text.split(_BEGIN)[1:]:
        name, _, rest = part.partition(_END)
        facts.append((name, _LINE_END.sub(" ", rest.strip())))
    return facts


def begin(name: str) -> Encoded:
    """What begins a fact in a template's text."""
    return Encoded(f"{_BEGIN}{name}{_END}")
