"""Errors whose texts are rows: each row is raised somewhere, with the values that it names."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import autotune
from autotune.base.errors import ExitCode, FleetError
from autotune.base.flags import called

PACKAGE = Path(autotune.__file__).parent
ROWS = {
    ".".join((*path.parent.relative_to(PACKAGE).parts, name)): "\n".join(texts)
    for path in PACKAGE.rglob("errors.json")
    for name, texts in json.loads(path.read_text(encoding="utf-8")).items()
}
_VALUE = re.compile(r"(?<!\{)\{(\w+)")


def raised() -> Iterator[tuple[str, set[str]]]:
    """Each row that some code names, with the values that it gives."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error.of"):
                row = node.args[0]
                assert isinstance(row, ast.Constant), path
                yield str(row.value), {str(keyword.arg) for keyword in node.keywords}


def test_each_row_is_raised_with_the_values_that_it_names() -> None:
    found = dict(raised())
    assert found.keys() == ROWS.keys()
    for row, values in raised():
        assert set(_VALUE.findall(ROWS[row])) == values, row


def test_a_row_names_keys_as_they_were_given() -> None:
    error = FleetError.of("fleet.one_such_machine", of="a")
    assert str(error) == "--fleet local:a: there is one such machine\n  fix: write --fleet local"
    assert error.exit_code is ExitCode.FLEET_UNAVAILABLE
    with called("search"):
        assert FleetError.of("fleet.one_such_machine", of="a").hint == "write fleet local"
