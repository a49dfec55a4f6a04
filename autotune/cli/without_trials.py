"""What needs no trial: `estimate`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.base import Debug, Json, cli, print_files, print_json, say


@cli.command()
def estimate(
    rows: Annotated[Path, typer.Option(help="CSV of runs: model, hardware, layout.")],
    out: Annotated[Path, typer.Option(help="CSV to write: the rows with predictions.")],
    accelerators: Annotated[
        Path | None, typer.Option(help="YAML with accelerators of your own.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(help="YAML with other constants of the model.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict step time and memory of runs in a CSV.

    Nothing is run and no column of results is read. What a row leaves open is assumed and listed;
    a row that cannot be predicted says why.
    """
    from autotune.app.estimate import estimate_rows

    done = estimate_rows(rows, out, accelerators=accelerators, constants=constants)
    if as_json:
        print_json(done.as_dict())
        return
    say(f"{done.predicted} of {done.rows} rows are predicted")
    for reason, count in _first(done.reasons.items()):
        say(f"  {count} not: {reason}")
    print_files([done.out], as_json=False)


def _first(reasons: Iterable[tuple[str, int]], most: int = 10) -> list[tuple[str, int]]:
    return list(reasons)[:most]
