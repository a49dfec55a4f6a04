"""A training script: whether it takes the arguments of Hugging Face's Trainer, and as they are."""

import ast
from collections.abc import Iterator
from pathlib import Path

from autotune.base.errors import RenderError
from autotune.base.user_text import read_text

_CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")
_PARSER = "HfArgumentParser"


def uses_lightnings(path: Path) -> bool:
    """Whether a script hands its configuration to Lightning's DeepSpeed strategy.

    It was a plugin until Lightning 1.6.
    """
    try:
        tree = ast.parse(read_text(path))
    except (RenderError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    modules = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = (
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    )
    if not any("lightning" in (module or "") for module in (*modules, *names)):
        return False  # accelerate has a DeepSpeedPlugin, too
    return any(any(_calls(tree, name)) for name in ("DeepSpeedStrategy", "DeepSpeedPlugin"))


def own_defaults(path: Path) -> frozenset[str] | None:
    """Fields of Trainer's arguments for which a script has defaults of its own.

    It is read and not run. None where it does not tell: it cannot be read, hands other classes to
    HfArgumentParser, such as TRL's, or sets defaults elsewhere.
    """
    try:
        tree = ast.parse(read_text(path))
    except (RenderError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    trainers = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers")
        for alias in node.names
        if alias.name in _CLASSES
    }
    derived = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(_name(base) in trainers or _is_named_whole(base) for base in node.bases)
    }
    given = [one for call in _calls(tree, _PARSER) for one in _classes(call)]
    taken = [one for one in given if _name(one) in (*derived, *trainers) or _is_named_whole(one)]
    if len(taken) != 1 or any(_calls(tree, "set_defaults")):
        return None
    own = derived.get(_name(taken[0]))
    return frozenset(_fields(own)) if own is not None else frozenset()


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_named_whole(node: ast.AST) -> bool:
    """Whether it is `transformers.TrainingArguments`."""
    is_member = isinstance(node, ast.Attribute) and _name(node.value) == "transformers"
    return is_member and _name(node) in _CLASSES


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    return (
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == name
    )


def _classes(call: ast.Call) -> list[ast.expr]:
    """Classes that the parser is given."""
    given = [*call.args, *(one.value for one in call.keywords if one.arg == "dataclass_types")]
    first = given[0] if given else None
    if isinstance(first, ast.Tuple | ast.List):
        return first.elts
    return [] if first is None else [first]


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign):
            yield _name(line.target)
        elif isinstance(line, ast.Assign):
            yield from map(_name, line.targets)
