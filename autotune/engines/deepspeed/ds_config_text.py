"""The text of a user's configuration: read within bounds, and parsed as DeepSpeed parses it."""

import json
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.errors import RenderError
from autotune.base.nested import MAX_DEPTH, is_too_deep, kind_in_words

BYTE_ORDER_MARK = "\ufeff"
"""Mark that some editors put before a text; DeepSpeed skips it."""

_MAX_HJSON_CHARACTERS = 2**18
"""Longest text that is tried as Hjson: its reader takes seconds for a megabyte."""


def parse_config(text: str, path: Path) -> tuple[dict[str, Any], bool]:
    """The object that a text holds, and whether only a reader of Hjson finds it there.

    DeepSpeed reads every file with one (runtime/config.py: DeepSpeedConfig).

    Raises:
        RenderError: It is neither JSON nor Hjson, not an object, or nested too deep.
    """
    plain = text.removeprefix(BYTE_ORDER_MARK)
    if not plain.strip():
        raise RenderError(f"{path}: is empty", "write one { ... }, or name another file")
    is_hjson = False
    try:
        data = json.loads(plain, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        data = _hjson(plain, path)
        if data is None:
            _refuse(path, error)
        is_hjson = True
    except RecursionError as error:
        raise _too_deep(path) from error
    except ValueError as error:
        _refuse(path, error)
    if not isinstance(data, dict):
        kind = kind_in_words(data)
        raise RenderError.of("engines.deepspeed.no_object", path=path, kind=kind)
    if is_too_deep(data):
        raise _too_deep(path)
    return data, is_hjson


def no_json(text: str) -> tuple[int, str]:
    """The line from which on a text is no JSON, and why."""
    try:
        json.loads(text.removeprefix(BYTE_ORDER_MARK))
    except json.JSONDecodeError as error:
        if error.doc[error.pos :].startswith(("#", "//", "/*")):
            return error.lineno, f"line {error.lineno}: a comment"
        line = error.doc[: error.pos].rstrip().count("\n") + 1
        if error.msg.startswith("Expecting ',' delimiter"):
            return line, f"line {line}: a comma is missing at its end"
        return error.lineno, str(error).partition(" (char")[0]
    return 1, ""


def _too_deep(path: Path) -> RenderError:
    return RenderError.of("engines.deepspeed.deep", path=path, most=MAX_DEPTH)


_KINDS = "a ds_config.json, or a YAML, shell or Python file that holds or starts one"


def _refuse(path: Path, error: Exception) -> NoReturn:
    if "integer string conversion" in str(error):  # Python's own bound, in Python's words
        most = sys.get_int_max_str_digits()
        raise RenderError.of("engines.deepspeed.long_number", path=path, most=most) from error
    hint = "mend the file there"
    if path.suffix.lower() not in ("", ".json", ".hjson"):
        hint = f"name {_KINDS}; if this is a ds_config, {hint}"
    if find_spec("hjson") is None:  # it comes with DeepSpeed
        hint += "; if it is Hjson, pip install hjson"
    raise RenderError(f"{path}: not valid JSON: {error}", hint) from error


class _TwiceError(Exception):
    """A key that stands twice in one object; its argument is the key."""


def _hjson(text: str, path: Path) -> Any:
    """What DeepSpeed's own reader makes of a text; None where it refuses it or is missing.

    Raises:
        RenderError: It reads it, and DeepSpeed refuses it: a key stands twice.
    """
    if len(text) > _MAX_HJSON_CHARACTERS:
        return None
    try:
        import hjson  # installed with DeepSpeed, and only needed for what is not JSON

        data = hjson.loads(text, object_pairs_hook=_unlike)
    except _TwiceError as twice:
        raise RenderError.of("engines.deepspeed.key_stands_twice", path=path, key=twice) from twice
    except Exception:  # its reader trips over broken numbers and depths in ways of its own
        return None
    return data if isinstance(data, dict) and _is_finite(data) else None


def _unlike(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _TwiceError(name)
        names.add(name)
    return dict(pairs)


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _finite(text: str) -> float:
    """A number of JSON; Python would read NaN, Infinity and 1e999 too, which JSON lacks."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number that JSON holds")
    return value
