"""Commands of the command line: their help in groups, their messages, completion of their values.

Help stays plain text, without the boxes of rich, so that a pipe and a narrow terminal read it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, get_args

from typer import Exit, Typer, echo

# Typer brings a click of its own, and exports only some of it.
from typer._click.core import Command
from typer._click.exceptions import BadParameter, MissingParameter, NoSuchOption, UsageError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from autotune.base.data import table_beside
from autotune.base.errors import ExitCode, JobError
from autotune.base.names import did_you_mean
from autotune.job.keys import Topic

OVERVIEW: Mapping[str, Sequence[str]] = table_beside(__file__, "overview.json")
"""What commands are for -> their names, as `autotune --help` lists them."""
_REST = "Options"
_FEW = 12
"""Most options that stand in one list: fewer need no groups."""


class _Helpful(Command):
    """A command whose help has groups and an example, and whose mistakes have a fix."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[Any] = []
        options: list[tuple[str, Any]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if param.param_type_name == "option":
                # A flag that only turns something off has nothing before the slash.
                options.append((_group_of(param), (record[0].removeprefix(" / "), record[1])))
            else:
                arguments.append(record)
        for title, rows in [("Arguments", arguments), *_grouped(options)]:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Example"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed.

        Raises:
            JobError: It is not what the command takes.
        """
        typed = list(args)  # reading takes words out
        if any(p.name == "settings" for p in self.get_params(ctx)):
            args = [word.removeprefix("--set=") for word in args if word != "--set"]
        try:
            left: list[str] = super().parse_args(ctx, args)
        except UsageError as error:
            raise _mistake(error, ctx, typed) from error
        return left


class HelpfulCommand(_Helpful, TyperCommand):
    """A command; its `epilog` is an example."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Flags and arguments; keys of the job are declared when somebody asks for them."""
        if declared := vars(self.callback).pop("declared", None):
            app = Typer(add_completion=False, rich_markup_mode=None)
            app.command()(declared())
            built = get_command(app)
            self.params, self.callback = built.params, built.callback
        params = super().get_params(ctx)
        for param in params:
            if param.name in _COMPLETED and param._custom_shell_complete is None:
                param._custom_shell_complete = _complete
        return params


class HelpfulGroup(_Helpful, TyperGroup):
    """The command above them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _Helpful.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below what they are for."""
        width = max(map(len, self.commands))
        for title, names in OVERVIEW.items():
            rows = [(f"{n:{width}}", self.commands[n].get_short_help_str(66)) for n in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; nothing at all shows the help, on stderr."""
        if not args and not ctx.resilient_parsing:
            echo(ctx.get_help(), err=True)
            raise Exit(ExitCode.INVALID_INPUT)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a name.

        Raises:
            JobError: There is none.
        """
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            guess = did_you_mean(name, self.commands, alike=0.6)
            raise JobError(f"there is no command {name!r}", guess + "`autotune --help` lists them")
        return super().resolve_command(ctx, args)


def _group_of(option: Any) -> str:
    """Title above an option: the one that it is declared with."""
    if option.name == "help":
        return Topic.OUTPUT
    return getattr(option, "rich_help_panel", None) or _REST


def _grouped(options: list[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    if len(options) <= _FEW:
        return [(_REST, [record for _, record in options])]
    found: dict[str, list[Any]] = {title: [] for title in (_REST, *Topic)}
    for title, record in options:
        found[title].append(record)
    return list(found.items())


def _mistake(error: UsageError, ctx: Any, typed: Sequence[str]) -> JobError:
    """What is wrong with a command line, in the form of all other errors."""
    listed = f"`{ctx.command_path} --help` lists them"
    if isinstance(error, NoSuchOption):
        known = [*_flags(ctx)]
        meant = _ELSEWHERE.get(error.option_name) or did_you_mean(
            error.option_name, known, most=2, alike=0.6
        )
        if error.option_name == "--set" and "--space" in known:
            meant = "a --space FILE keeps a knob at one value by `knobs: {zero.stage: [2], ...}`, "
            meant += "and `explain zero.stage=2` is about one candidate; "
        if command := _own_command(ctx, typed, error.option_name):
            meant = f"write -- before your own command: {ctx.command_path} -- {command} ...; "
        return JobError(f"{ctx.command_path}: no such option: {error.option_name}", meant + listed)
    text = error.format_message().rstrip(".")
    if isinstance(error, BadParameter):
        allowed = f"`{ctx.command_path} --help` says what is allowed"
        if isinstance(error, MissingParameter):
            example = re.sub(r"\\\n *", "", ctx.command.epilog).splitlines()[0]
            return JobError(f"{ctx.command_path}: {text}", f"such as `{example}`; {allowed}")
        flag, value = _typed_for(error.param, typed)
        if not flag or not error.message.startswith(_SHOULD):
            return JobError(text, allowed)
        number = next((word for key, word in _NUMBERS.items() if key in error.message), "")
        if number:
            return JobError(f"{flag}: {value!r} is not a {number}", f"give a {number}; {allowed}")
        limit = error.message.removeprefix(_SHOULD).rstrip(".")
        return JobError(f"{flag}: {value!r} is not allowed: should {limit}", allowed)
    named = next((name for name in ("study", "model") if f"--{name}" in _flags(ctx)), "")
    if "unexpected extra argument" in text and named:
        listed = f"write --{named} before the name of a {named}; {listed}"
    if "requires an argument" in text:
        listed = f"write its value behind it: `{ctx.command_path} --help` says what it is"
    return JobError(f"{ctx.command_path}: {text}", listed)


_ELSEWHERE = {
    "--accelerator": "DS_ACCELERATOR=cuda or DS_ACCELERATOR=cpu before the command chooses; ",
    "--finetune": "--lora-rank 16 is LoRA, `finetune: {method: qlora}` of a job file QLoRA; ",
}
"""Option of other commands -> what does the same here."""
_SHOULD = "Input should "
"""Begins the checker's words for a value that it does not take."""
_NUMBERS = {"valid integer": "whole number", "valid number": "number"}


def _flags(ctx: Any) -> Iterator[str]:
    for param in ctx.command.get_params(ctx):
        yield from (*param.opts, *param.secondary_opts)


def _own_command(ctx: Any, typed: Sequence[str], unknown: str) -> str:
    """First word of a training command that was typed without `--`; empty: there is none."""
    params = ctx.command.get_params(ctx)
    if all(p.name != "command" for p in params):
        return ""
    before = [*takewhile(lambda word: word.partition("=")[0] != unknown, typed)]
    with_value = {name for p in params if not getattr(p, "is_flag", True) for name in p.opts}
    pairs = zip(["", *before], before, strict=False)
    return next((one for flag, one in pairs if one[:1] != "-" and flag not in with_value), "")


def _typed_for(param: Any, typed: Sequence[str]) -> tuple[str, str]:
    """A flag as it was typed last, and its value; empty: the parameter is no flag."""
    words = typed[: typed.index("--")] if "--" in typed else typed
    for word, following in reversed([*zip_longest(words, words[1:], fillvalue="")]):
        flag, equals, value = word.partition("=")
        if flag in getattr(param, "opts", ()):
            return flag, value if equals else following
    return "", ""


_COMPLETED: Mapping[str, str] = table_beside(__file__, "completed.json")
"""Parameter -> what says the values that a shell completes, and its argument; asked only then."""


def _complete(ctx: Any, param: Any, incomplete: str) -> Any:
    """Values of a parameter that begin as what was typed."""
    from typer._click.shell_completion import CompletionItem

    try:
        known = sorted(_known(ctx, param.name))
    except Exception:
        return []  # a shell that completes shows no error
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def _known(ctx: Any, name: str) -> Iterable[str]:
    row = _COMPLETED["model" if ctx.info_name == "models" else name]
    source, *arguments = row.split()
    module, _, function = source.partition(":")
    says = getattr(import_module(module), function)
    if name in ("study", "runs"):
        return [study.name for study in says(Path(ctx.params.get("results") or "results"))]
    if literals := get_args(says):
        return literals
    found = says(*arguments)
    if name == "settings":
        return [f"{knob}=" for knob in found.knobs]
    return [getattr(one, "name", one) for one in found]
