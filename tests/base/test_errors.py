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


def raised() -> Iterator[tuple[str, set[str] | None]]:
    """Each row that some code names, with the values that it gives; None: it names several."""
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error.of"):
                row = node.args[0]
                if isinstance(row, ast.Constant):
                    yield str(row.value), set(values_of(node, nodes))
                else:
                    named = (one for one in ROWS if {one, one.rpartition(".")[2]} & texts)
                    yield from ((one, None) for one in named)


def values_of(call: ast.Call, nodes: list[ast.AST]) -> Iterator[str]:
    """Names of the values of a call, also those of the mapping that is made last before it."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg
            continue
        made = [
            node
            for node in nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and ast.unparse(node.targets[0]) == ast.unparse(keyword.value)
            and node.lineno < call.lineno
        ]
        keys = max(made, key=lambda node: node.lineno).value
        assert isinstance(keys, ast.Dict)
        yield from (str(key.value) for key in keys.keys if isinstance(key, ast.Constant))


def test_each_row_is_raised_with_the_values_that_it_names() -> None:
    assert {row for row, _ in raised()} == ROWS.keys()
    for row, values in raised():
        assert values is None or set(_VALUE.findall(ROWS[row])) == values, row


def test_a_row_names_keys_as_they_were_given() -> None:
    error = FleetError.of("fleet.one_such_machine", of="a")
    assert str(error) == "--fleet local:a: there is one such machine\n  fix: write --fleet local"
    assert error.exit_code is ExitCode.FLEET_UNAVAILABLE
    with called("search"):
        assert FleetError.of("fleet.one_such_machine", of="a").hint == "write fleet local"
