"""The house rules that a machine can check: imports, lengths, what is banned."""

import ast
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "autotune"
MODULES = sorted(PACKAGE.rglob("*.py"))

_ROW = re.compile(r"^\| `(\w+)/` \|", re.MULTILINE)

_MAP = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A map of")[2]

ROOMS = _ROW.findall(_MAP)
"""The rooms from the top to the bottom; a room imports from itself and from those below it."""

LOOSE = {"__init__.py", "__main__.py", "testing.py"}
"""Modules that may stand at the top of the package."""


def dotted(path: Path) -> str:
    """`autotune/rules/base.py` -> `autotune.engines.deepspeed.rules.base`."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {dotted(path) for path in MODULES}


def room(module: str) -> str:
    """`autotune.engines.deepspeed.rules.base` -> `rules`; the package itself -> ``."""
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Every module that a file imports, at any depth, as (line, dotted name)."""
    found = []
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in KNOWN else base) for name in names]
    return found


def ours(path: Path) -> list[tuple[int, str]]:
    return [(line, name) for line, name in imports_of(path) if name.split(".")[0] == "autotune"]


def test_the_map_names_every_room_and_no_other() -> None:
    here = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(ROOMS) == sorted(here)


def test_no_module_stands_loose_at_the_top() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} <= LOOSE


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_one_way(path: Path) -> None:
    if path.parent == PACKAGE:
        return
    allowed = {"", "__version__", *ROOMS[ROOMS.index(room(dotted(path))) :]}
    wrong = [
        f"{path.name}:{line} imports {name}"
        for line, name in ours(path)
        if room(name) not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("path", sorted((PACKAGE / "trial").rglob("*.py")), ids=dotted)
def test_ranks_import_the_contract_and_nothing_else_of_ours(path: Path) -> None:
    allowed = {"autotune.contract", "autotune.trial"}
    wrong = [
        f"{path.name}:{line} imports {name}"
        for line, name in ours(path)
        if not any(name == top or name.startswith(f"{top}.") for top in allowed)
    ]
    heavy = {"optuna", "pandas", "pydantic", "rich", "typer"}
    wrong += [
        f"{path.name}:{line} imports {name}"
        for line, name in imports_of(path)
        if name.split(".")[0] in heavy
    ]
    assert not wrong


@pytest.mark.parametrize(
    "path",
    [PACKAGE / "__init__.py", *sorted((PACKAGE / "contract").glob("*.py"))],
    ids=dotted,
)
def test_what_every_rank_pays_for_is_the_standard_library(path: Path) -> None:
    loaded = ast.parse(path.read_text(encoding="utf-8")).body
    names = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in loaded
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    others = {name for name in names if not name.startswith("autotune.contract.")}
    assert {name.split(".")[0] for name in others} <= set(sys.stdlib_module_names)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        dotted(path): {name for _, name in ours(path)} & KNOWN - {dotted(path), "autotune"}
        for path in MODULES
    }
    while leaves := [module for module, targets in graph.items() if not targets]:
        for leaf in leaves:
            del graph[leaf]
        for targets in graph.values():
            targets.difference_update(leaves)
    assert not graph, f"a circle among {sorted(graph)}"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_data_is_never_code(path: Path) -> None:
    banned = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "pickle.load", "pickle.loads"}
    calls = [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    assert not [f"{path.name}:{line} calls {name}" for line, name in calls if name in banned]


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_files_say_what_they_are_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text or ast.get_docstring(ast.parse(text)), "no module docstring"


def test_no_two_classes_have_one_name() -> None:
    """One name, one idea; private ones are nobody else's business."""
    where: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(dotted(path))
    assert not {name: modules for name, modules in where.items() if len(modules) > 1}


def test_typer_is_not_reached_through_what_it_once_stood_on() -> None:
    # Typer stopped depending on click in 0.29: it may be absent, and its classes are others.
    names = {path: {name.split(".")[0] for _, name in imports_of(path)} for path in MODULES}
    wrong = [dotted(path) for path in MODULES if "click" in names[path]]
    assert not wrong
