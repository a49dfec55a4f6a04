"""`probe`: measure the devices and links, for the cost model."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.base import DATA, Debug, Json, cli, print_json, say


@cli.command()
def probe(
    world: Annotated[
        int | None,
        typer.Option(help="Devices to measure on a node; as many as a search takes by default."),
    ] = None,
    nodes: Annotated[
        int, typer.Option(help="Nodes that take part; the same is called on each of them.")
    ] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="Which of them this is, from 0; node 0 writes the file.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of node 0, where they meet, by the network to measure."),
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
    are slower than others are warned of. Several nodes know each other by a secret in
    AUTOTUNE_TOKEN.
    """
    from autotune.app.probe import probe_machine
    from autotune.probe.hardware_file import write_hardware
    from autotune.probe.nodes import nodes_of
    from autotune.report.terminal.probe import print_probe

    place = nodes_of(nodes, node_rank, master)
    if place is not None:
        say(
            f"node {place.rank} of {place.count}; they meet on port {place.port} of "
            f"{place.address}, by {place.interface}"
        )
    found = probe_machine(out, world=world, nodes=place, disk=nvme, is_quick=quick)
    if found is None:
        say("measured; node 0 has the figures and writes the file")
        if as_json:
            print_json({"file": None, "accelerators": None, "probe": None})
        return
    # Before it is written: a disk that has filled up meanwhile takes no figure away.
    if as_json:
        print_json({"file": str(out), "accelerators": found.entry, "probe": found.about})
    else:
        print_probe(DATA, found)
    write_hardware(out, found.entry, found.about)
    if not as_json:
        say(f"wrote {out}")
