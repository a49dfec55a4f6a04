"""Whether it would work, and why: `check` a file, `soak` a winner, its `ladder`, the `doctor`."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.base.errors import ExitCode, JobError
from autotune.cli.base import (
    DATA,
    RESULTS,
    Debug,
    DevicesName,
    FleetName,
    FleetOption,
    Json,
    Results,
    StudyName,
    cli,
    emit,
    explain,
    in_place,
    obtained_fleet,
    option,
    print_json,
    say,
)
from autotune.job.keys import Topic

if TYPE_CHECKING:
    from autotune.check.run import CheckRun


class CheckFormat(StrEnum):
    """Output formats of `check`."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


@cli.command(epilog="autotune check ds_config.json --fix")
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            help="ds_config.json, accelerate YAML, a file with a DeepSpeed section, a launch "
            "script; a folder, a pattern, or - for standard input."
        ),
    ],
    world: Annotated[
        int | None,
        option(Topic.JOB, help="Accelerators of the run; as the files say by default."),
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="The accelerate YAML that goes with the file.")
    ] = None,
    launch: Annotated[
        str | None, typer.Option(help="The line that starts the training, quoted.")
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(help="Who reads the file: deepspeed, trainer or accelerate."),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(help="Where it will run: cuda or cpu."),
    ] = None,
    deepspeed_version: Annotated[
        str | None,
        typer.Option(help="Release of DeepSpeed, such as 0.18.9; the installed one by default."),
    ] = None,
    megatron_release: Annotated[
        str | None,
        typer.Option(
            help="Release of Megatron Core, such as 0.16; by default an export's own, else the "
            "installed one, or the newest that takes the file's flags."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(Topic.DEVICES, help="For a launch of Megatron-LM: its GPUs, such as A100."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write the fix into the file.")] = False,
    choose: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE=N", help="Take a choice that check lists; repeat it."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Leave out a rule, or several: zero.*; repeat it."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors alone.")] = False,
    form: Annotated[
        CheckFormat, typer.Option("--format", help="For people, programs, or other tools.")
    ] = CheckFormat.TEXT,
    as_json: Annotated[
        bool, option(Topic.OUTPUT, "--json", help="The same as --format json.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Say what is wrong with any ds_config.json, and the fix.

    Ends with 2 if a file would not run, with 3 if one cannot be read, else with 0.
    """
    from autotune.app.check import CheckFlags, check_files
    from autotune.report.check.text import asker, print_run

    form = CheckFormat.JSON if as_json else form
    flags = CheckFlags(
        world=world,
        launch=launch,
        accelerate=accelerate,
        consumer=consumer,
        accelerator=accelerator,
        deepspeed_version=deepspeed_version,
        megatron_release=megatron_release,
        gpu=gpu,
        choose=choose or (),
        ignore=ignore or (),
    )
    ask = asker(DATA) if fix and form is CheckFormat.TEXT else None
    found = check_files(files, flags, fix=fix, ask=ask)
    if form is CheckFormat.TEXT:
        print_run(DATA, found, fixed=fix, quiet=quiet, strict=strict)
    else:
        _print_for_tools(found, form, fixed=fix)
    if form is not CheckFormat.GITHUB:
        for one in found.unread:
            explain(one.error)
    raise typer.Exit(found.exit_code(fixed=fix, strict=strict))


def _print_for_tools(found: "CheckRun", form: CheckFormat, *, fixed: bool) -> None:
    if form is CheckFormat.SARIF:
        from autotune.report.check.sarif import sarif_log

        print_json(sarif_log(found))
    elif form is CheckFormat.GITHUB:
        from autotune.report.check.github import github_lines

        emit("".join(f"{line}\n" for line in github_lines(found)))
    else:
        files = found.to_dicts(fixed=fixed)
        print_json(files[0] if found.is_one_file and len(files) == 1 else files)


@cli.command(epilog="autotune rule batch.product")
def rule(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a rule, such as batch.product; without one all are listed."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Explain a rule of check: what breaks it, and what the engine does then."""
    from autotune.check.rules_page import all_names, markdown_of, page_of
    from autotune.report.terminal.names import print_names

    if name is None:
        print_names(DATA, all_names())
    else:
        DATA.out(markdown_of(page_of(name)).rstrip(), highlight=False)


@cli.command(epilog="autotune soak --minutes 30")
def soak(
    study: StudyName = None,
    export: Annotated[
        Path | None, typer.Option("--from", help="Folder of an export, instead of a study.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Minutes of training, both halves together.")
    ] = 10.0,
    results: Results = RESULTS,
    fleet: DevicesName = "local",
    fleet_option: FleetOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train the best configuration for minutes.

    Half-way a checkpoint is saved, and fresh processes resume it; memory is watched for growth.
    What it found goes to soak.json and into exports. Exit code 5 if it failed or was too short.
    """
    from autotune.app.soak import soak_export, soak_study
    from autotune.app.studies import find_study
    from autotune.fleet.options import options_of
    from autotune.report.terminal.overview import print_soak

    if export is not None and study is not None:
        raise JobError("--study and --from are both given", "name one of them")
    options = options_of(fleet_option or ())
    with obtained_fleet(fleet, options) as held:
        if export is not None:
            found = soak_export(export, minutes=minutes, note=say, fleet=held, options=options)
        else:
            chosen = find_study(results, study)
            found = soak_study(chosen, minutes=minutes, note=say, fleet=held, options=options)
    if found is None:
        raise typer.Exit(ExitCode.INTERRUPTED)
    print_json(asdict(found)) if as_json else print_soak(DATA, found)
    if not found.passed:
        raise typer.Exit(ExitCode.SOAK_FAILED)


@cli.command(epilog="autotune ladder --set zero.stage=3")
def ladder(
    study: StudyName = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KNOB=VALUE",
            help="Go from the baseline to these settings, not to the best; repeat it.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Runs of each configuration.")] = 3,
    results: Results = RESULTS,
    fleet: DevicesName = "local",
    fleet_option: FleetOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what each change from the baseline to the best configuration is worth.

    One change after the other, each alone, and each as the last one, all run again in turns. What
    it found goes to ladder.json and into the page; the same command again resumes.
    """
    from autotune.app.studies import find_study
    from autotune.app.worth import run_ladder
    from autotune.fleet.options import options_of
    from autotune.report.terminal.worth import print_ladder

    options = options_of(fleet_option or ())
    with obtained_fleet(fleet, options) as held:
        found = run_ladder(
            find_study(results, study),
            note=say,
            settings=settings or (),
            rounds=rounds,
            fleet=held,
            options=options,
        )
    if found is None:
        raise typer.Exit(ExitCode.INTERRUPTED)
    print_json(asdict(found)) if as_json else print_ladder(DATA, found)


@cli.command(epilog="autotune doctor")
def doctor(
    build: Annotated[
        bool, typer.Option("--build", help="Build the extensions that trials load, and end.")
    ] = False,
    measure: Annotated[
        bool, typer.Option(help="Run a matrix product and an all-reduce on the devices.")
    ] = True,
    links: Annotated[
        bool,
        typer.Option("--links", help="Measure the links between devices and nodes of a fleet."),
    ] = False,
    fleet: FleetName = "local",
    fleet_option: FleetOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what would not work on this machine, or on each node of a fleet, and why."""
    if fleet != "local":
        if build:
            raise JobError("--build and --fleet are both given", "a search builds on its nodes")
        _examine_fleet(fleet, fleet_option or (), measures_links=links, as_json=as_json)
        return
    if links:
        raise JobError(
            "--links: it needs a fleet of other machines",
            "name one with --fleet, or measure this machine: autotune probe",
        )
    if build:
        from autotune.base.plugins import load_plugin, plugin_names
        from autotune.devices.hardware import detect_environment

        accelerator = detect_environment().accelerator
        with in_place() as on_progress:
            for engine in plugin_names("engine"):
                load_plugin("engine", engine).build(accelerator, say, on_progress)
        return
    from autotune.doctor import Level, diagnose
    from autotune.report.terminal.doctor import print_diagnosis

    diagnosis = diagnose(measure=measure, note=say)
    print_json(diagnosis.to_dict()) if as_json else print_diagnosis(DATA, diagnosis)
    if diagnosis.level is Level.FAIL:
        raise typer.Exit(ExitCode.FLEET_UNAVAILABLE)


def _examine_fleet(
    fleet: str, options: Sequence[str], *, measures_links: bool, as_json: bool
) -> None:
    from autotune.app.session import find_place
    from autotune.doctor import Level
    from autotune.doctor.fleet import diagnose_fleet
    from autotune.fleet.options import options_of
    from autotune.fleet.transports.remote import remote_place
    from autotune.report.terminal.doctor import print_fleet

    chosen = options_of(options)
    with obtained_fleet(fleet, chosen) as held:
        transport = remote_place(find_place(held, None, {}, chosen), held).transport
        found = diagnose_fleet(transport, measures_links=measures_links, note=say)
    print_json(found.to_dict()) if as_json else print_fleet(DATA, found)
    if found.level is Level.FAIL:
        raise typer.Exit(ExitCode.FLEET_UNAVAILABLE)
