"""What all commands share: the application, its options, its two streams.

Data goes to stdout, everything else to stderr.
"""

import inspect
import json
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from autotune import __version__
from autotune.base.errors import AutotuneError, ExitCode, JobError
from autotune.base.secrecy import scrubbed, scrubbed_text
from autotune.base.text import bounded, one_line
from autotune.cli.help import HelpfulCommand, HelpfulGroup
from autotune.fleet.options import FleetOptions
from autotune.job.keys import Topic
from autotune.report.terminal.console import console_on


class _Commands(typer.Typer):
    """Commands that are a `HelpfulCommand` where they say nothing else."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """See `typer.Typer.command`; an `epilog` is the example of the command's help."""
        kwargs.setdefault("cls", HelpfulCommand)
        return super().command(*args, **kwargs)


cli = _Commands(
    name="autotune",
    cls=HelpfulGroup,
    epilog="autotune search --model llama-3.2-1b --seq-len 2048 --global-batch 32",
    no_args_is_help=True,
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


class _Debugging:
    """Whether `--debug` was given, to whichever command."""

    is_on = False


def is_debugging() -> bool:
    """Whether an error's traceback was asked for."""
    return _Debugging.is_on


def _set_debug(value: bool) -> None:
    _Debugging.is_on = _Debugging.is_on or value


def option(group: Topic, *names: str, **facts: Any) -> Any:
    """An option of a command, under the title of a group; the rest is as of `typer.Option`."""
    return typer.Option(*names, rich_help_panel=group, **facts)


Debug = Annotated[
    bool,
    option(Topic.OUTPUT, "--debug", help="Show the traceback of an error.", callback=_set_debug),
]
Json = Annotated[bool, option(Topic.OUTPUT, "--json", help="Print JSON on stdout.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]
Results = Annotated[Path, option(Topic.OUTPUT, help="Folder of all studies.")]
RESULTS = Path("results")
StudyName = Annotated[
    str | None,
    option(Topic.OUTPUT, "--study", help="Name of the study; the last one by default."),
]
Dialect = Annotated[
    str | None,
    typer.Option(help="Tool whose files to write, such as hf; the engine's own by default."),
]
LauncherName = Annotated[
    str | None,
    typer.Option(
        "--launcher", help="What starts the ranks, such as slurm; the tool's own by default."
    ),
]
_DEVICES = (
    "Who runs the trials: local (this machine), hostfile:FILE (nodes by ssh), slurm (this "
    "allocation), slurm:'-N 4 -t 2:00:00' (asks for one), ray or ray:ADDRESS (a cluster of Ray)"
)
FleetName = Annotated[
    str,
    option(
        Topic.DEVICES,
        "--fleet",
        help=f"{_DEVICES}; or who answers: simulate or simulate:8xH100 (the cost model), "
        "replay:FILE.csv#GROUP (a table).",
    ),
]
DevicesName = Annotated[str, option(Topic.DEVICES, "--fleet", help=f"{_DEVICES}.")]
"""A fleet of devices, where nothing but a measurement tells anything."""
FleetOption = Annotated[
    list[str] | None,
    option(
        Topic.DEVICES,
        "--fleet-option",
        metavar="KEY=VALUE",
        help="Option of the fleet, such as python=/opt/venv/bin/python; repeat it.",
    ),
]
Exclusive = Annotated[
    bool,
    option(
        Topic.DEVICES,
        "--exclusive",
        help="No two trials at a time share a PCIe switch or a network card.",
    ),
]
JobPath = Annotated[
    Path | None,
    option(Topic.JOB, "--job", help="Job file (YAML). Flags override its keys."),
]
TrustJob = Annotated[
    bool,
    option(
        Topic.JOB,
        "--trust-job",
        help="Do not ask what a job from outside this folder may run and read.",
    ),
]


@contextmanager
def obtained_fleet(fleet: str, options: FleetOptions) -> Iterator[str]:
    """Hold the nodes that a fleet has to ask for, once the user has agreed; its name then."""
    from autotune.app import session

    with session.obtained_fleet(fleet, options, say=say, agree=ask_for_nodes) as held:
        yield held


def ask_for_nodes(request: str, *, yes: bool = False, dry_run: bool = False) -> None:
    """Say what is asked of a cluster, and end where the user does not want it."""
    say(request)
    if dry_run:
        raise JobError(
            "--dry-run: nodes are not known before they are allocated; nothing was requested",
            "plan on devices that you name, such as --fleet simulate:8xH100",
        )
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


@contextmanager
def in_place() -> Iterator[Callable[[str], None] | None]:
    """What shows progress in one line of the terminal; None off a terminal."""
    if not PROGRESS.is_terminal or PROGRESS.is_dumb_terminal:
        yield None
        return
    with PROGRESS.status("") as status:
        yield lambda line: status.update(Text(scrubbed_text(line)))


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
        raise JobError(
            f"{' and '.join(asked)}: each is another form of the same report",
            f"give one of {', '.join(f'--{name}' for name in forms)}",
        )


def print_files(files: Sequence[Path], *, as_json: bool) -> None:
    """Print what was written, a path per line or as a list."""
    if as_json:
        print_json([str(path) for path in files])
    else:
        emit("".join(f"{one_line(str(path))}\n" for path in files))


def emit(text: str) -> None:
    """Write data to stdout as it is, in one piece."""
    DATA.file.write(text)
    DATA.file.flush()


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Print data for programs."""
    emit(json.dumps(scrubbed(data), indent=indent) + "\n")


def job_file(*, job: JobPath = None, trust_job: TrustJob = False) -> None:
    """The file of a job, for `takes_job`."""


def fleet_flags(
    *,
    gpu: Annotated[
        str | None,
        option(
            Topic.DEVICES,
            help="Accelerator of the fleet, such as H100; this machine's by default.",
        ),
    ] = None,
    per_node: Annotated[
        int | None, option(Topic.DEVICES, help="Accelerators of one node.")
    ] = None,
    network: Annotated[
        str | None,
        option(
            Topic.DEVICES, help="An accelerator's share of its node's network, such as 400Gbps."
        ),
    ] = None,
    nvlink: Annotated[
        str | None,
        option(Topic.DEVICES, help="All links of an accelerator in one node, such as 450GB/s."),
    ] = None,
) -> None:
    """The flags of a fleet, for `takes_job`; fields of `FleetWishes`."""


def takes_job(
    *groups: Callable[..., None], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the keys of the job that are declared for it, as flags.

    They stand in the place of its parameter `flags`, which is a mapping of those that were set.
    Reading the declarations takes pydantic, so it waits until the command is asked for.

    Args:
        groups: Functions whose parameters are flags of the command too, before the keys.
        without: Flags of theirs that the command does not have.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def undeclared() -> None:
            """Stands for the command until `HelpfulCommand` asks what it takes."""

        def declared() -> Callable[..., None]:
            signatures = [inspect.signature(group) for group in groups]
            of_groups = [p for one in signatures for p in one.parameters.values()]
            flags = [p for p in of_groups if p.name not in without]
            return _with_flags(command, [*flags, *_key_flags(command.__name__)])

        vars(undeclared).update(__signature__=inspect.Signature(), declared=declared)
        undeclared.__annotations__ = {}
        return undeclared

    return give


def _key_flags(command: str) -> Iterator[inspect.Parameter]:
    """A flag for each key of the job that a command takes."""
    from autotune.job.job import keys_of

    for name, key in keys_of(command).items():
        kind = key.takes if isinstance(key.takes, type) else str
        # Typer's way to say that a flag only turns something off.
        typed = f" /{key.typed}" if key.typed.startswith("--no-") else key.typed
        flag = option(key.group, typed, help=key.help)
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, flag],
        )


def _with_flags(
    command: Callable[..., None], flags: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """A command that takes flags in the place of its parameter of that name."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += flags if parameter.name == "flags" else [parameter]

    @wraps(command)
    def with_flags(**values: Any) -> None:
        given = {flag.name: values.pop(flag.name) for flag in flags}
        command(flags={n: value for n, value in given.items() if value is not None}, **values)

    # Where typer looks for what a command takes.
    vars(with_flags)["__signature__"] = inspect.Signature(parameters)
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags
