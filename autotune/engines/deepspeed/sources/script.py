"""A training script, read and not run: who trains in it, and with which arguments of Trainer's."""

import ast
import contextlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.user_text import read_text
from autotune.engines.deepspeed.sources.programs import PROGRAMS

_TRAINERS = ("transformers", "trl")
"""Packages whose trainers are Hugging Face's Trainer, or derive from it."""
_CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments")
_TRLS: Mapping[str, Mapping[str, Any]] = PROGRAMS["trainer"]["trls"]
"""TRL's configurations of trainers -> defaults that differ from Trainer's."""
_PARSER = "HfArgumentParser"
_OWN_LOOP = "PPOTrainer"
"""TRL's trainer with a loop of its own over an `Accelerator`."""
_DATA = (".json", ".yaml", ".yml", ".args")
_FOR_THE_CPU = ("DeepSpeedCPUAdam", "DeepSpeedCPULion")
_FOR_DEVICES = ("Adam", "AdamW", "SGD", "Adafactor", "FusedAdam", "FusedLamb", "Lion")
"""Optimizers that DeepSpeed takes from a script beside an offload, and that it refuses."""
_MAKERS = (*_CLASSES, "parse_args_into_dataclasses")
_PARSING = ("parse_args_into_dataclasses", "parse_args_and_config")
_READ = ("parse_args_and_config", "parse_dict", "parse_json_file", "parse_yaml_file")
_TELL_ZERO = ("Accelerator", "HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig", "Init", *_READ)
"""What beside Trainer's arguments lets `from_pretrained` know of ZeRO from then on."""
_LOADER = re.compile("load|data|iter|dl|batch|train|set|eval|val", re.IGNORECASE)
_MODEL = re.compile(r"AutoModel\w*|(?!Auto)\w+(?:For[A-Z]\w+|LMHeadModel)")
"""Names of classes of whole models; others are of adapters, tokenizers and processors."""
_ABOUT_ZERO = re.compile("zero|deepspeed", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def uses_lightnings(path: Path) -> bool:
    """Whether a script hands its configuration to Lightning's DeepSpeed strategy.

    It was a plugin until Lightning 1.6.
    """
    tree = _tree(path)
    if not any("lightning" in f"{module}{alias.name}" for module, alias in _imports(tree)):
        return False  # accelerate has a DeepSpeedPlugin, too
    return any(any(_calls(tree, name)) for name in ("DeepSpeedStrategy", "DeepSpeedPlugin"))


def own_defaults(path: Path) -> frozenset[str] | None:
    """Fields of Trainer's arguments for which a script has defaults of its own.

    It is read and not run. None where it does not tell: it cannot be read, hands other classes to
    HfArgumentParser, such as TRL's, or sets defaults elsewhere.
    """
    tree = _tree(path)
    trainers = {
        alias.asname or alias.name
        for module, alias in _imports(tree)
        if module.startswith("transformers") and alias.name in _CLASSES
    }
    derived = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(_name(base) in trainers or _is_named_whole(base) for base in node.bases)
    }
    if (trls := _trls_parsed(tree)) is not None:
        return frozenset(_TRLS[trls])
    given = [one for call in _calls(tree, _PARSER) for one in _classes(call)]
    taken = [one for one in given if _name(one) in (*derived, *trainers) or _is_named_whole(one)]
    if len(taken) != 1 or any(_calls(tree, "set_defaults")):
        return None
    made = derived.get(_name(taken[0]))
    return frozenset(_fields(made)) if made is not None else frozenset()


def _trls_parsed(tree: ast.AST) -> str | None:
    calls = [*_calls(tree, "TrlParser"), *_calls(tree, _PARSER)]
    found = [_name(one) for call in calls for one in _classes(call) if _name(one) in _TRLS]
    return found[0] if len(found) == 1 and not any(_calls(tree, "set_defaults")) else None


def trls_defaults(path: Path, given: Mapping[str, Any], unread: Container[str]) -> dict[str, Any]:
    """Values of TRL's configuration of a script where nobody gives them; none: it has none.

    Args:
        path: The script.
        given: Trainer's arguments.
        unread: Those that are given, and not known.
    """
    tree = _tree(path)
    made = [name for name in _TRLS if any(map(_is_output, _calls(tree, name)))]
    name = made[0] if len(made) == 1 else _trls_parsed(tree)
    if name is None:
        return {}
    defaults = {"bf16": not given.get("fp16"), **_TRLS[name]}
    if "fp16" in unread:
        del defaults["bf16"]
    return {one: value for one, value in defaults.items() if one not in unread}


def files_named(path: Path) -> list[str]:
    """The files of configurations or arguments that a script names in full, by a literal."""
    texts = (node.value for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant))
    return list(
        dict.fromkeys(
            one for one in texts if isinstance(one, str) and one.endswith(_DATA) and " " not in one
        )
    )


def trains_with(path: Path) -> bool | None:
    """Whether a script trains with Hugging Face's Trainer; None: it does not tell.

    One that makes an `Accelerator` itself does not, unless it makes a Trainer as well.
    """
    tree = _tree(path)
    imported = [
        alias.name for module, alias in _imports(tree) if module.split(".")[0] in _TRAINERS
    ]
    if any(_calls(tree, "Accelerator")):
        trainers = (name for name in imported if name.endswith("Trainer") and name != _OWN_LOOP)
        return any(any(_calls(tree, name)) for name in trainers)
    named = (
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _name(node.value) in _TRAINERS
    )
    is_trainers = any(
        name == _PARSER or name in _CLASSES or name.endswith("Trainer")
        for name in (*imported, *named)
    )
    return True if is_trainers else None


_TAKES_MORE = re.compile(
    r"parse_known_args|return_remaining_strings|_add_action|sys\.argv(\.\w+\(|[^=\n]*(?<![=!<>])=(?!=))"
)
"""What lets a script take words that its parsers do not know, or changes them before."""


def refuses_rank_flag(path: Path) -> bool:
    """Whether all parsers of a script are its own, and none of them takes `--local_rank`."""
    taken = taken_names(path)
    is_read = re.search("local[_-]rank", ast.unparse(_tree(path))) is not None
    return taken is not None and not (taken[1] or is_read)


def taken_names(path: Path) -> tuple[frozenset[str], frozenset[str]] | None:
    """Names that the parsers of a script take, and packages of whose classes they take more.

    Returns:
        None where one of them cannot be read: another module may add to it, or made its classes.
    """
    tree = _tree(path)
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    of_argparse = any(_calls(tree, "ArgumentParser")) and any(_calls(tree, "parse_args"))
    makers = ("ArgumentParser",) if of_argparse else (_PARSER, "TrlParser")
    parsing = ("parse_args",) if of_argparse else _PARSING
    asked = [call for name in parsing for call in _calls(tree, name)]
    parsers = {_name(getattr(call.func, "value", call)) for call in asked} - {""}
    shared = parsers | _made_by(nodes, "add_argument_group")
    given = [one for call in calls for one in (*call.args, *(k.value for k in call.keywords))]
    flags = [one for call in _calls(tree, "add_argument") for one in call.args]
    if (
        not asked
        or (of_argparse and any(_calls(tree, _PARSER)))
        or any(call.args or call.keywords for call in asked)
        or not parsers <= set().union(*(_made_by(nodes, one) for one in makers))
        or any(_name(one) in shared for one in given)
        or any(one.arg == "parents" for call in calls for one in call.keywords)
        or not all(isinstance(one, ast.Constant) for one in flags)
        or _TAKES_MORE.search(ast.unparse(tree))
    ):
        return None
    names = {str(one.value) for one in flags if isinstance(one, ast.Constant)}
    names = {one.lstrip("-").replace("-", "_") for one in names}
    packages = set[str]()
    imported = {one.asname or one.name: (module, one.name) for module, one in _imports(tree)}
    made = [call for one in makers for call in _calls(tree, one)]
    todo = [] if of_argparse else [one for call in made for one in _classes(call) or (call,)]
    seen = set[str]()
    for one in todo:
        own = [n for n in nodes if isinstance(n, ast.ClassDef) and n.name == _name(one)]
        module, name = imported.get(_name(one), (_name(getattr(one, "value", one)), _name(one)))
        package = module.partition(".")[0]
        if isinstance(one, ast.Name) and own and one.id not in seen:
            seen.add(one.id)
            todo += [base for node in own for base in node.bases]
            names |= {field for node in own for field in _fields(node)}
        elif package in _TRAINERS and (package == "trl" or name in _CLASSES):
            packages.add(package)
        elif not (isinstance(one, ast.Name) and (one.id in seen or one.id == "object")):
            return None
    return frozenset(names), frozenset(packages)


def _made_by(nodes: Sequence[ast.AST], name: str) -> set[str]:
    calls, others = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Assign):
            is_call = isinstance(node.value, ast.Call) and _name(node.value.func) == name
            (calls if is_call else others).update(map(_name, node.targets))
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return calls - others


def brings_cpu_optimizer(path: Path) -> bool | None:
    """Whether the optimizer that a script hands to DeepSpeed is one of DeepSpeed's for the CPU.

    None: it does not tell.
    """
    if any(any(_calls(_tree(path), name)) for name in _FOR_THE_CPU):
        return True
    return False if hands_optimizer(path, "initialize") else None


def hands_optimizer(path: Path, taker: str) -> bool:
    """Whether a script hands an optimizer of torch's or its like to calls of a name."""
    tree = _tree(path)
    places = _places(tree)
    for call in _calls(tree, taker):
        nodes = [node for node in places if places[node][0] is places[call][0]]
        at_top = [node for node in places if places[node][0] is tree]
        local = {name for node in nodes for name in _names_given(node)}
        given = {_name(one) for one in (*call.args, *(one.value for one in call.keywords))}
        for name in _FOR_DEVICES:
            if given & (_made_by(nodes, name) | (_made_by(at_top, name) - local)):
                return True
    return False


def reads_name(path: Path, name: str) -> bool:
    """Whether a script reads an attribute or a variable of a name, or has it as a text."""
    return any(
        name in (_name(node), getattr(node, "value", None))
        for node in ast.walk(_tree(path))
        if not isinstance(getattr(node, "ctx", None), ast.Store)
    )


def device_map(path: Path, given: Mapping[str, Any] | None) -> tuple[Any, bool] | None:
    """The device map that a script hands to `from_pretrained`; None: none that is known.

    Args:
        path: The script.
        given: Arguments that it is started with; None: not all are known.

    Returns:
        It, and whether Trainer's arguments are made on a line before in the same function, and no
        condition stands around it. One about ZeRO keeps stage 3 out.
    """
    tree = _tree(path)
    constants, places, found = _constants(tree), _places(tree), dict[bool, Any]()
    flags = {} if given is None else _own_flags(tree, given) | _parsed_fields(tree, given)
    makes = [call for name in _MAKERS for call in _calls(tree, name)]
    for call in _calls(tree, "from_pretrained"):
        scope, ifs = places[call]
        is_after = any(one.lineno < call.lineno and places[one][0] is scope for one in makes)
        for one in call.keywords if not _ABOUT_ZERO.search(ifs) else ():
            with contextlib.suppress(KeyError, ValueError):
                value = _value(one.value, flags, constants)
                if one.arg == "device_map" and value is not None:
                    found.setdefault(is_after and not ifs, value)
    return next(((found[one], one) for one in (True, False) if one in found), None)


def clips_to(path: Path) -> Any:
    """The norm to which a script of accelerate's clips gradients; None: none is known."""
    tree = _tree(path)
    places = _places(tree)
    prepared = {_name(one) for call in _calls(tree, "prepare") for one in call.args}
    for call in _calls(tree, "clip_grad_norm_"):
        is_torchs = isinstance(call.func, ast.Name) or "utils" in ast.unparse(call.func)
        clipped = {_name(one) for given in call.args[:1] for one in ast.walk(given)}
        if _ABOUT_ZERO.search(places[call][1]) or (is_torchs and not clipped & prepared):
            continue
        norms = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "max_norm")]
        with contextlib.suppress(KeyError, ValueError, IndexError):
            return _value(norms[0], _own_flags(tree, {}), _constants(tree))
    return None


def prepares_no_loader(path: Path) -> bool:
    """Whether the first `prepare` of a script of accelerate's takes nothing like a data loader."""
    tree = _tree(path)
    places, calls = _places(tree), [call for call in _calls(tree, "prepare") if call.args]
    calls = [call for call in calls if "accel" in ast.unparse(call.func).lower()]
    if len({places[call][0] for call in calls}) != 1:
        return False  # nothing tells which is the first
    names = [_name(one) for one in min(calls, key=lambda call: call.lineno).args]
    return all(name and not _LOADER.search(name) for name in names)


def loads_first(path: Path) -> str:
    """The class whose weights a script loads before ZeRO is told of; empty: none is seen to.

    That is on a line before Trainer's arguments, or an `Accelerator`, in the same function.
    """
    tree = _tree(path)
    places = _places(tree)
    makes = [call for name in (*_MAKERS, *_TELL_ZERO, *_TRLS) for call in _calls(tree, name)]
    for call in _calls(tree, "from_pretrained"):
        scope, ifs = places[call]
        lines = [one.lineno for one in makes if places[one][0] is scope]
        kind = _name(getattr(call.func, "value", call))
        if lines and call.lineno < min(lines) and not ifs and _MODEL.fullmatch(kind):
            return kind
    return ""


def _places(tree: ast.AST) -> dict[ast.AST, tuple[ast.AST, str]]:
    """Every part of a script, with its function or the module, and the conditions around it."""
    places: dict[ast.AST, tuple[ast.AST, str]] = {tree: (tree, "")}
    for node in ast.walk(tree):  # those above come first
        scope, ifs = places[node]
        scope = node if isinstance(node, _FUNCTIONS) else scope
        if isinstance(node, ast.If | ast.IfExp) and "__name__" not in ast.unparse(node.test):
            ifs += f" {ast.unparse(node.test)}"
        places.update((child, (scope, ifs)) for child in ast.iter_child_nodes(node))
    return places


def reads_first_word(path: Path | None) -> bool:
    """Whether a script that is there takes its first word for a file."""
    return path is not None and "sys.argv[1]" in ast.unparse(_tree(path))


@dataclass(frozen=True, kw_only=True)
class MadeArguments:
    """The arguments of Trainer's that a script makes in its code."""

    known: Mapping[str, Any]
    unknown: frozenset[str] | None
    """Those that it gives a value which is not read; the others have Trainer's defaults. None:
    any may be given, or the defaults are others, as TRL's are."""


def made_arguments(path: Path, given: Mapping[str, Any]) -> MadeArguments | None:
    """The arguments of a script's one `TrainingArguments(...)`: literals, and its own flags.

    Args:
        path: The script.
        given: Flags of its launch line, with underscores.

    Returns:
        None where it makes none so.
    """
    tree = _tree(path)
    trls = [
        alias.asname or alias.name
        for module, alias in _imports(tree)
        if module.split(".")[0] == "trl" and alias.name.endswith("Config")
    ]
    calls = [call for name in (*_CLASSES, *trls) for call in _calls(tree, name)]
    calls = [call for call in calls if _name(call.func) in _CLASSES or _is_output(call)]
    if len(calls) != 1:
        return None
    flags, constants = _own_flags(tree, given), _constants(tree)
    known: dict[str, Any] = {}
    unknown: set[str] = set()
    for keyword in calls[0].keywords:
        if keyword.arg is None:
            continue
        try:
            known[keyword.arg] = _value(keyword.value, flags, constants)
        except (KeyError, ValueError):
            unknown.add(keyword.arg)
    name = _name(calls[0].func)
    is_open = any(one.arg is None for one in calls[0].keywords)
    is_open |= name not in (*_CLASSES, *_TRLS)
    named = unknown.union(_TRLS.get(name, ()))
    return MadeArguments(known=known, unknown=None if is_open else frozenset(named))


def reads_all_arguments(path: Path) -> bool:
    """Whether Trainer's arguments all stand in a script or on its line, none of DeepSpeed's."""
    tree, made = _tree(path), made_arguments(path, {})
    is_whole = own_defaults(path) is not None if made is None else made.unknown is not None
    return (
        is_whole
        and not any(any(_calls(tree, name)) for name in _READ[1:])
        and "deepspeed" not in ast.unparse(tree)
    )


def _value(node: ast.expr, flags: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    """The value of an argument: a literal, the name of one, or a flag of the script's parser.

    Raises:
        KeyError, ValueError: It is none of these.
    """
    if isinstance(node, ast.IfExp) and ast.unparse(node.test) == "torch.cuda.is_available()":
        node = node.body
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return flags[node.attr]
    return constants[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def pipeline_stages(path: Path, given: Mapping[str, Any]) -> int | None:
    """Stages of the `PipelineModule` that a script makes, with `given` as of `made_arguments`.

    Returns:
        0 where they are not known, None where it makes none.
    """
    tree = _tree(path)
    (call, *_) = (*_calls(tree, "PipelineModule"), None)
    if call is None:
        return None
    stages = [one.value for one in call.keywords if one.arg == "num_stages"] or call.args[1:2]
    with contextlib.suppress(KeyError, ValueError, IndexError):
        value = _value(stages[0], _own_flags(tree, given), _constants(tree))
        return value if type(value) is int and value > 0 else 0
    return 0


def _is_output(call: ast.Call) -> bool:
    """Whether a configuration of TRL's is a trainer's, and not a model's or a script's."""
    return any(one.arg in ("output_dir", "deepspeed") for one in call.keywords)


def _constants(tree: ast.AST) -> dict[str, Any]:
    """Names that are set once, to a literal, and that nothing else in the script is called.

    There is none where the script imports `*`: any name may come from there.
    """
    nodes = list(ast.walk(tree))
    stored = Counter(name for node in nodes for name in _names_given(node))
    found: dict[str, Any] = {}
    for node in nodes if "*" not in stored else ():
        name = _name(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and stored[name] == 1:
            with contextlib.suppress(KeyError, ValueError):
                found[name] = _value(node.value, {}, {})
    return found


def _names_given(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Name) and type(node.ctx) is ast.Store:
        yield node.id


def _own_flags(tree: ast.AST, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags that a script adds to an argparse parser are, as far as that is known."""
    found: dict[str, Any] = {}
    for call in _calls(tree, "add_argument"):
        names = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
        flags = [name.lstrip("-").replace("-", "_") for name in names]
        options = {one.arg: one.value for one in call.keywords}
        long = [flag for flag, name in zip(flags, names, strict=True) if name[:2] == "--"]
        if not flags:
            continue
        try:
            name = ast.literal_eval(options["dest"]) if "dest" in options else (long or flags)[0]
            action = ast.literal_eval(options.get("action", ast.Constant("store")))
            default = ast.literal_eval(options.get("default", ast.Constant(None)))
        except ValueError:
            continue
        value = next((given[flag] for flag in flags if flag in given), None)
        if action in ("store_true", "store_false"):
            is_on = action == "store_true"
            found[name] = is_on if value is not None else not is_on
        elif value is None:
            found[name] = default
        elif action == "store" and not (isinstance(value, str) and "$" in value):
            found[name] = value
    return found


def _parsed_fields(tree: ast.AST, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a script's classes that a parser of transformers' or TRL's fills."""
    parsers = [*_calls(tree, _PARSER), *_calls(tree, "TrlParser")]
    names = {_name(one) for call in parsers for one in _classes(call)}
    classes = (one for one in ast.walk(tree) if isinstance(one, ast.ClassDef))
    found: dict[str, Any] = {}
    for line in (line for one in classes if one.name in names for line in one.body):
        if isinstance(line, ast.AnnAssign) and line.value is not None:
            # What is no `field` is its own default.
            options = {one.arg: one.value for one in getattr(line.value, "keywords", ())}
            name, default = _name(line.target), options.get("default", line.value)
            with contextlib.suppress(ValueError):
                found[name] = given[name] if name in given else ast.literal_eval(default)
    return {name: value for name, value in found.items() if "$" not in str(value)}


def _tree(path: Path) -> ast.AST:
    """The script; an empty one where it cannot be read."""
    try:
        return _parsed(read_text(path))
    except (RenderError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.AST:
    """The tree of a text; several questions are asked of one script, and none changes it."""
    return ast.parse(text)


def _imports(tree: ast.AST) -> Iterator[tuple[str, ast.alias]]:
    """The module and what is imported of it; of `import x` the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                yield (node.module or "") if isinstance(node, ast.ImportFrom) else "", alias


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
