"""The house rules that a machine can check: imports, lengths, what is banned."""

import ast
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from autotune.engines.communication import knobs
from autotune.engines.deepspeed.knobs import KNOBS
from tests.captured import captured
from tests.cases import data_beside

DATA = data_beside(__file__)

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "autotune"
MODULES = sorted(PACKAGE.rglob("*.py"))

_ROW = re.compile(r"^\| `(\w+)/` \|", re.MULTILINE)

_BUDGETS, _, _MAP = (
    (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A map of")
)

ROOMS = _ROW.findall(_MAP)
"""The rooms from the top to the bottom; a room imports from itself and from those below it."""

LOOSE = {"__init__.py", "__main__.py", "testing.py"}
"""Modules that may stand at the top of the package."""


def dotted(path: Path) -> str:
    """`autotune/space/rule.py` -> `autotune.space.rule`."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {dotted(path) for path in MODULES}


def room(module: str) -> str:
    """`autotune.space.rule` -> `space`; the package itself -> ``."""
    return module.split(".")[1] if "." in module else ""


@cache
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


def test_no_room_has_more_lines_than_its_budget() -> None:
    """A change that needs more says what it removes."""
    budgets = dict(re.findall(r"^\| `(\w+)/` \| ([\d,]+) \|$", _BUDGETS, re.MULTILINE))
    assert list(budgets) == ROOMS
    lines = {
        room: sum(len(path.read_bytes().splitlines()) for path in (PACKAGE / room).rglob("*.py"))
        for room in ROOMS
    }
    over = {
        room: (lines[room], budget)
        for room, budget in budgets.items()
        if lines[room] > int(budget.replace(",", ""))
    }
    assert not over, f"lines and budgets in CONTRIBUTING.md: {over}"


def test_no_module_stands_loose_at_the_top() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} <= LOOSE


def test_imports_point_one_way() -> None:
    wrong = [
        f"{dotted(path)}:{line} imports {name}"
        for path in MODULES
        if path.parent != PACKAGE
        for line, name in ours(path)
        if room(name) not in {"", "__version__", *ROOMS[ROOMS.index(room(dotted(path))) :]}
    ]
    assert not wrong


def test_ranks_import_the_contract_and_two_files_and_nothing_else_of_ours() -> None:
    allowed = {
        "autotune.contract",
        "autotune.trial",
        "autotune.base.keeper",
        "autotune.base.nested",
    }
    heavy = {"optuna", "pandas", "pydantic", "rich", "typer"}
    modules = sorted((PACKAGE / "trial").rglob("*.py"))
    wrong = [
        f"{dotted(path)}:{line} imports {name}"
        for path in modules
        for line, name in ours(path)
        if not any(name == top or name.startswith(f"{top}.") for top in allowed)
    ]
    wrong += [
        f"{dotted(path)}:{line} imports {name}"
        for path in modules
        for line, name in imports_of(path)
        if name.split(".")[0] in heavy
    ]
    assert not wrong


@pytest.mark.parametrize(
    "path", [PACKAGE / "__init__.py", *sorted((PACKAGE / "contract").glob("*.py"))], ids=dotted
)
def test_what_every_rank_pays_for_is_the_standard_library(path: Path) -> None:
    loaded = ast.parse(path.read_text(encoding="utf-8")).body
    names = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in loaded
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    # The package itself is one of the paths.
    others = {name for name in names - {"autotune"} if not name.startswith("autotune.contract.")}
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


MOST_OF_A_SEARCH = 216
"""Modules of the package that a search may load before it is asked for an engine and a fleet."""

_LOADS = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {blocked!r} or name.startswith(tuple(f"{{room}}." for room in {blocked!r})):
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
for name in {names!r}:
    importlib.import_module(name)
print(*[name for name in sys.modules if name.split(".")[0] == "autotune"])
"""


def loaded_by(*names: str, blocked: Sequence[str] = ()) -> set[str]:
    """Modules of the package that a fresh Python loads with some, where rooms are not there."""
    code = _LOADS.format(names=names, blocked=[f"autotune.{room}" for room in blocked])
    ended = captured([sys.executable, "-c", code])
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


def reached_from(module: str) -> set[str]:
    """Modules of the package that one imports at any depth, inside of functions too."""
    files = {dotted(path): path for path in MODULES}
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in files and name not in found:
            found.add(name)
            parents = [name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)]
            waiting += [*parents, *(target for _, target in ours(files[name]))]
    return found


def test_a_search_loads_few_modules() -> None:
    """Plug-ins bring what only some searches need, such as an engine or a transport."""
    root = "autotune.app.api.searches"
    assert len(loaded_by(root)) <= MOST_OF_A_SEARCH
    assert len(reached_from(root)) <= MOST_OF_A_SEARCH


def test_an_engine_loads_no_reader_of_others_files() -> None:
    names = ("autotune.engines.deepspeed.plugin", "autotune.engines.deepspeed.engine")
    readers = ("autotune.engines.deepspeed.sources", "autotune.engines.launches")
    assert not [name for name in loaded_by(*names) if name.startswith(readers)]


def test_check_and_its_readers_stand_alone() -> None:
    names = [name for name in KNOWN if room(name) == "check"]
    names += [name for name in KNOWN if name.startswith("autotune.engines.deepspeed.sources")]
    loaded_by(*sorted(names), blocked=("search", "fleet", "record", "report"))


def test_data_is_never_code() -> None:
    banned = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "pickle.load", "pickle.loads"}
    wrong = [
        f"{dotted(path)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in banned
    ]
    assert not wrong


STARTS = {
    "base/keeper.py": {"os.execvp", "os.fork"},
    "base/guarded_process.py": {"subprocess.Popen"},
    "fleet/node/bootstrap.py": {"os.execv", "subprocess.call"},
    "fleet/node/ranks.py": {"subprocess.Popen"},
    "fleet/node/warm.py": {"subprocess.Popen"},
    "fleet/transports/ray_driver.py": {"subprocess.Popen"},
    "trial/guest/launcher.py": {"subprocess.Popen"},
    "trial/launcher.py": {"os.execv", "os.fork"},
    "trial/warm.py": {"os.fork"},
}
"""What starts processes: `GuardedProcess`, a node its ranks, an actor of Ray a node's keeper."""

_STARTER = re.compile(
    r"os\.(system|popen|startfile|fork\w*|exec\w+|spawn\w+|posix_spawn\w*)|pty\.(fork|spawn)"
    r"|subprocess\.(?!(PIPE|STDOUT|DEVNULL|\w+Error|TimeoutExpired|CompletedProcess)$)\w+"
    r"|(\w+\.)*(multiprocessing(?!\.errors\.)|concurrent\.futures(?!\.ThreadPoolExecutor$))\b.*|(asyncio|anyio)\..*(process|subprocess).*"
    r"|(psutil|_posixsubprocess|pexpect|fabric|invoke|sh|plumbum)\.(Popen|fork_exec|spawn|run)"
    r"|.*\b(ProcessPoolExecutor|DataLoader|start_processes)"
    r"|torch\.distributed\.(run|launch\w*)(\.\w+)*"
    r"|(posix|_winapi)\..*"
)


def starters(tree: ast.AST) -> set[str]:
    """Names of what a file may start processes with; a type of `Popen` starts none."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for noted in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if noted is not None
        for inner in ast.walk(noted)
    }
    modules = {
        (alias.asname or alias.name): alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in annotations:
            first, dot, rest = ast.unparse(node).partition(".")
            found.add(modules.get(first, first) + dot + rest)
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if _STARTER.fullmatch(name)}


def test_every_process_is_started_in_the_one_way() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in MODULES
        if (names := starters(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == STARTS


@pytest.mark.cases("code")
def test_a_start_of_a_process_is_seen(code: str) -> None:
    assert starters(ast.parse(code))


@pytest.mark.cases("code")
def test_what_starts_no_process_is_not(code: str) -> None:
    assert not starters(ast.parse(code))


def test_files_say_what_they_are_for() -> None:
    texts = {dotted(path): path.read_text(encoding="utf-8") for path in MODULES}
    assert not [
        name for name, text in texts.items() if text and not ast.get_docstring(ast.parse(text))
    ]


def test_docstrings_put_the_noun_first() -> None:
    """Docstrings of attributes included: a reader of "Of a soak." has to look for the noun."""
    wrong = [
        f"{dotted(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and str(node.value.value).lstrip().startswith("Of ")
    ]
    assert not wrong


def test_typer_is_not_reached_through_what_it_once_stood_on() -> None:
    # Typer stopped depending on click in 0.29: it may be absent, and its classes are others.
    names = {path: {name.split(".")[0] for _, name in imports_of(path)} for path in MODULES}
    wrong = [dotted(path) for path in MODULES if "click" in names[path]]
    assert not wrong


DEEPSPEED = ("engines/deepspeed/", "trial/guest/", "check/")
"""Rooms that are about DeepSpeed: the engine, and the check of ds_config files."""

NAMES_DEEPSPEED = DATA["NAMES_DEEPSPEED"]
"""Every other file that names DeepSpeed, and why; an entry goes as soon as its file does not."""

OF_DEEPSPEED = KNOBS.keys() - knobs.KNOBS.keys()
"""Knobs of no other engine."""

_DEEPSPEED = re.compile(r"deepspeed|ds_config", re.IGNORECASE)


def names_deepspeed(tree: ast.AST) -> bool:
    """Whether code imports, names or spells something of DeepSpeed's; words for people may."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        names: list[str | None] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_name = id(node) not in docstrings and not re.search(r"\s", node.value)
            if is_name and node.value in OF_DEEPSPEED and "." in node.value:
                return True
            names = [node.value] if is_name else []
        elif isinstance(node, ast.ImportFrom):
            names = [node.module, *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.arg | ast.keyword):
            names = [node.arg]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        # The version is a field of every recorded environment, whatever the engine.
        if any(name and name != "deepspeed_version" and _DEEPSPEED.search(name) for name in names):
            return True
    return False


def test_only_its_rooms_and_a_few_files_name_deepspeed() -> None:
    found = {
        name
        for path in MODULES
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(DEEPSPEED)
        and names_deepspeed(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(NAMES_DEEPSPEED)


def test_a_name_of_deepspeed_is_seen() -> None:
    for code in ("import deepspeed", "x = 'zero.stage'", "ds_config = 1", "f(deepspeed=2)"):
        assert names_deepspeed(ast.parse(code)), code
    for code in ("'''About DeepSpeed.'''", "x = 'tell of DeepSpeed'", "e.deepspeed_version"):
        assert not names_deepspeed(ast.parse(code)), code
