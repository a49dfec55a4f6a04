"""Jinja2 templates: strict, sandboxed, every value encoded, and JSON parsed back.

A template is data that a user may bring along, so it runs in Jinja's sandbox. A value must pass
through `tojson` (JSON), `sh` (one shell word), `html` (text or a quoted attribute), `script`
(JSON inside a script element), `text` (prose, as it is), `markdown`, `code` (code in Markdown), or
what spells a figure: `count` (a number of things), `amount`, `bytes`, `seconds`, `rate`, `times`,
`percent`, `chance`, `interval`, `gain`. A bare `{{ value }}` is refused, because Python's spelling
of it (`True`, `None`, an unquoted path) is wrong in each of them.
"""

import html
import json
import math
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from jinja2 import (
    BaseLoader,
    Environment,
    StrictUndefined,
    Template,
    TemplateNotFound,
    TemplateSyntaxError,
    Undefined,
)
from jinja2.loaders import split_template_path
from jinja2.sandbox import SandboxedEnvironment

from autotune.base.data import data_folder
from autotune.base.errors import RenderError
from autotune.base.text import lines, markdown, markdown_code
from autotune.base.units import (
    format_amount,
    format_bytes,
    format_chance,
    format_count,
    format_gain_interval,
    format_interval,
    format_rate,
    format_seconds,
)
from autotune.base.user_text import unread
from autotune.contract import read_bounded

MAX_TEMPLATE_BYTES = 2**20
"""Largest template: a hundred times the largest that is shipped."""


class Encoded(str):
    """Text that may stand in a rendered file as it is."""

    __slots__ = ()


class Templates:
    """The shipped templates, with a user's own folder before them."""

    def __init__(self, user_folder: Path | None = None) -> None:
        """Look for templates in `user_folder`, then in the shipped folder.

        Raises:
            RenderError: `user_folder` is not a folder.
        """
        if user_folder is not None and not os.path.isdir(user_folder):
            raise RenderError.of("base.no_templates", user_folder=user_folder)
        shipped = data_folder("templates")
        self.folders = [f for f in (user_folder, shipped) if f is not None]
        # A user may change what is in theirs.
        self._environment = (
            _of_shipped(shipped) if user_folder is None else _StrictEnvironment(self.folders)
        )
        self._compiled: dict[str, Template] = {}

    def is_users(self, name: str) -> bool:
        return len(self.folders) > 1 and os.path.isfile(os.path.join(self.folders[0], name))

    def text(self, name: str, values: Mapping[str, Any]) -> str:
        """Render a template, by its path below a templates folder: `launch/launch.sh.j2`.

        Raises:
            RenderError: There is no such template, or it does not render; the error names the
                template, its line and the variable.
        """
        template = self._compiled.get(name) or self._compile(name)
        try:
            return template.render(values)
        except Exception as error:  # what a template's expression raises is not known beforehand
            raise _explain(error, name, template) from error

    def json(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Render a template whose result is one JSON object, and parse it.

        Raises:
            RenderError: As `text`; or the result is not a JSON object, names a key twice, or
                holds a number that is not finite.
        """
        text = self.text(name, values)
        try:
            parsed = _DECODER.decode(text)
        except ValueError as error:
            raise RenderError.of(
                "base.template_no_json", name=name, error=error, line=_line_of(error, text)
            ) from error
        if not isinstance(parsed, dict):
            kind = type(parsed).__name__
            problem = f"template {name}: the result is a JSON {kind}, not an object"
            raise RenderError(problem, "write one { ... }")
        return parsed

    def _compile(self, name: str) -> Template:
        try:
            template = self._environment.get_template(name)
        except TemplateNotFound as error:
            looked = ", ".join(str(folder) for folder in self.folders)
            problem = f"template {error.name or name}: not found in {looked}"
            raise RenderError(problem, "add it there") from error
        except TemplateSyntaxError as error:
            at = error.name or name
            raise RenderError.of("base.template_line", name=at, error=error) from error
        except (OSError, UnicodeDecodeError) as error:
            raise RenderError.of("base.template_unread", name=name, why=unread(error)) from error
        # Jinja and Python give up on what is nested too deeply, each in its own way.
        except Exception as error:
            reason = _in_words(error)
            raise RenderError.of("base.template_not_compiled", name=name, reason=reason) from error
        self._compiled[name] = template
        return template


def canonical_json(data: Mapping[str, Any]) -> str:
    """The one text of a configuration: keys sorted, two spaces, a newline at the end.

    Equal configurations are equal bytes, so files can be compared and golden files read.
    """
    return json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n"


class _Loader(BaseLoader):
    """Reads templates of the first folder that has one; what is no file is never opened."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, Callable[[], bool] | None]:
        parts = split_template_path(template)
        for folder in self._folders:
            path = folder.joinpath(*parts)
            if os.path.lexists(path):
                return read_bounded(path, MAX_TEMPLATE_BYTES).decode("utf-8"), str(path), None
        raise TemplateNotFound(template)


class _StrictEnvironment(SandboxedEnvironment):
    """Refuses undefined names, unsafe attributes, and values that no filter has encoded."""

    def __init__(self, folders: Iterable[Path]) -> None:
        super().__init__(
            loader=_Loader(folders),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            finalize=_only_encoded,
            # Templates are compiled once in a process; asking the disk each time costs 10 us.
            auto_reload=False,
        )
        self.filters.update(
            tojson=_to_json,
            sh=_filter(lambda value: shlex.quote(str(value))),
            html=_filter(lambda value: html.escape(lines(str(value)))),
            script=_filter(_to_script),
            text=_filter(lambda value: lines(str(value))),
            amount=_filter(format_amount),
            count=_to_count,
            bytes=_filter(format_bytes),
            gain=_filter(lambda gain, **spelling: format_gain_interval(*gain, **spelling)),
            code=_filter(markdown_code),
            markdown=_filter(markdown),
            interval=_filter(lambda ends: format_interval(*ends)),
            chance=_filter(format_chance),
            percent=_filter(lambda share, digits=0: f"{share:.{digits}%}"),
            rate=_filter(format_rate),
            seconds=_filter(format_seconds),
            times=_filter(lambda ratio: f"{ratio:.2f}x"),
        )

    @staticmethod
    def concat(parts: Iterable[str]) -> Encoded:
        """Join what a macro, a block or a template wrote: its values are encoded already."""
        return Encoded("".join(parts))


@cache
def _of_shipped(folder: Path) -> _StrictEnvironment:
    return _StrictEnvironment([folder])


def _to_json(value: Any) -> Encoded:
    # A lattice renders thousands of small integers, for which the encoder costs ten times as much.
    if type(value) is int:
        return Encoded(value)
    return Encoded(_ENCODER.encode(_defined(value)))


def _to_script(value: Any) -> str:
    # Nothing is unescaped inside a script element, and `</script` or `<!--` would end it.
    text = _ENCODER.encode(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _to_count(value: Any, one: str, several: str = "") -> Encoded:
    return Encoded(lines(format_count(int(_defined(value)), one, several)))


def _filter(encode: Callable[..., str]) -> Callable[..., Encoded]:
    return lambda value, **options: Encoded(encode(_defined(value), **options))


def _defined(value: Any) -> Any:
    if isinstance(value, Undefined):
        str(value)  # raises UndefinedError, which names the variable
    return value


def _only_encoded(value: Any) -> Any:
    if isinstance(value, Encoded):
        return value
    filters = "| tojson, | sh, | html, | script, | text, | count"
    raise TypeError(f"the value {_defined(value)!r} goes through none of {filters}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite
)


def _in_words(error: BaseException) -> str:
    """What went wrong; Jinja may raise another error on the way of a recursion without an end."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RecursionError):
            return "it is nested too deeply"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _explain(error: Exception, name: str, template: Template) -> RenderError:
    if isinstance(error, TemplateNotFound | TemplateSyntaxError):  # in an include or a parent
        place = f"template {error.name or name}"
        detail = getattr(error, "message", None) or "not found"
    else:
        file, line = _where(error.__traceback__) or (template.filename, None)
        place = f"template {name}" if file == template.filename else f"template {file}"
        place += f", line {line}" if line else ""
        detail = _in_words(error)
    return RenderError(f"{place}: {detail}", "mend the template at that line")


def _where(trace: TracebackType | None) -> tuple[str, int] | None:
    """Jinja rewrites tracebacks so that a template's frames carry its own file and line."""
    found = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    return next((place for place in reversed(found) if place[0].endswith(".j2")), None)


def _line_of(error: ValueError, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError) or not text.strip():
        return ""
    line = text.split("\n")[error.lineno - 1].strip()
    return f"\n  {line}"


Fact = tuple[str, str]
"""A name, and a text about it."""
_BEGIN, _END = "\x1e", "\x1f"
"""Around a name: no value holds them, since filters spell what cannot be seen."""
_LINE_END = re.compile(r"\s*\n\s*")


def tell(template: str, values: Mapping[str, Any]) -> list[Fact]:
    """The facts of a template, by its name.

    Raises:
        RenderError: It does not render.
    """
    text = Templates().text(f"report/text/{template}.j2", {**values, "fact": begin})
    facts = []
    for part in text.split(_BEGIN)[1:]:
        name, _, rest = part.partition(_END)
        facts.append((name, _LINE_END.sub(" ", rest.strip())))
    return facts


def begin(name: str) -> Encoded:
    """What begins a fact in a template's text."""
    return Encoded(f"{_BEGIN}{name}{_END}")
