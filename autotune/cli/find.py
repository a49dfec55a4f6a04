"""`search` and `render`: find a configuration, or write one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.base.errors import ExitCode
from autotune.base.private import KNOWLEDGE_ENV
from autotune.cli.base import (
    DATA,
    PROGRESS,
    RESULTS,
    Debug,
    Dialect,
    Exclusive,
    FleetName,
    FleetOption,
    JobPath,
    Json,
    LauncherName,
    Results,
    TrustJob,
    agreed_job,
    ask_for_nodes,
    cli,
    confirm,
    explain,
    fleet_flags,
    is_answered,
    job_file,
    job_keys,
    obtained_fleet,
    print_files,
    print_json,
    say,
    takes,
)
from autotune.cli.help import HelpfulCommand

if TYPE_CHECKING:
    from autotune.app.run import SearchEnding
    from autotune.search.plan import Plan


class _SearchCommand(HelpfulCommand):
    """`search`, whose help ends with what its knobs were never tried on."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Only here: no other command should wait for the registry of the knobs."""
        from autotune.record.tried import summary

        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(summary())


def _search_keys(
    *,
    engine: Annotated[
        str | None,
        typer.Option(help="What trains: deepspeed (by default), megatron, or both in turn."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="samples_per_s, peak_memory, or pareto (both).")
    ] = None,
    objective_floor: Annotated[
        float | None, typer.Option(help="With peak_memory: share of the best samples/s to keep.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="calibrated, tpe, gp, random, or grid (every candidate).")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Trials of the search, 20 by default, with grid all; baseline and finalists "
            "come on top."
        ),
    ] = None,
    fidelity: Annotated[
        str | None,
        typer.Option(
            help="Begin with reduced trials, such as layers=4 or world=smallest; they only teach."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time in which trials may run, such as 20m.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many trials without a gain.")
    ] = None,
    gpu_hours: Annotated[
        float | None,
        typer.Option(
            help="Accelerators times hours of the training at the baseline's speed: stop when "
            "another trial is expected to save less than it costs."
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="Of one accelerator for an hour, to say what trials cost; or by kind: "
            "H100=2.5,A100=1.2."
        ),
    ] = None,
    trial_timeout: Annotated[
        str | None, typer.Option(help="Most time that one trial may take, such as 10m.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Your own file, to start from and to compare with: a ds_config, an "
            "accelerate YAML, a file of training arguments, a shell file with a launch line; for "
            "Megatron that, or a YAML for --yaml-cfg."
        ),
    ] = None,
    accelerators: Annotated[
        Path | None,
        typer.Option(
            help="YAML of accelerators for predictions, such as the probe's hardware.yaml."
        ),
    ] = None,
    megatron_arguments: Annotated[
        str | None,
        typer.Option(
            help="Arguments of your own for that script, kept in every trial, such as "
            "'--data-path /data/corpus --split 99,1,0'."
        ),
    ] = None,
    no_diagnose: Annotated[
        bool,
        typer.Option(
            "--no-diagnose", help="Leave out the watched steps that show where time goes."
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            help="How trials start: warm by default, forked from a process that has imported "
            "everything; the runs that confirm the result are cold in any case."
        ),
    ] = None,
    guard_steps: Annotated[
        int | None,
        typer.Option(
            help="First steps whose losses the best has to share with the baseline: 20 by "
            "default, 0 for none."
        ),
    ] = None,
    allow_loss_drift: Annotated[
        bool | None,
        typer.Option("--allow-loss-drift", help="Export the best even if its losses drift."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Who runs again beside the baseline in the end: all (by default) that may be "
            "the best, or best: it alone, in at least three rounds."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler and the trials.")] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; follows from the job by default.")
    ] = None,
) -> None:
    """Keys of a job that is searched, beside those of `job_keys`, for `takes`."""


@cli.command(
    cls=_SearchCommand,
    epilog="autotune search --model llama-3.2-1b --seq-len 2048 --global-batch 32\n"
    "autotune search -- torchrun --nproc-per-node 2 train.py --deepspeed ds.json",
)
@takes(keys=job_keys, flags=_search_keys)
def search(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]",
            help="The command that starts your own training, after --; it is tuned unchanged.",
        ),
    ] = None,
    *,
    job: JobPath = None,
    keys: dict[str, Any],
    flags: dict[str, Any],
    results: Results = RESULTS,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; the old study is kept beside it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its price, and run no trial.")
    ] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option(help="File for a copy of the Prometheus metrics."),
    ] = None,
    knowledge: Annotated[
        Path | None,
        typer.Option(
            help="File of what earlier studies taught; in your cache by default, wherever "
            "--results are.",
            envvar=KNOWLEDGE_ENV,
        ),
    ] = None,
    fleet: FleetName = "local",
    fleet_option: FleetOption = None,
    exclusive: Exclusive = False,
    no_knowledge: Annotated[
        bool,
        typer.Option(
            "--no-knowledge",
            help="Learn from no other study, and teach none: without it a study under any "
            "--results teaches your cache.",
        ),
    ] = False,
    trust_job: TrustJob = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Search even where no trial is predicted to succeed.")
    ] = False,
    with_ladder: Annotated[
        bool,
        typer.Option("--ladder", help="Afterwards measure what each change is worth."),
    ] = False,
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
    from autotune.app.searching import Caller, SearchCall, run_searches
    from autotune.fleet.options import options_of
    from autotune.report.terminal.live import view_for
    from autotune.report.terminal.study import print_plan

    def show_plan(plan: "Plan") -> None:
        if not dry_run:
            print_plan(PROGRESS, plan, reasons=False)
        elif as_json:
            print_json(plan.as_dict(), indent=None)
        else:
            print_plan(DATA, plan, reasons=True)

    def may_run(is_hopeful: bool) -> bool:
        return _agrees("Run it?", default=is_hopeful) if _asks(yes) else is_hopeful

    if flags.pop("no_diagnose"):
        flags["diagnose"] = False
    call = SearchCall(
        flags={**keys, **flags},
        job_file=job,
        command=command or (),
        results=results,
        fleet=fleet,
        options=options_of(fleet_option or (), exclusive=exclusive),
        fresh=fresh,
        dry_run=dry_run,
        force=force,
        trust_job=trust_job,
        with_ladder=with_ladder,
        metrics_file=metrics_file,
        knowledge=knowledge,
        no_knowledge=no_knowledge,
    )
    caller = Caller(
        say=say,
        trust=confirm if is_answered() else None,
        ask_for_nodes=lambda request: ask_for_nodes(request, yes=yes, dry_run=dry_run),
        show_plan=show_plan,
        confirm=may_run,
        watch=lambda session: view_for(
            PROGRESS, session.lattice.context, session.job.objective.name
        ),
    )
    ended = run_searches(call, caller)
    if len(ended) > 1:
        _show_endings(ended, as_json=as_json)
    elif ended:
        _show_ending(ended[0], as_json=as_json)
    if ended:
        codes = [exit_code(ending.answer) for ending in ended]
        raise typer.Exit(codes[-1] if ended[-1].answer.interrupted else min(codes))


def _diagnose_keys(
    *,
    world: Annotated[
        int | None, typer.Option(help="Ranks that the command starts, if it does not say so.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="Knobs whose changes are predicted; script by default.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Most memory of each device, such as 24GiB.")
    ] = None,
    trial_timeout: Annotated[
        str | None, typer.Option(help="Most time that the run may take, such as 10m.")
    ] = None,
    accelerators: Annotated[
        Path | None,
        typer.Option(
            help="YAML of accelerators for predictions, such as the probe's hardware.yaml."
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; follows from the command by default.")
    ] = None,
) -> None:
    """Keys of a job that a diagnosis takes, for `takes`."""


@cli.command(
    epilog="autotune diagnose -- torchrun --nproc-per-node 2 train.py --deepspeed ds.json"
)
@takes(flags=_diagnose_keys)
def diagnose(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND", help="The command that starts your own training, after --."
        ),
    ],
    *,
    flags: dict[str, Any],
    results: Results = RESULTS,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run it anew; the old study is kept beside it.")
    ] = False,
    fleet: FleetName = "local",
    fleet_option: FleetOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run your own training command for a few steps, and say what it does.

    Speed, memory, where a step's time goes and what bounds it, which settings do nothing or never
    arrived, and the changes that are predicted to gain most. A search of the same command goes on
    from it.
    """
    from autotune.app.diagnose import diagnose as run
    from autotune.fleet.options import options_of
    from autotune.report.terminal.study import print_script_diagnosis

    options = options_of(fleet_option or ())
    with obtained_fleet(fleet, options) as held:
        found = run(
            command, flags, results=results, fresh=fresh, note=say, fleet=held, options=options
        )
    print_json(found.as_dict()) if as_json else print_script_diagnosis(DATA, found)


@cli.command(
    epilog="autotune render --model llama-3-8b --seq-len 4096 --global-batch 256 \\\n"
    "    --world 64 --gpu H100 --set zero.stage=3 --out chosen"
)
@takes(
    file=job_file,
    keys=job_keys,
    fleet=fleet_flags,
    without={"space", "network_topology", "network", "nvlink"},
)
def render(
    *,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    file: dict[str, Any],
    keys: dict[str, Any],
    fleet: dict[str, Any],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KNOB=VALUE", help="A setting, such as zero.stage=2; repeat it."
        ),
    ] = None,
    to: Dialect = None,
    launcher: LauncherName = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of one candidate.

    Knobs that are not set are at the base configuration's values or DeepSpeed's defaults. The
    machines that will train need not be here: name their accelerators with --gpu.
    """
    from autotune.app.session import render as write
    from autotune.planning.outlook import FleetWishes

    job = file.get("job")
    agreed = agreed_job(job, keys, is_trusted=file.get("trust_job", False))
    files, notes = write(
        job,
        keys,
        settings or [],
        out,
        to=to,
        launcher=launcher,
        wishes=FleetWishes(**fleet),
        agreed=agreed,
    )
    for note in notes:
        say(note)
    print_files(files, as_json=as_json)


def _show_ending(ending: "SearchEnding", *, as_json: bool) -> None:
    """Print a search's answer with its ladder, and raise why there is none."""
    if as_json:
        print_json(ending.to_dict(), indent=None)
    if ending.error is not None:
        raise ending.error
    if not as_json:
        _print_answer(ending)


def _print_answer(ending: "SearchEnding") -> None:
    from autotune.report.story import read_story
    from autotune.report.terminal.study import print_report
    from autotune.report.terminal.worth import print_ladder

    print_report(DATA, read_story(ending.answer.study))
    if ending.ladder is not None:
        DATA.print()
        print_ladder(DATA, ending.ladder)


def _show_endings(endings: "Sequence[SearchEnding]", *, as_json: bool) -> None:
    """Print what each search found, and the comparison: of kinds of devices, or of engines."""
    from autotune.app.pages import compare_studies
    from autotune.report.compare.terminal import print_comparison

    errors = [ending.error for ending in endings if ending.error is not None]
    if len(errors) == len(endings):
        raise errors[-1]
    for error in errors:
        explain(error)
    answers = [ending.answer for ending in endings]
    folders = [str(answer.study.folder) for answer in answers]
    comparison = compare_studies(folders, answers[0].study.root)
    if as_json:
        told = [ending.to_dict() for ending in endings]
        print_json({"answers": told, "comparison": comparison.as_dict()}, indent=None)
    else:
        for ending in endings:
            _print_answer(ending)
        print_comparison(DATA, comparison)


def _asks(yes: bool) -> bool:
    """Whether the user is asked before a search runs; a script has decided."""
    return not yes and is_answered()


def _agrees(question: str, *, default: bool) -> bool:
    """Whether the user says yes; the program ends where they do not."""
    if not confirm(question, default=default):
        raise typer.Exit(ExitCode.INTERRUPTED)
    return True
