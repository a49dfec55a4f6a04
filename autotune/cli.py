"""The command line: reads flags, calls `autotune.app`, prints; no logic.

Data goes to stdout, everything else to stderr. What a command needs is imported inside it: Optuna
and pandas are heavy, and `--help` must not wait for them.
"""

import dataclasses
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from autotune.errors import AutotuneError, ExitCode

cli = typer.Typer(
    name="autotune",
    help=(
        "Find the DeepSpeed configuration that trains a model fastest in the memory there is, "
        "with short real trials."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_PROGRESS = Console(stderr=True)
"""Progress and messages."""
_DATA = Console()
"""Reports for people; data for programs is printed as it is."""
_debug = False


def main() -> None:
    """Run the command line; exit codes are those of `autotune.errors.ExitCode`."""
    try:
        cli(prog_name="autotune")
    except SystemExit as end:
        # Typer makes this of Ctrl-C as well, wherever it comes.
        if end.code == ExitCode.INTERRUPTED:
            _PROGRESS.print("interrupted: nothing that ended is lost", highlight=False)
        raise
    except AutotuneError as error:
        _explain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # Such as a full disk under the table: what has ended is in the record already.
        if _debug:
            traceback.print_exc()
        _PROGRESS.print(Text(f"error: {error}", style="red"))
        _print_notes(error)
        sys.exit(ExitCode.INVALID_INPUT)


def _set_debug(value: bool) -> None:
    global _debug
    _debug = _debug or value


Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Results = Annotated[Path, typer.Option(help="Folder of all studies.")]
_RESULTS = Path("results")
StudyName = Annotated[
    str | None, typer.Option("--study", help="Name of the study; the last one by default.")
]
Dialect = Annotated[str, typer.Option(help="Whose files: a dialect, such as deepspeed.")]
JobPath = Annotated[
    Path | None, typer.Option("--job", help="A job as YAML; flags come before its keys.")
]


@cli.command()
def search(
    job: JobPath = None,
    model: Annotated[
        str | None,
        typer.Option(help="Preset, Hugging Face folder, config.json or package.module:factory."),
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per sample.")] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per optimizer step, over all ranks.")
    ] = None,
    world: Annotated[
        int | None, typer.Option(help="Accelerators of the real run; all there are by default.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32.")] = None,
    lora_rank: Annotated[
        int | None, typer.Option(help="Train LoRA adapters of this rank; all else is frozen.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="fixed, packed, or a CSV file of length,count.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Knobs to search: a shipped space or a YAML file.")
    ] = None,
    objective: Annotated[str | None, typer.Option(help="samples_per_s or peak_memory.")] = None,
    objective_floor: Annotated[
        float | None, typer.Option(help="With peak_memory: share of the best samples/s to keep.")
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe or random.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of the search; baseline and finalists come on top.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for everything, such as 20m.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many trials without a gain.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Per device, such as 24GiB; a cap on what trials get.")
    ] = None,
    head_room: Annotated[
        float | None, typer.Option(help="Share of the memory to leave free (0 to 1).")
    ] = None,
    trial_timeout: Annotated[
        str | None, typer.Option(help="Most time that one trial may take, such as 10m.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Your ds_config.json, to be compared with.")
    ] = None,
    base_config: Annotated[
        Path | None, typer.Option(help="A ds_config.json to merge under the tuned knobs.")
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(help="Folder of templates that replace shipped ones.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampler and the trials.")] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; follows from the job by default.")
    ] = None,
    results: Results = _RESULTS,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; the old study is kept beside it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its price, and run nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Search for the fastest configuration.

    The same command again resumes. Without a model it tunes a small built-in one on the devices
    of this machine.
    """
    from autotune.app.run import exit_code
    from autotune.app.run import search as run
    from autotune.app.session import open_session, plan_search
    from autotune.app.studies import read_report
    from autotune.report.live import view_for
    from autotune.report.terminal import print_plan, print_report

    flags = _given(
        model=model,
        seq_len=seq_len,
        global_batch=global_batch,
        world=world,
        precision=precision,
        lora_rank=lora_rank,
        lengths=lengths,
        space=space,
        objective=objective,
        objective_floor=objective_floor,
        sampler=sampler,
        trials=trials,
        budget=budget,
        patience=patience,
        memory_limit=memory_limit,
        head_room=head_room,
        trial_timeout=trial_timeout,
        baseline=baseline,
        base_config=base_config,
        templates=templates,
        seed=seed,
        study=study,
    )
    session = open_session(job, flags, results=results)
    plan = plan_search(session, fresh=fresh)
    if dry_run:
        _print_json(plan.as_dict()) if as_json else print_plan(_DATA, plan, reasons=True)
        return
    print_plan(_PROGRESS, plan, reasons=False)
    _confirm(yes)
    with view_for(_PROGRESS, session.lattice.context) as view:
        ending = run(session, view, fresh=fresh)
    if as_json:
        _print_json(ending.answer, indent=None)
    if ending.error is not None:
        raise ending.error
    if not as_json:
        print_report(_DATA, read_report(session.study))
    raise typer.Exit(exit_code(ending.answer))


@cli.command()
def render(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    job: JobPath = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Such as zero.stage=2; repeat it."),
    ] = None,
    to: Dialect = "deepspeed",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of one candidate.

    Knobs that are not set are at the base configuration's values or DeepSpeed's defaults.
    """
    from autotune.app.session import render as write

    files, notes = write(job, {}, settings or [], out, to=to)
    for note in notes:
        _PROGRESS.print(note, markup=False, highlight=False)
    _print_files(files, as_json=as_json)


@cli.command()
def status(results: Results = _RESULTS, as_json: Json = False, debug: Debug = False) -> None:
    """Show all studies: outcomes, best, state."""
    from autotune.app.studies import state_of, studies
    from autotune.report.overview import print_states

    states = [state_of(study) for study in studies(results)]
    if as_json:
        _print_json([dataclasses.asdict(state) for state in states])
    else:
        print_states(_DATA, states)


@cli.command()
def report(
    study: StudyName = None,
    results: Results = _RESULTS,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    debug: Debug = False,
) -> None:
    """Show a study's table, its best and the gain."""
    from autotune.app.studies import find_study, read_report
    from autotune.report.terminal import print_report
    from autotune.table import load_table

    found = find_study(results, study)
    if as_csv:
        sys.stdout.write(load_table(found.folder).to_csv(index=False))
    elif as_json:
        answer = read_report(found).answer
        rows = json.loads(load_table(found.folder).to_json(orient="records"))
        _print_json({"study": found.name, "answer": answer, "trials": rows})
    else:
        print_report(_DATA, read_report(found))


@cli.command()
def export(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    to: Dialect = "deepspeed",
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="A trial; the best one by default.")] = None,
    results: Results = _RESULTS,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of the best configuration."""
    from autotune.app.studies import find_study, write_export

    files = write_export(find_study(results, study), out, to=to, trial=trial)
    _print_files(files, as_json=as_json)


@cli.command()
def doctor(
    build: Annotated[
        bool, typer.Option("--build", help="Build the extensions that trials load, and end.")
    ] = False,
    measure: Annotated[
        bool, typer.Option(help="Run a matrix product and an all-reduce on the devices.")
    ] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what would not work on this machine, and why."""
    if build:
        from autotune import extensions
        from autotune.hardware import detect_environment

        extensions.build(
            detect_environment().accelerator,
            lambda line: _PROGRESS.print(line, markup=False, highlight=False),
        )
        return
    from autotune.doctor import Level, diagnose
    from autotune.report.overview import print_diagnosis

    diagnosis = diagnose(measure=measure)
    _print_json(diagnosis.to_dict()) if as_json else print_diagnosis(_DATA, diagnosis)
    if diagnosis.level is Level.FAIL:
        raise typer.Exit(ExitCode.FLEET_UNAVAILABLE)


def _given(**flags: Any) -> dict[str, Any]:
    """The flags that were set; the others are the job file's, or the defaults'."""
    return {name: value for name, value in flags.items() if value is not None}


def _confirm(yes: bool) -> None:
    """Ask on a terminal; a script has decided already."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    try:
        agreed = typer.confirm("Run it?", default=True, err=True)
    except typer.Abort as error:
        # Ctrl-C, or the terminal is gone.
        _PROGRESS.print()
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    if not agreed:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _explain(error: AutotuneError) -> None:
    """What is wrong and how to mend it; the traceback only where it was asked for."""
    if _debug:
        traceback.print_exception(error)
    _PROGRESS.print(Text(f"error: {error.message}", style="red"))
    if error.hint:
        _PROGRESS.print(Text(f"  fix: {error.hint}"))
    _print_notes(error)


def _print_notes(error: BaseException) -> None:
    """What went wrong on top of it."""
    for note in getattr(error, "__notes__", ()):
        _PROGRESS.print(Text(f"  also: {note}"))


def _print_files(files: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        _print_json([str(path) for path in files])
    else:
        sys.stdout.writelines(f"{path}\n" for path in files)


def _print_json(data: Any, *, indent: int | None = 2) -> None:
    sys.stdout.write(json.dumps(data, indent=indent) + "\n")
