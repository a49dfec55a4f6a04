"""`search` and `render`: find a configuration, or write one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.base.errors import ExitCode
from autotune.cli.base import (
    DATA,
    PROGRESS,
    RESULTS,
    ask_for_nodes,
    asker,
    cli,
    confirm,
    explain,
    is_answered,
    obtained_fleet,
    print_files,
    print_json,
    say,
)
from autotune.cli.flags import fleet_flags, job_file, lesson_flags, takes_job

if TYPE_CHECKING:
    from autotune.app.searching import Found
    from autotune.record.answer import SearchAnswer
    from autotune.record.worth import Ladder
    from autotune.search.plan import Plan


@cli.command(
    epilog="autotune search --model llama-3.2-1b --seq-len 2048 --global-batch 32\n"
    "autotune search -- torchrun --nproc-per-node 2 train.py --deepspeed ds.json",
)
@takes_job(job_file)
def search(
    command: list[str] | None = None,
    *,
    flags: dict[str, Any],
    results: Path = RESULTS,
    fresh: bool = False,
    dry_run: bool = False,
    knowledge: Path | None = None,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    exclusive: bool = False,
    no_knowledge: bool = False,
    yes: bool = False,
    force: bool = False,
    with_ladder: bool = False,
    as_json: bool = False,
) -> None:
    """Search for the fastest configuration.

    The same command again resumes. Without a model it tunes a small built-in one on the devices
    of this machine.
    """
    from autotune.app.run import exit_code
    from autotune.app.searching import run_searches
    from autotune.cost.knowledge import file_for
    from autotune.fleet.options import options_of
    from autotune.report.terminal.live import view_for
    from autotune.report.terminal.study import print_plan

    plans: list[Plan] = []

    def show_plan(plan: "Plan") -> None:
        plans.append(plan)
        if not dry_run:
            print_plan(PROGRESS, plan, reasons=False)
        elif as_json:
            print_json(plan.as_dict(), indent=None)
        else:
            print_plan(DATA, plan, reasons=True)

    job, is_trusted = flags.pop("job", None), flags.pop("trust_job")
    found = run_searches(
        flags,
        job_file=job,
        trust_job=is_trusted,
        command=command or (),
        results=results,
        fleet=fleet,
        options=options_of(fleet_option or (), exclusive=exclusive),
        fresh=fresh,
        dry_run=dry_run,
        force=force,
        with_ladder=with_ladder,
        knowledge=file_for(knowledge, is_used=not no_knowledge),
        say=say,
        ask=asker(),
        ask_for_nodes=lambda request: ask_for_nodes(request, yes=yes, dry_run=dry_run),
        show_plan=show_plan,
        confirm=lambda hopeful: _agrees("Run it?", default=hopeful) if _asks(yes) else hopeful,
        watch=lambda session: view_for(
            PROGRESS, session.lattice.context, session.job.objective.name
        ),
    )
    if dry_run and not any(plan.prospect is None or plan.prospect.may_fit for plan in plans):
        raise typer.Exit(ExitCode.NOTHING_FEASIBLE)
    if len(found) > 1:
        _show_several(found, as_json=as_json)
    elif found:
        _show_one(found[0], as_json=as_json)
    if found:
        codes = [exit_code(answer) for answer, _ in found]
        raise typer.Exit(codes[-1] if found[-1][0].interrupted else min(codes))


@cli.command(
    epilog="autotune diagnose -- torchrun --nproc-per-node 2 train.py --deepspeed ds.json"
)
@takes_job()
def diagnose(
    command: list[str],
    *,
    flags: dict[str, Any],
    results: Path = RESULTS,
    fresh: bool = False,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Run your own training command for some steps, and explain it.

    Speed, memory, where a step's time goes and what bounds it, which settings do nothing or never
    arrived, and the changes that are predicted to gain most. A search of the same command goes on
    from it.
    """
    from autotune.app.diagnose import diagnose as run
    from autotune.report.explain.script import describe_script
    from autotune.report.terminal.tables import print_facts

    with obtained_fleet(fleet, fleet_option) as (held, options):
        found = run(
            command,
            flags,
            results=results,
            fresh=fresh,
            note=say,
            fleet=held,
            options=options,
            typed={"fleet": fleet, "fleet_option": fleet_option or []},
        )
    print_json(found.as_dict()) if as_json else print_facts(DATA, describe_script(found))


@cli.command(
    epilog="autotune render --model llama-3-8b --seq-len 4096 --global-batch 256 \\\n"
    "    --world 64 --gpu H100 zero.stage=3 --out chosen"
)
@takes_job(job_file, fleet_flags, lesson_flags)
def render(
    *,
    out: Path,
    flags: dict[str, Any],
    settings: list[str] | None = None,
    to: str | None = None,
    launcher: str | None = None,
    as_json: bool = False,
) -> None:
    """Write the files of one configuration, without a search.

    Knobs that are not set are at the base configuration's values or the engine's defaults. The
    machines that will train need not be here: name their accelerators with --gpu.
    """
    from autotune.app.api.predictions import taught_by
    from autotune.app.consent import agree_to_job
    from autotune.app.planning import render as write
    from autotune.planning.outlook import FleetWishes

    job, is_trusted = flags.pop("job", None), flags.pop("trust_job")
    links = ("per_node", "network", "nvlink")
    wishes = FleetWishes(**{name: flags.pop(name, None) for name in links})
    lessons = taught_by(flags.pop("knowledge", None), flags.pop("no_knowledge", False), say=say)
    text = agree_to_job(job, flags, is_trusted=is_trusted, say=say, ask=asker())
    files, notes = write(
        text,
        flags,
        settings or [],
        out,
        to=to,
        launcher=launcher,
        wishes=wishes,
        lessons=lessons,
    )
    for note in notes:
        say(note)
    print_files(files, as_json=as_json)


def _show_one(found: "Found", *, as_json: bool) -> None:
    """Print a search's answer with its ladder, and raise why there is none."""
    from autotune.app.searching import answer_as_dict

    answer, _ = found
    if as_json:
        print_json(answer_as_dict(*found), indent=None)
    if answer.problem is not None:
        raise answer.problem.error
    if not as_json:
        _print_answer(*found)


def _print_answer(answer: "SearchAnswer", ladder: "Ladder | None") -> None:
    from autotune.report.story import read_story
    from autotune.report.terminal.study import print_answer

    print_answer(DATA, read_story(answer.study), ladder)


def _show_several(found: "Sequence[Found]", *, as_json: bool) -> None:
    """Print what each search found, and the comparison: of kinds of devices, or of engines."""
    from autotune.app.pages import compare_studies
    from autotune.app.searching import answer_as_dict
    from autotune.report.terminal.tables import print_parts

    answers = [answer for answer, _ in found]
    errors = [answer.problem.error for answer in answers if answer.problem is not None]
    if len(errors) == len(answers):
        raise errors[-1]
    for error in errors:
        explain(error)
    folders = [str(answer.study.folder) for answer in answers]
    comparison = compare_studies(folders, answers[0].study.root)
    if as_json:
        data = [answer_as_dict(*one) for one in found]
        print_json({"answers": data, "comparison": comparison.as_dict()}, indent=None)
    else:
        for one in found:
            _print_answer(*one)
        print_parts(DATA, comparison.parts())


def _asks(yes: bool) -> bool:
    return not yes and is_answered()


def _agrees(question: str, *, default: bool) -> bool:
    """Whether the user says yes; the program ends where they do not."""
    if not confirm(question, default=default):
        raise typer.Exit(ExitCode.INTERRUPTED)
    return True
