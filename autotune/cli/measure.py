"""`probe`: measure the devices and links, for the cost model."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.base import DATA, Debug, Json, cli, print_json, say


@cli.command()
def probe(
    world: Annotated[
        int | None, typer.Option(help="Devices to measure; as many as a search takes by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write, for --accelerators.")] = Path(
        "hardware.yaml"
    ),
    nvme: Annotated[
        Path | None, typer.Option(help="Folder whose disk is measured too, for offload to nvme.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repeats and sizes: sooner, and rougher.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the devices and the links between them.

    The file goes to --accelerators of search, plan, explain and estimate. Devices and links that
    are slower than others are warned of.
    """
    from autotune.app.probe import probe_machine
    from autotune.report.probe import print_probe

    found = probe_machine(out, world=world, disk=nvme, is_quick=quick)
    if as_json:
        print_json({"file": str(out), "accelerators": found.entry, "probe": found.about})
    else:
        print_probe(DATA, found)
        say(f"wrote {out}")
