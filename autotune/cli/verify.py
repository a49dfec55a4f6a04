"""Whether it would work, and why: `check` a file, `soak` a winner, its `ladder`, the `doctor`."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.base.errors import ExitCode, JobError
from autotune.cli.base import (
    DATA,
    RESULTS,
    cli,
    emit,
    explain,
    in_place,
    obtained_fleet,
    print_json,
    say,
    show_markdown,
)

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
    files: list[str],
    world: int | None = None,
    accelerate: Path | None = None,
    launch: str | None = None,
    consumer: str | None = None,
    accelerator: str | None = None,
    deepspeed_version: str | None = None,
    megatron_release: str | None = None,
    megatron_path: Path | None = None,
    gpu: str | None = None,
    fix: bool = False,
    choose: list[str] | None = None,
    ignore: list[str] | None = None,
    strict: bool = False,
    quiet: bool = False,
    form: CheckFormat = CheckFormat.TEXT,
    as_json: bool = False,
) -> None:
    """Find what is wrong with ds_configs and launch files, and fix it.

    Ends with 2 if a file would not run, with 3 if one cannot be read, else with 0.
    """
    from autotune.app.check import CheckFlags, check_files
    from autotune.report.check.text import print_run

    form = CheckFormat.JSON if as_json else form
    flags = CheckFlags(
        world=world,
        launch=launch,
        accelerate=accelerate,
        consumer=consumer,
        accelerator=accelerator,
        deepspeed_version=deepspeed_version,
        megatron_release=megatron_release,
        megatron_path=megatron_path,
        gpu=gpu,
        choose=choose or (),
        ignore=ignore or (),
    )
    found = check_files(files, flags, fix=fix)
    if form is CheckFormat.TEXT:
        print_run(DATA, found, fixed=fix, quiet=quiet, strict=strict)
    else:
        _print_for_tools(found, form, fixed=fix)
    if form is not CheckFormat.GITHUB:
        for one in found.unread:
            explain(one.error)
    raise typer.Exit(found.exit_code(fixed=fix, strict=strict))


def _print_for_tools(found: "CheckRun", form: CheckFormat, *, fixed: bool) -> None:
    from autotune.report.check.tools import github_lines, sarif_log

    if form is CheckFormat.SARIF:
        print_json(sarif_log(found))
    elif form is CheckFormat.GITHUB:
        emit("".join(f"{line}\n" for line in github_lines(found)))
    else:
        files = found.to_dicts(fixed=fixed)
        print_json(files[0] if found.is_one_file and len(files) == 1 else files)


@cli.command(epilog="autotune rule batch.product")
def rule(
    name: str | None = None,
) -> None:
    """Explain a rule of check: what breaks it, and what happens then."""
    from autotune.check.rules_page import all_names, markdown_of, page_of, summary_of
    from autotune.report.terminal.tables import print_facts

    if name is None and DATA.is_terminal:
        print_facts(DATA, [(one, summary_of(one)) for one in all_names()])
    elif name is None:
        emit("\n".join([*all_names(), ""]))
    else:
        show_markdown(markdown_of(page_of(name)))


@cli.command(epilog="autotune soak --minutes 30")
def soak(
    study: str | None = None,
    export: Path | None = None,
    minutes: float = 10.0,
    results: Path = RESULTS,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Test the best configuration before a long run, for some minutes.

    Half-way a checkpoint is saved, and fresh processes resume it; memory is watched for growth.
    What it found goes to soak.json and into exports. Exit code 5 if it failed or was too short.
    """
    from autotune.app.soak import run_soak
    from autotune.app.studies import find_study
    from autotune.record.soak import describe_soak
    from autotune.report.terminal.tables import print_told

    if export is not None and study is not None:
        raise JobError("--study and --from are both given", "name one of them")
    with obtained_fleet(fleet, fleet_option) as (held, options):
        chosen = export or find_study(results, study)
        found = run_soak(chosen, minutes=minutes, note=say, fleet=held, options=options)
    if found is None:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if as_json:
        print_json(asdict(found))
    else:
        print_told(DATA, "soak", {"soak": found, "described": describe_soak(found)})
    if not found.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@cli.command(epilog="autotune ladder zero.stage=3")
def ladder(
    study: str | None = None,
    settings: list[str] | None = None,
    rounds: int = 3,
    results: Path = RESULTS,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Measure what each change from the baseline to the best is worth.

    One change after the other, each alone, and each as the last one, all run again in turns. With
    settings it goes from the baseline to these. What it found goes to ladder.json and into the
    page; the same command again resumes.
    """
    from autotune.app.studies import find_study
    from autotune.app.worth import run_ladder
    from autotune.report.terminal.tables import print_told

    with obtained_fleet(fleet, fleet_option) as (held, options):
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
    print_json(asdict(found)) if as_json else print_told(DATA, "ladder", {"ladder": found})


@cli.command(epilog="autotune doctor")
def doctor(
    build: bool = False,
    measure: bool = True,
    links: bool = False,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Say what would not work on this machine or on a fleet's nodes."""
    if fleet != "local":
        if build:
            raise JobError("--build and --fleet are both given", "a search builds on its nodes")
        _examine_fleet(fleet, fleet_option, measures_links=links, as_json=as_json)
        return
    if links:
        raise JobError.of("cli.links_of_one_machine")
    if build:
        from autotune.base.plugins import load_plugin, plugin_names
        from autotune.devices.hardware import detect_environment

        accelerator = detect_environment().accelerator
        with in_place() as on_progress:
            for engine in plugin_names("engine"):
                load_plugin("engine", engine).build(accelerator, say, on_progress)
        return
    from autotune.doctor import Level, diagnose
    from autotune.report.terminal.doctor import print_remarks

    diagnosis = diagnose(measure=measure, note=say)
    print_json(diagnosis.to_dict()) if as_json else print_remarks(DATA, diagnosis.findings)
    if diagnosis.level is Level.FAIL:
        raise typer.Exit(ExitCode.FLEET_UNAVAILABLE)


def _examine_fleet(
    fleet: str, fleet_option: Sequence[str] | None, *, measures_links: bool, as_json: bool
) -> None:
    from autotune.app.session import find_place
    from autotune.doctor import Level
    from autotune.doctor.fleet import diagnose_fleet
    from autotune.fleet.transports.remote import remote_place
    from autotune.report.terminal.doctor import print_fleet

    with obtained_fleet(fleet, fleet_option) as (held, options):
        transport = remote_place(find_place(held, None, {}, options), held).transport
        found = diagnose_fleet(transport, measures_links=measures_links, note=say)
    print_json(found.to_dict()) if as_json else print_fleet(DATA, found)
    if found.level is Level.FAIL:
        raise typer.Exit(ExitCode.FLEET_UNAVAILABLE)
