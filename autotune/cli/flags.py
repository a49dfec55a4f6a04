"""What commands take: their parameters, with what flags.json says of each, and keys of the job."""

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.job.keys import Topic


class _Debugging:
    """Whether `--debug` was given, to whichever command."""

    is_on = False


def is_debugging() -> bool:
    """Whether an error's traceback was asked for."""
    return _Debugging.is_on


def _set_debug(value: bool) -> None:
    _Debugging.is_on = _Debugging.is_on or value


_DEBUG = typer.Option(
    "--debug",
    help="Show the traceback of an error.",
    callback=_set_debug,
    rich_help_panel=Topic.OUTPUT,
)


def described(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the help and the spelling of its flags and arguments, and with `--debug`."""
    if hasattr(command, "declared"):
        return command  # described when somebody asks what it takes
    rows = _rows()
    known = rows["every"] | rows.get(command.__name__, {})
    of_command = inspect.signature(command).parameters.values()
    parameters = [
        p if hasattr(p.annotation, "__metadata__") else _with_facts(p, known[p.name])
        for p in of_command
    ]

    @wraps(command)
    def run(*, debug: bool, **values: Any) -> None:
        command(**values)

    return _taking(
        run,
        [
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters),
            _keyword("debug", Annotated[bool, _DEBUG], False),
        ],
    )


@cache
def _rows() -> dict[str, dict[str, Any]]:
    """Command -> its parameters -> help, or facts; `every` has those of several commands."""
    file = resources.files("autotune.cli").joinpath("flags.json")
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return rows


def _with_facts(parameter: inspect.Parameter, row: str | dict[str, Any]) -> inspect.Parameter:
    facts = {"help": row} if isinstance(row, str) else dict(row)
    make = typer.Argument if facts.pop("argument", False) else typer.Option
    names = facts.pop("flag", "").split()
    if parameter.default is False and not names:  # without a name typer adds `--no-`
        names = [f"--{parameter.name.replace('_', '-')}"]
    if "group" in facts:
        facts["rich_help_panel"] = Topic[facts.pop("group")]
    return parameter.replace(annotation=Annotated[parameter.annotation, make(*names, **facts)])


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _taking(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def job_file(*, job: Path | None = None, trust_job: bool = False) -> None:
    """The file of a job, for `takes_job`."""


def fleet_flags(
    *,
    per_node: int | None = None,
    network: str | None = None,
    nvlink: str | None = None,
) -> None:
    """The flags of a fleet, for `takes_job`; fields of `FleetWishes`."""


def lesson_flags(*, knowledge: Path | None = None, no_knowledge: bool = False) -> None:
    """The flags of what trials taught, for `takes_job`."""


def takes_job(
    *groups: Callable[..., None],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the keys of the job that are declared for it, as flags.

    They stand in the place of its parameter `flags`, which is a mapping of those that were set.
    Reading the declarations takes pydantic, so it waits until the command is asked for.

    Args:
        groups: Functions whose parameters are flags of the command too, before the keys.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def undeclared() -> None:
            """Stands for the command until `HelpfulCommand` asks what it takes."""

        def declared() -> Callable[..., None]:
            signatures = [inspect.signature(group) for group in groups]
            flags = [p for one in signatures for p in one.parameters.values()]
            return described(_with_flags(command, [*flags, *_key_flags(command.__name__)]))

        vars(undeclared).update(__signature__=inspect.Signature(), declared=declared)
        undeclared.__annotations__ = {}
        return undeclared

    return give


def _key_flags(command: str) -> Iterator[inspect.Parameter]:
    from autotune.job.job import keys_of

    for name, key in keys_of(command).items():
        kind = key.takes if isinstance(key.takes, type) else str
        typed, text = key.typed, key.help if kind is bool else key.described
        if typed.startswith("--no-"):
            # Typer's way to say that a flag only turns something off.
            typed, text = f" /{typed}", f"Leave out: {key.about}."
        flag = typer.Option(typed, help=text, rich_help_panel=key.group)
        yield _keyword(name, Annotated[kind | None, flag], None)


def _with_flags(
    command: Callable[..., None], flags: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += flags if parameter.name == "flags" else [parameter]

    @wraps(command)
    def with_flags(**values: Any) -> None:
        given = {flag.name: values.pop(flag.name) for flag in flags}
        command(flags={n: value for n, value in given.items() if value is not None}, **values)

    return _taking(with_flags, parameters)
