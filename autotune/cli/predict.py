"""`plan`, `explain` and `estimate`: what the cost model says, without a trial."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.base import (
    DATA,
    Debug,
    Dialect,
    JobPath,
    Json,
    cli,
    given,
    print_files,
    print_json,
    say,
)
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

_MOST_REASONS = 10


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


@cli.command()
def estimate(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Of one candidate; repeat it."),
    ] = None,
    job: JobPath = None,
    model: ModelName = None,
    seq_len: SeqLen = None,
    global_batch: GlobalBatch = None,
    world: World = None,
    precision: PrecisionName = None,
    memory_limit: MemoryLimit = None,
    gpu: Gpu = None,
    per_node: PerNode = None,
    network: Network = None,
    nvlink: Nvlink = None,
    accelerators: Accelerators = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="Instead, a CSV of runs: model, hardware, layout."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV to write: those rows with predictions.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(help="YAML with other constants of the model, for --rows.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict step time and memory of one candidate of a job, or of runs in a CSV.

    Nothing is run. Of a CSV no column of results is read; what a row leaves open is assumed and
    listed, and a row that cannot be predicted says why.
    """
    flags = given(
        model=model,
        seq_len=seq_len,
        global_batch=global_batch,
        world=world,
        precision=precision,
        memory_limit=memory_limit,
    )
    wishes = _wishes(gpu, per_node, network, nvlink, accelerators)
    if rows is not None or out is not None or constants is not None:
        if rows is None or out is None:
            raise JobError("--rows and --out go together", "a CSV to read and one to write")
        if settings or job is not None or flags or wishes.describes_a_fleet:
            raise JobError(
                "--rows: its rows say what is estimated",
                "leave out --set, the job and the fleet; or leave out --rows",
            )
        _estimate_rows(rows, out, accelerators, constants, as_json=as_json)
        return
    from autotune.app.explain import estimate_candidate
    from autotune.app.planning import open_outlook
    from autotune.report.neighbours import estimate_as_dict, print_estimate

    found = estimate_candidate(open_outlook(job, flags, wishes), settings or [])
    if as_json:
        print_json(estimate_as_dict(found))
    else:
        print_estimate(DATA, found)


def _estimate_rows(
    rows: Path, out: Path, accelerators: Path | None, constants: Path | None, *, as_json: bool
) -> None:
    from autotune.app.estimate import estimate_rows

    done = estimate_rows(rows, out, accelerators=accelerators, constants=constants)
    if as_json:
        print_json(done.as_dict())
        return
    say(f"{done.predicted} of {done.rows} rows are predicted")
    for reason, count in list(done.reasons.items())[:_MOST_REASONS]:
        say(f"  {count} not: {reason}")
    print_files([done.out], as_json=False)


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
