"""Commands that read the record: `status`, `report`, `compare`, `export`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.base.errors import ExitCode, JobError
from autotune.cli.base import (
    DATA,
    RESULTS,
    ask_for_nodes,
    asker,
    cli,
    confirm,
    emit,
    is_answered,
    print_files,
    print_json,
    refuse_several,
    say,
)

if TYPE_CHECKING:
    from autotune.app.exports import StudyPatch
    from autotune.export.base import Patched


@cli.command(epilog="autotune status")
def status(results: Path = RESULTS, as_json: bool = False) -> None:
    """Show all studies: outcomes, best, state."""
    from autotune.app.studies import state_of, studies
    from autotune.report.terminal.tables import print_told

    states = [state_of(study) for study in studies(results)]
    if as_json:
        print_json(list(map(dataclasses.asdict, states)))
    else:
        print_told(DATA, "states", {"states": states})


@cli.command(epilog="autotune report --study llama-3.2-1b --html report.html")
def report(
    study: str | None = None,
    results: Path = RESULTS,
    as_json: bool = False,
    as_csv: bool = False,
    as_markdown: bool = False,
    html: Path | None = None,
    trial: int | None = None,
) -> None:
    """Show a study's table, its best and the gain."""
    from autotune.app.studies import explain_trial, find_study

    # With --html, --json is how the file's path is printed.
    if trial is not None:
        refuse_several(csv=as_csv, markdown=as_markdown, html=html, trial=str(trial))
        from autotune.report.terminal.study import print_explanation

        explained = explain_trial(find_study(results, study), trial)
        print_json(explained.as_dict()) if as_json else print_explanation(DATA, explained)
        return
    as_data = as_json and html is None
    refuse_several(json=as_data, csv=as_csv, markdown=as_markdown, html=html)
    from autotune.base.text import csv_text
    from autotune.record.table import load_table
    from autotune.report.story import read_story
    from autotune.report.terminal.study import print_report, render_markdown

    found = find_study(results, study)
    if html is not None:
        from autotune.app.pages import write_page

        print_files([write_page(found, html)], as_json=as_json)
    elif as_markdown:
        emit(render_markdown(read_story(found)))
    elif as_csv:
        emit(csv_text(load_table(found.folder)))
    elif as_json:
        whole = read_story(found)
        rows = json.loads(whole.table.to_json(orient="records"))
        answer = whole.answer and whole.answer.to_dict()
        print_json({"study": found.name, "answer": answer, "trials": rows})
    else:
        print_report(DATA, read_story(found), details=True)


@cli.command(
    epilog="autotune compare before after --html compare.html\n"
    "autotune compare --against best.json --within 5%"
)
def compare(
    runs: list[str] | None = None,
    against: str | None = None,
    within: str = "5%",
    rounds: int = 6,
    results: Path = RESULTS,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
    as_csv: bool = False,
    as_markdown: bool = False,
    html: Path | None = None,
    trust_job: bool = False,
) -> None:
    """Compare studies; or measure a stored best again, for CI.

    Ratios are over the first study. With --against it ends with 0 if the best is as fast as it
    was, with 5 if it is proven to be slower, to take more memory or does not run, and with 6 if
    its runs differ too much to decide.
    """
    if against is not None:
        if runs:
            both = f"--against {against} and {' '.join(runs)}: they are two questions"
            raise JobError(both, "name studies to compare, or what to measure again")
        refuse_several(against=against, csv=as_csv, html=html)
        refuse_several(json=as_json, markdown=as_markdown)
        from autotune.app.api.gates import gate
        from autotune.report.terminal.study import gate_in_markdown

        found = gate(
            against,
            within=within,
            rounds=rounds,
            results=results,
            fleet=fleet,
            fleet_option=fleet_option or (),
            trust_job=trust_job,
            note=say,
            ask=asker(),
            agree=ask_for_nodes,
        )
        if found is None:
            raise typer.Exit(ExitCode.INTERRUPTED)
        if as_markdown:
            emit(gate_in_markdown(found.value))
        else:
            print_json(found.as_dict()) if as_json else found.show(DATA)
        raise typer.Exit(found.value.verdict.exit_code)
    if as_markdown:
        raise JobError.of("cli.markdown_alone")
    refuse_several(json=as_json and html is None, csv=as_csv, html=html)
    from autotune.app.pages import compare_studies, write_comparison
    from autotune.base.text import csv_text
    from autotune.report.terminal.tables import print_parts

    comparison = compare_studies(runs or [], results)
    for warning in comparison.warnings:
        say(f"warning: {warning}")
    if html is not None:
        print_files([write_comparison(comparison, html)], as_json=as_json)
    elif as_csv:
        emit(csv_text(comparison.table))
    elif as_json:
        print_json(comparison.as_dict())
    else:
        print_parts(DATA, comparison.parts())


@cli.command(epilog="autotune export --to hf --launcher slurm --out tuned")
def export(
    out: Path | None = None,
    patch: list[Path] | None = None,
    to: str | None = None,
    launcher: str | None = None,
    study: str | None = None,
    trial: int | None = None,
    allow_loss_drift: bool = False,
    results: Path = RESULTS,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Write the best configuration's files.

    With --patch, show what changes in your own files, ask, and write that.
    """
    from autotune.app.exports import export_study, patch_study
    from autotune.app.studies import find_study

    if patch:
        refuse_several(out=out, to=to, patch=patch)
        patched = patch_study(find_study(results, study), patch, trial=trial, note=say)
        _patch(patched, yes, as_json=as_json)
        return
    if out is None:
        raise JobError.of("cli.nowhere_to_write")
    files = export_study(
        find_study(results, study),
        out,
        to=to,
        trial=trial,
        launcher=launcher,
        allow_loss_drift=allow_loss_drift,
        note=say,
    )
    print_files(files, as_json=as_json)
    if (readme := out / "README.md") in files:
        say(f"{readme} says how to start it")


def _patch(patched: "StudyPatch", yes: bool, *, as_json: bool) -> None:
    """Show what changes in some files, and write it where that is wanted."""
    written = []
    for one in patched.files:
        if not as_json:
            emit(one.diff)
            for left in one.left:
                here = "change by hand" if one.is_by_hand else f"{one.path} does not carry"
                say(f"{here} {left}")
        is_wanted = one.is_changed and (
            yes or (not as_json and is_answered() and confirm(f"Write {one.path}?"))
        )
        if is_wanted:
            patched.write(one)
        written.append({**one.to_dict(), "written": is_wanted})
        if not as_json:
            say(f"{one.path}: {_outcome(one, is_wanted)}")
    if as_json:
        print_json(written)


def _outcome(patch: "Patched", is_written: bool) -> str:
    if patch.is_by_hand:
        return "not written into; what it needs is above"
    if not patch.is_changed:
        return "nothing to change"
    return "written" if is_written else "nothing is written; --yes writes it"
