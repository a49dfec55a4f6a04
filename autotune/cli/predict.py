"""`probe`, `plan`, `explain` and `estimate`: measure for the cost model, and ask it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.base.errors import ExitCode, JobError
from autotune.base.private import KNOWLEDGE_ENV
from autotune.cli.base import (
    DATA,
    PROGRESS,
    asker,
    cli,
    obtained_fleet,
    print_files,
    print_json,
    say,
    say_meanwhile,
)
from autotune.cli.flags import fleet_flags, job_file, lesson_flags, takes_job

if TYPE_CHECKING:
    from autotune.report.shown import Shown

_MOST_REASONS = 10


@cli.command(epilog="autotune probe --out hardware.yaml")
def probe(
    world: int | None = None,
    out: Path = Path("hardware.yaml"),
    nvme: Path | None = None,
    quick: bool = False,
    fleet: str = "local",
    fleet_option: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Measure the devices and the links between them.

    The file goes to --accelerators of search, plan, explain and estimate. Devices and links that
    are slower than others are warned of. With --fleet the nodes of a fleet measure together.
    """
    from autotune.app.probe import probe_place
    from autotune.app.session import find_place
    from autotune.probe.hardware_file import write_hardware
    from autotune.report.terminal.tables import print_told

    disk = None if nvme is None else str(nvme)
    with obtained_fleet(fleet, fleet_option) as (held, options):
        place = find_place(held, None, {}, options)
        found = probe_place(out, place, world=world, disk=disk, is_quick=quick, note=say)
    # Before it is written: a disk that has filled up meanwhile takes no figure away.
    if as_json:
        print_json({"file": str(out), "accelerators": found.entry, "probe": found.about})
    else:
        print_told(DATA, "probe_figures", {"probe": found})
    write_hardware(out, found.entry, found.about)
    if not as_json:
        say(f"wrote {out}")


def _show(found: "Shown[Any]", *, as_json: bool) -> None:
    print_json(found.as_dict()) if as_json else found.show(DATA)


@cli.command(
    epilog="autotune plan --model llama-3-8b --seq-len 4096 --global-batch 256 \\\n"
    "    --world 64 --gpu H100"
)
@takes_job(job_file, fleet_flags, lesson_flags)
def plan(
    *,
    flags: dict[str, Any],
    top: int = 10,
    min_fit: float | None = None,
    what_if: list[str] | None = None,
    count: bool = False,
    export: Path | None = None,
    rank: int | None = None,
    to: str | None = None,
    launcher: str | None = None,
    html: Path | None = None,
    as_json: bool = False,
) -> None:
    """Rank configurations by forecast, for any accelerators.

    The fleet need not be there: name its accelerators with --gpu. Everything shown is predicted.
    Without --space all that can be predicted well is ranked, more than a search tries.
    What trials on this machine's devices measured corrects the predictions for them. Where nothing
    is likely to fit, it ends with 3.
    """
    from autotune import DEFAULT_ENGINE
    from autotune.app.api.predictions import plan as rank_candidates
    from autotune.app.planning import export_ranked
    from autotune.export.door import suited_dialect

    if export is None and (to is not None or launcher is not None or rank is not None):
        flag = "--to" if to is not None else "--launcher" if launcher is not None else "--rank"
        raise JobError.of("cli.needs_export", flag=flag)
    if to is not None and flags.get("job") is None:  # a job's engine is known once it is read
        suited_dialect(to, flags.get("engine") or DEFAULT_ENGINE)
    say_meanwhile("forecasting all candidates ...")
    wanted: dict[str, Any] = dict(top=top, min_fit=min_fit, what_if=what_if or (), count=count)
    found = rank_candidates(**flags, **wanted, note=say, ask=asker())
    written, notes = [], list[str]()
    if export is not None:
        written = export_ranked(
            found.outlook,
            found.value,
            export,
            rank=rank,
            to=to,
            launcher=launcher,
            note=notes.append,
        )
    if html is None:
        _show(found, as_json=as_json)
    else:  # --json is how the file's path is printed
        print_files([found.page(html)], as_json=as_json)
    for text in [*(f"wrote {path}" for path in written), *notes]:  # below the plan, which is long
        say(text)
    if not found.value.n_probable:
        raise typer.Exit(ExitCode.NOTHING_FEASIBLE)


@cli.command(
    epilog="autotune explain zero.stage=1 micro_batch=4 --model llama-3-8b \\\n"
    "    --seq-len 4096 --global-batch 256 --world 64 --gpu H100"
)
@takes_job(job_file, fleet_flags, lesson_flags)
def explain(
    *,
    settings: list[str] | None = None,
    flags: dict[str, Any],
    min_fit: float | None = None,
    as_json: bool = False,
) -> None:
    """Explain why a configuration is refused or ranked where it is.

    Says what dominates its time and memory, the fastest single change that makes it fit, and what
    each knob one step up and down would do. Everything is predicted, for a fleet as in plan. Knobs
    that are not named are at the base configuration's values or the engine's defaults.
    """
    from autotune.app.api.predictions import explain as explain_settings

    say_meanwhile("forecasting the candidate and its neighbours ...")
    found = explain_settings(*(settings or ()), **flags, min_fit=min_fit, note=say, ask=asker())
    _show(found, as_json=as_json)


@cli.command(
    epilog="autotune estimate --model llama-3-8b --seq-len 4096 --global-batch 256 \\\n"
    "    --world 64 --gpu H100 zero.stage=3"
)
@takes_job(job_file, fleet_flags, lesson_flags)
def estimate(
    *,
    settings: list[str] | None = None,
    flags: dict[str, Any],
    trace: bool = False,
    rows: Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Predict step time and memory of a configuration, or of a table.

    Nothing is run. Of a CSV no column of results is read; what a row leaves open is assumed and
    listed, and a row that cannot be predicted says why.
    """
    if rows is not None or out is not None:
        if rows is None or out is None:
            raise JobError("--rows and --out go together", "give both: --rows a.csv --out b.csv")
        about_one = {name for name, value in flags.items() if value}
        about_one -= {"accelerators", "no_knowledge"}
        if str(flags.get("knowledge")) == os.environ.get(KNOWLEDGE_ENV):
            about_one.discard("knowledge")  # no flag: the environment names it
        if about_one or settings or trace:
            raise JobError.of("cli.rows_alone")
        _estimate_rows(rows, out, flags.get("accelerators"), as_json=as_json)
        return
    from autotune.app.api.predictions import estimate as estimate_settings

    found = estimate_settings(*(settings or ()), **flags, trace=trace, note=say, ask=asker())
    _show(found, as_json=as_json)


def _estimate_rows(rows: Path, out: Path, accelerators: Path | None, *, as_json: bool) -> None:
    from autotune.app.estimate import estimate_rows
    from autotune.report.terminal.tables import print_told

    done = estimate_rows(rows, out, accelerators=accelerators)
    if as_json:
        print_json(done.as_dict())
    else:
        print_told(PROGRESS, "estimated_rows", {"rows": done.first.to_dict("index")})
        say(f"{done.predicted} of {done.rows} rows are predicted")
        for reason, count in list(done.reasons.items())[:_MOST_REASONS]:
            say(f"  {count} not: {reason}")
        print_files([done.out], as_json=False)
    if not done.predicted:
        raise typer.Exit(ExitCode.INVALID_INPUT)
