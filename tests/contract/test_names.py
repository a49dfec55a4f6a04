"""What `autotune.contract` hands out: the names of its table, whole and alone."""

import ast
from pathlib import Path

import pytest

from autotune import contract

PACKAGE = Path(contract.__file__).parent.parent


def test_every_name_of_the_table_is_there():
    assert all(hasattr(contract, name) for name in contract._PARTS)


@pytest.mark.parametrize("name", ["json", "Path", "dataclass", "MAX_FILE_BYTES", "_MAX_INT"])
def test_what_its_parts_import_or_keep_is_not_handed_out(name):
    with pytest.raises(AttributeError, match=name):
        getattr(contract, name)


def test_the_table_has_every_name_that_modules_ask_for():
    """Mypy cannot see that: to it, the package has every name of its parts."""
    asked = {
        alias.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "autotune.contract"
        for alias in node.names
    }
    parts = {path.stem for path in (PACKAGE / "contract").glob("*.py")}
    assert asked - parts <= contract._PARTS.keys()
