"""The text for a package index: README.md with links that lead somewhere from there.

All else of the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SETTINGS = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
FILES = SETTINGS["project"]["urls"]["Repository"] + "/blob/main/"


def readme_for_index() -> str:
    """README.md, in which links to files of the repository are whole addresses."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#|mailto:)", f"]({FILES}", text)


setup(long_description=readme_for_index(), long_description_content_type="text/markdown")
