"""The text for a package index: README.md without links to files that an index does not have.

All else of the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).parent / "README.md"
LINK_TO_FILE = re.compile(r"!?\[([^\[\]]*)\]\((?!https?:|#|mailto:)[^)]*\)")


def readme_for_index() -> str:
    """README.md, in which only the words stay of an image or a link to a file."""
    text = README.read_text(encoding="utf-8")
    while LINK_TO_FILE.search(text):  # a link may hold an image
        text = LINK_TO_FILE.sub(r"\1", text)
    return text


setup(long_description=readme_for_index(), long_description_content_type="text/markdown")
