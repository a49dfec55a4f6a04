"""Benchmarks drive an export's train.py by its functions, which no type checker follows."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "autotune" / "trial" / "scripts" / "train.py"


def _functions() -> dict[str, int]:
    """Function of train.py -> how many arguments it takes."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    return {
        node.name: len(node.args.args) for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def _calls(path: Path) -> list[tuple[str, int]]:
    """Calls of `script.NAME`, each with how many arguments it gives."""
    return [
        (node.func.attr, len(node.args) + len(node.keywords))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "script"
    ]


@pytest.mark.parametrize("name", ["plain_training", "meter_cost", "autotuned_training"])
def test_the_exported_script_is_called_as_it_is(name):
    calls = _calls(REPOSITORY / "benchmarks" / f"{name}.py")
    assert "steps" in {called for called, _ in calls}
    functions = _functions()
    for called, n_arguments in calls:
        assert functions[called] == n_arguments, called
