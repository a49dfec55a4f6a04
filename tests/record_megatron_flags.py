"""What command-line flags Megatron-LM has, by release: asked of its own parser.

python -m tests.record_megatron_flags [--check] CHECKOUT...

Each CHECKOUT is a folder with the sources of one release (its `megatron/` is enough). Writes
`autotune/engines/megatron/flags.json` anew from all of them, or says by its exit status whether
the file has the same of those that are given. Nothing of Megatron has to be installed, and no
device is used: torch, numpy and packaging are enough.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from autotune.engines.megatron.flags import DATA_FILE, release_of
from tests.captured import captured
from tests.recorded_json import as_text

_STANDING_IN = ("six", "triton", "triton.language", "triton.language.extra", "triton.testing")
"""Modules that some releases import without a guard, and that no parser needs."""
_PLAIN = (bool, int, float, str, type(None))


def main(arguments: list[str]) -> int:
    """Write the file; with `--check` compare it instead."""
    checkouts = [Path(each).resolve() for each in arguments if each != "--check"]
    if not checkouts:
        print(__doc__, file=sys.stderr)
        return 2
    found = {release_of(each): flags_of(each) for each in checkouts}
    if "--check" in arguments:
        known = spread(json.loads(DATA_FILE.read_text(encoding="utf-8")))
        return 0 if all(known.get(release) == flags for release, flags in found.items()) else 1
    ordered = sorted(found, key=lambda release: tuple(map(int, release.split("."))))
    DATA_FILE.write_text(
        as_text(gathered({each: found[each] for each in ordered}), 2), encoding="utf-8"
    )
    return 0


def flags_of(checkout: Path) -> dict[str, dict[str, Any]]:
    """Flags of a checkout: name -> what the parser says of it.

    A process of its own asks, since every checkout's package is called `megatron`.
    """
    done = captured([sys.executable, "-m", "tests.record_megatron_flags", "--ask", str(checkout)])
    if done.returncode:
        raise SystemExit(f"{checkout}: its parser cannot be asked\n{done.stderr}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def gathered(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The file's data: the releases, and what each flag was in them."""
    names = sorted({name for flags in found.values() for name in flags})
    return {"releases": list(found), "flags": {name: _spans(name, found) for name in names}}


def spread(data: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The file's data by release again; the other way round of `gathered`."""
    releases: Sequence[str] = data["releases"]
    found: dict[str, dict[str, dict[str, Any]]] = {release: {} for release in releases}
    for name, spans in data["flags"].items():
        for span in spans:
            told = {key: value for key, value in span.items() if key not in ("from", "to")}
            for release in releases[releases.index(span["from"]) : releases.index(span["to"]) + 1]:
                found[release][name] = told
    return found


def _spans(
    name: str, found: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What a flag was, over the releases in which it was the same."""
    spans: list[dict[str, Any]] = []
    before: Mapping[str, Any] | None = None
    for release, flags in found.items():
        told = flags.get(name)
        if told is not None and told == before:
            spans[-1]["to"] = release
        elif told is not None:
            spans.append({"from": release, "to": release, **told})
        before = told
    return spans


def import_arguments(checkout: str) -> Any:
    """The module of a checkout that has its parser, without what only kernels need."""
    import torch

    sys.path.insert(0, checkout)
    for name in _STANDING_IN:
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = MagicMock(name=name, __version__="3.4.0")
    # The compiler would import more of triton than stands in for it, and nothing is computed here.
    torch.compile = lambda model=None, **_: model or (lambda it: it)
    import typing

    if not hasattr(typing, "override"):  # Python 3.12 has it, which newer releases ask for
        typing.override = lambda method: method
    from megatron.training import arguments

    return arguments


def _ask(checkout: str) -> None:
    """Print the flags of a checkout, in the process that imports it."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    import_arguments(checkout).add_megatron_arguments(parser)
    # Those that pretrain_gpt.py adds where nvidia-modelopt is installed.
    from megatron.post_training.arguments import add_modelopt_args

    add_modelopt_args(parser)
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        for name in action.option_strings:
            found[name] = _told(action, name)
    print(json.dumps(found))


def _told(action: argparse.Action, name: str) -> dict[str, Any]:
    """What a flag takes: what it sets, and how; what is left out is the most frequent."""
    told: dict[str, Any] = {}
    if action.dest != name.lstrip("-").replace("-", "_"):
        told["dest"] = action.dest
    if isinstance(action, argparse.BooleanOptionalAction):
        told["sets"] = not name.startswith("--no-")
    elif action.nargs == 0:
        told["sets"] = action.const
    else:
        told["type"] = _type_name(action.type)
        if action.nargs is not None:
            told["nargs"] = action.nargs
        if action.choices is not None:
            told["choices"] = [
                each if isinstance(each, _PLAIN) else _word(each) for each in action.choices
            ]
    if isinstance(action.default, _PLAIN) and action.default is not None:
        told["default"] = action.default
    return told


def _type_name(kind: Any) -> str:
    if kind in (None, str):
        return "str"
    return kind.__name__ if kind in (int, float) else "other"


def _word(value: Any) -> str:
    """A choice as people write it: the name of an enumeration's."""
    return str(getattr(value, "name", value))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        _ask(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
