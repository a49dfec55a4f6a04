"""What all commands share: the application, its options, its two streams.

Data goes to stdout, everything else to stderr.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from autotune import __version__
from autotune.base.errors import AutotuneError, ExitCode, JobError
from autotune.base.secrecy import scrubbed, scrubbed_text
from autotune.base.text import bounded, visible
from autotune.cli.flags import described, is_debugging
from autotune.cli.help import HelpfulCommand, HelpfulGroup
from autotune.fleet.options import FleetOptions, options_of
from autotune.report.terminal.console import console_on


class _Commands(typer.Typer):
    """Commands that are a `HelpfulCommand` where nothing else is said, with their flags."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """See `typer.Typer.command`; an `epilog` is the example of the command's help."""
        kwargs.setdefault("cls", HelpfulCommand)
        register = super().command(*args, **kwargs)
        return lambda command: register(described(command))


cli = _Commands(
    name="autotune",
    cls=HelpfulGroup,
    epilog="autotune search -- torchrun --nproc-per-node 2 train.py --deepspeed ds.json\n"
    "autotune search --model llama-3.2-1b --seq-len 2048 --global-batch 32\n"
    "autotune check ds_config.json",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def _show_version(value: bool) -> None:
    if value:
        emit(f"autotune {__version__}\n")
        raise typer.Exit


@cli.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Find the DeepSpeed or Megatron configuration that trains a model fastest.

    It stays in the memory there is, and short real trials prove it.
    """


PROGRESS = console_on("stderr")
"""Progress and messages."""
DATA = console_on("stdout")
"""Reports for people; data for programs is printed as it is."""


RESULTS = Path("results")


@contextmanager
def obtained_fleet(fleet: str, typed: Sequence[str] | None) -> Iterator[tuple[str, FleetOptions]]:
    """Name and options of a fleet; the nodes that it has to ask for are held, once that is agreed.

    `typed` is what was said of it by --fleet-option.
    """
    from autotune.app import session

    options = options_of(typed or ())
    with session.obtained_fleet(fleet, options, say=say, agree=ask_for_nodes) as held:
        yield held, options


def ask_for_nodes(request: str, *, yes: bool = False, dry_run: bool = False) -> None:
    """Say what is asked of a cluster, and end where the user does not want it."""
    say(request)
    if dry_run:
        raise JobError.of("cli.nodes_unknown")
    if not yes and is_answered() and not confirm("Ask for them?"):
        raise typer.Exit(ExitCode.INTERRUPTED)


def is_answered() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asker() -> Callable[[str], bool] | None:
    """Asks the user; None: nobody is there to answer."""
    return confirm if is_answered() else None


def confirm(question: str, *, default: bool = False) -> bool:
    """Whether the user says yes; `default` is what an empty line says."""
    try:
        return typer.confirm(question, default=default, err=True)
    except typer.Abort as error:
        # Ctrl-C, or the terminal is gone.
        PROGRESS.print()
        raise typer.Exit(ExitCode.INTERRUPTED) from error


def say(line: str) -> None:
    """Say a line of progress."""
    PROGRESS.print(scrubbed_text(line), markup=False, highlight=False)


def say_meanwhile(line: str) -> None:
    """Say a line where somebody watches a terminal and waits."""
    if PROGRESS.is_terminal:
        say(line)


@contextmanager
def in_place() -> Iterator[Callable[[str], None] | None]:
    """What shows progress in one line of the terminal; None off a terminal."""
    if not PROGRESS.is_terminal or PROGRESS.is_dumb_terminal:
        yield None
        return
    with PROGRESS.status("") as status:
        yield lambda line: status.update(
            Text(scrubbed_text(line), no_wrap=True, overflow="ellipsis")
        )


def explain(error: AutotuneError | OSError) -> None:
    """Say what is wrong and how to mend it; the traceback only where it was asked for."""
    if is_debugging():
        traceback.print_exception(error)
    message = scrubbed_text(bounded(str(getattr(error, "message", error))))
    PROGRESS.print(Text(f"error: {message}", style="red"))
    if hint := getattr(error, "hint", ""):
        PROGRESS.print(Text(f"  fix: {scrubbed_text(bounded(hint))}"))
    for note in getattr(error, "__notes__", ()):  # what went wrong on top of it
        PROGRESS.print(Text(f"  also: {scrubbed_text(note)}"))


def refuse_several(**forms: object) -> None:
    """Raise a JobError where more than one form of output, by its flag, is asked for."""
    asked = [f"--{name}" for name, value in forms.items() if value]
    if len(asked) > 1:
        problem = f"{' and '.join(asked)}: each is another form of the same report"
        raise JobError(problem, f"give one of {', '.join(f'--{name}' for name in forms)}")


def print_files(files: Sequence[Path], *, as_json: bool) -> None:
    """Print what was written, a path per line or as a list."""
    if as_json:
        print_json([str(path) for path in files])
    else:
        emit("".join(f"{visible(str(path))}\n" for path in files))


def emit(text: str) -> None:
    """Write data to stdout as it is, in one piece."""
    DATA.file.write(text)
    DATA.file.flush()


def show_markdown(text: str) -> None:
    """Print Markdown, laid out where a person reads it."""
    if not DATA.is_terminal:
        emit(f"{text.rstrip()}\n")
        return
    from rich.markdown import Markdown

    DATA.print(Markdown(text))


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Print data for programs."""
    emit(json.dumps(scrubbed(data), indent=indent) + "\n")
