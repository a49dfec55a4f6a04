"""The languages that are edited: a module for each, found by its name."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from autotune.check import json_text
from autotune.check.text_nodes import TextNode


class Language(Protocol):
    """What a module does for its language."""

    def data(self, text: str, *, reads_exponents: bool) -> dict[str, Any]: ...
    def comments(self, text: str, start: int = 0, end: int | None = None) -> Counter[str]: ...
    def dumped(self, value: Any, spelled: Mapping[str, str], newline: str, unit: str) -> str: ...
    def root(self, text: str) -> TextNode: ...


def language_of(syntax: str) -> Language:
    """The module of `json`, of `hjson` that is JSON with comments, or of `yaml`."""
    if syntax != "yaml":
        return json_text
    from autotune.check import yaml_text  # PyYAML, which JSON needs not

    return yaml_text
