"""`plan` and `explain`: what the cost model says, without a trial."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.base import DATA, Debug, Dialect, JobPath, Json, cli, given, print_json, say
from autotune.errors import JobError

if TYPE_CHECKING:
    from autotune.app.planning import FleetWishes

Gpu = Annotated[
    str | None,
    typer.Option(help="Accelerator of the fleet, such as H100; this machine's by default."),
]
PerNode = Annotated[int | None, typer.Option(help="Accelerators of one node.")]
Network = Annotated[
    str | None,
    typer.Option(help="An accelerator's share of its node's network, such as 400Gbps."),
]
Nvlink = Annotated[
    str | None, typer.Option(help="All links of an accelerator in one node, such as 450GB/s.")
]
Accelerators = Annotated[
    Path | None, typer.Option(help="YAML with accelerators of your own, before the shipped ones.")
]
ModelName = Annotated[str | None, typer.Option(help="Preset, Hugging Face folder or config.json.")]
SeqLen = Annotated[int | None, typer.Option(help="Tokens per sample.")]
GlobalBatch = Annotated[
    int | None, typer.Option(help="Samples per optimizer step, over all ranks.")
]
World = Annotated[int | None, typer.Option(help="Accelerators of the run.")]
PrecisionName = Annotated[str | None, typer.Option(help="bf16, fp16 or fp32.")]
SpaceName = Annotated[
    str | None, typer.Option(help="Knobs to rank: a shipped space or a YAML file.")
]
MemoryLimit = Annotated[str | None, typer.Option(help="Per accelerator, such as 24GiB.")]


@cli.command()
def plan(
    job: JobPath = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch: GlobalBatch = None,
    world: World = None,
    precision: PrecisionName = None,
    space: SpaceName = None,
    memory_limit: MemoryLimit = None,
    gpu: Gpu = None,
    per_node: PerNode = None,
    network: Network = None,
    nvlink: Nvlink = None,
    accelerators: Accelerators = None,
    top: Annotated[int, typer.Option(help="Candidates to show.", min=1)] = 10,
    min_fit: Annotated[
        float, typer.Option(help="Probability to fit, below which one comes last.", min=0, max=1)
    ] = 0.9,
    price: Annotated[
        float | None, typer.Option(help="Of one accelerator for an hour; adds what tokens cost.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Compare with another fleet: bandwidth=20Gbps, nvlink=900GB/s, gpu=H200, "
            "memory=40GiB, per_node=4; repeat it.",
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the files of the best candidate to this folder.")
    ] = None,
    rank: Annotated[int, typer.Option(help="Write those of this rank instead.", min=1)] = 1,
    to: Dialect = "deepspeed",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Rank the candidates for a fleet by the cost model, with no trial.

    The fleet need not be there: name its accelerators with --gpu. Everything shown is predicted.
    """
    from autotune.app.planning import export_ranked, open_outlook, rank_lattice
    from autotune.report.ranking import print_ranking, ranking_as_dict

    if price is not None and not price > 0:
        raise JobError(f"--price {price:g}: not above zero", "the price of one accelerator hour")
    flags = given(
        model=model,
        seq_len=seq_len,
        global_batch=global_batch,
        world=world,
        precision=precision,
        space=space,
        memory_limit=memory_limit,
    )
    outlook = open_outlook(job, flags, _wishes(gpu, per_node, network, nvlink, accelerators))
    found = rank_lattice(outlook, min_fit=min_fit, price_per_hour=price, what_if=what_if or [])
    if export is not None:
        for path in export_ranked(outlook, found, rank, export, to):
            say(f"wrote {path}")
    if as_json:
        print_json(ranking_as_dict(found, range(1, min(top, len(found.candidates)) + 1)))
    else:
        print_ranking(DATA, found, top=top)


@cli.command()
def explain(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KNOB=VALUE]...", help="Such as zero.stage=2 micro_batch=4."),
    ] = None,
    job: JobPath = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch: GlobalBatch = None,
    world: World = None,
    precision: PrecisionName = None,
    space: SpaceName = None,
    memory_limit: MemoryLimit = None,
    gpu: Gpu = None,
    per_node: PerNode = None,
    network: Network = None,
    nvlink: Nvlink = None,
    accelerators: Accelerators = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain why a candidate is refused or ranked where it is.

    Says what dominates its time and memory, the fastest single change that makes it fit, and what
    each knob one step up and down would do. Everything is predicted, for a fleet as in plan. Knobs
    that are not named are at the base configuration's values or DeepSpeed's defaults.
    """
    from autotune.app.explain import explain_candidate
    from autotune.app.planning import open_outlook
    from autotune.report.neighbours import explained_as_dict, print_explained

    flags = given(
        model=model,
        seq_len=seq_len,
        global_batch=global_batch,
        world=world,
        precision=precision,
        space=space,
        memory_limit=memory_limit,
    )
    outlook = open_outlook(job, flags, _wishes(gpu, per_node, network, nvlink, accelerators))
    found = explain_candidate(outlook, settings or [])
    if as_json:
        print_json(explained_as_dict(found))
    else:
        print_explained(DATA, found)


def _wishes(
    gpu: str | None,
    per_node: int | None,
    network: str | None,
    nvlink: str | None,
    accelerators: Path | None,
) -> "FleetWishes":
    from autotune.app.planning import FleetWishes

    if per_node is not None and per_node < 1:
        raise JobError(f"--per-node {per_node}: not above zero", "accelerators of one node")
    return FleetWishes(
        gpu=gpu, per_node=per_node, network=network, nvlink=nvlink, accelerators=accelerators
    )
