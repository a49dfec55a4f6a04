"""What runs in a user's ranks runs in their Python, which may be 3.10."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import data_beside

PACKAGE = Path(__file__).resolve().parents[3] / "autotune"
FILES = sorted(
    [
        PACKAGE / "__init__.py",
        *(PACKAGE / "contract").rglob("*.py"),
        *(PACKAGE / "trial").rglob("*.py"),
    ]
)

NEWER = data_beside(__file__)["NEWER"]
"""Names that modules of the standard library have since 3.11 or later."""
NEWER_MODULES = {"tomllib", "wsgiref.types", "annotationlib", "compression", "string.templatelib"}
NEWER_BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}
NEWER_METHODS = {"add_note"}


def too_new(tree: ast.AST) -> Iterator[str]:
    """Names in a module that 3.10 has not, but for what type checkers or newer releases read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If):
            asked = ast.unparse(node.test)
            if "sys.version_info" in asked:
                continue
            if "TYPE_CHECKING" in asked:
                yield from too_new(ast.Module(body=node.orelse, type_ignores=[]))
                continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            if node.module in NEWER_MODULES:
                yield str(node.module)
            newer = NEWER.get(node.module or "", set())
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name in newer)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NEWER_MODULES)
        if isinstance(node, ast.Attribute):
            if node.attr in NEWER.get(ast.unparse(node.value), set()):
                yield ast.unparse(node)
            if node.attr in NEWER_METHODS:
                yield node.attr
        if isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
            yield node.id
        yield from too_new(node)


def test_python_3_10_reads_what_ranks_run() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))
        assert not list(too_new(tree)), path


@pytest.mark.cases("text")
def test_the_test_finds_what_is_too_new(text: str) -> None:
    assert list(too_new(ast.parse(text)))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older parser refuses it anyway")
def test_the_parser_finds_newer_syntax() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("try:\n    pass\nexcept* ValueError:\n    pass", feature_version=(3, 10))
