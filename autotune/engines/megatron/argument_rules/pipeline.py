"""Rules of pipelines: how layers are cut into stages and chunks."""

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CHUNKED,
    CONFIG,
    PARALLEL,
    Answer,
    argument_rule,
    flag_name,
    is_on,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.engines.megatron.stages import stages_of
from autotune.space.rule import Patch

ENDS = tuple(f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
"""Switches by which embedding and loss count as layers."""
_END_SIZES = tuple(f"decoder_{end}_pipeline_num_layers" for end in ("first", "last"))


@argument_rule("vp.one_way", f"{ARGUMENTS}: num_virtual_stages_per_pipeline_rank")
def _one_way_to_interleave(launch: MegatronLaunch) -> Answer:
    """Both ways to say how a pipeline is interleaved."""
    by_layers = launch.get("num_layers_per_virtual_pipeline_stage")
    if by_layers is not None and launch.get("num_virtual_stages_per_pipeline_rank") is not None:
        return (
            "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
            "say the same in two ways, and Megatron takes one",
            {"num_layers_per_virtual_pipeline_stage": None},
        )
    return None


@argument_rule("vp.pipeline", f"{ARGUMENTS}: overlap_p2p_comm")
def _chunks_alone(launch: MegatronLaunch) -> Answer:
    """Interleaved chunks without a pipeline."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    pipeline = launch.get("pipeline_model_parallel_size")
    if len(given) != 1 or pipeline != 1 or chunks_of(launch) == 1:
        return None
    (name,) = given
    return (
        f"{flag_name(name)} interleaves chunks of a pipeline, and "
        "--pipeline-model-parallel-size is 1",
        {name: None},
        "or set --pipeline-model-parallel-size above 1",
    )


@argument_rule("vp.one_chunk", f"{ARGUMENTS}: virtual_pipeline_model_parallel_size", "ignored")
def _one_chunk(launch: MegatronLaunch) -> Answer:
    """One chunk a stage: Megatron runs the pipeline as if nobody had asked to interleave it."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    if len(given) != 1 or chunks_of(launch) != 1:
        return None
    (name,) = given
    smaller = "a smaller number" if name == CHUNKED[0] else "2 or more"
    return (
        f"{flag_name(name)} {launch.get(name)} makes one chunk a stage, which is not interleaved",
        {},
        f"remove it, or with a pipeline take {smaller}",
    )


def chunks_of(launch: MegatronLaunch) -> int | None:
    """Chunks of a pipeline rank; None where they are not even."""
    if launch.is_yaml:
        field = launch.given.get("virtual_pipeline_model_parallel_size")
        return 1 if field is None else int(field.value)
    if (layout := launch.get("pipeline_model_parallel_layout")) is not None:
        stages = stages_of(str(layout))
        by_rank = len(stages or ()) / launch.get("pipeline_model_parallel_size")
        return int(by_rank) if by_rank >= 1 and by_rank.is_integer() else None
    by_layers, by_stages = (launch.get(name) for name in CHUNKED)
    if by_stages is not None or by_layers is None:
        return int(by_stages or 1)
    total, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    # Stages of their own size take no number of layers, which a rule of arguments says.
    if not total or any(launch.get(name) for name in _END_SIZES):
        return None
    n_chunks, rest = divmod(total + sum(is_on(launch, end) for end in ENDS), pp * by_layers)
    return None if rest else int(n_chunks)


@argument_rule("overlap.p2p", f"{ARGUMENTS}: overlap_p2p_comm")
def _two_stages(launch: MegatronLaunch) -> Answer:
    """--no-overlap-p2p-communication with interleaved chunks on two stages."""
    if launch.get("overlap_p2p_comm") is not False or (chunks_of(launch) or 1) == 1:
        return None
    if launch.get("pipeline_model_parallel_size") != 2:
        return None
    return (
        "--no-overlap-p2p-communication: with interleaved chunks and "
        "--pipeline-model-parallel-size 2 the same two ranks have two sends at a time",
        {"overlap_p2p_comm": None},
        "or set --pipeline-model-parallel-size above 2",
    )


@argument_rule("vp.chunk_layers", f"{ARGUMENTS}: num_layers_per_virtual_pipeline_stage")
def _chunk_layers(launch: MegatronLaunch) -> Answer:
    """--num-layers-per-virtual-pipeline-stage does not divide a stage, or stages differ."""
    size, total = launch.get(CHUNKED[0]), launch.get("num_layers")
    pp = launch.get("pipeline_model_parallel_size")
    if size is None or not total or pp < 2:
        return None
    if any(launch.get(name) is not None for name in _END_SIZES):
        return (
            f"{flag_name(CHUNKED[0])}: stages of their own size take {flag_name(CHUNKED[1])}",
            {CHUNKED[0]: None},
        )
    total += sum(is_on(launch, end) for end in ENDS)
    if total % pp:  # `pp.split` knows no number of chunks then
        return (
            f"{total} layers do not split evenly into --pipeline-model-parallel-size {pp} stages",
            {},
            f"take a pipeline that divides {total}",
        )
    stage = total // pp
    if stage % size == 0:
        return None
    sizes = [divisor for divisor in range(1, stage) if stage % divisor == 0] or [stage]
    nearest = min(sizes, key=lambda divisor: (abs(divisor - size), divisor))
    return (
        f"{flag_name(CHUNKED[0])} {size} does not divide the {stage} layers of a stage "
        f"({total} / --pipeline-model-parallel-size {pp})",
        {CHUNKED[0]: nearest},
    )


@argument_rule("pp.layout", f"{ARGUMENTS}: pipeline_model_parallel_layout")
def _layout(launch: MegatronLaunch) -> Answer:
    """--pipeline-model-parallel-layout beside a number of chunks, which follows from it."""
    if launch.get("pipeline_model_parallel_layout") is None:
        return None
    wrong = [name for name in CHUNKED if launch.get(name)]
    if not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    return f"{flags}: --pipeline-model-parallel-layout says all chunks", dict.fromkeys(wrong)


@argument_rule("pp.uneven_ends", f"{CONFIG}: account_for_embedding_in_pipeline_split")
def _uneven_ends(launch: MegatronLaunch) -> Answer:
    """Stages of their own size beside embedding or loss that count as layers."""
    sized = [name for name in _END_SIZES if launch.get(name) is not None]
    wrong = [name for name in ENDS if is_on(launch, name)]
    if not sized or not wrong:
        return None
    flags = " and ".join(map(flag_name, wrong))
    return f"{flags}: stages have {flag_name(sized[0])} already", dict.fromkeys(wrong)


@argument_rule("pp.one_end", f"{ARGUMENTS}: account_for_embedding_in_pipeline_split")
def _one_end(launch: MegatronLaunch) -> Answer:
    """Layers that do not split evenly with the embedding or the loss as one of them."""
    counted = [name for name in ENDS if is_on(launch, name)]
    layers, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    is_sized = any(launch.get(name) for name in (*_END_SIZES, "pipeline_model_parallel_layout"))
    if len(counted) != 1 or not layers or is_sized:
        return None
    chunks = pp * (launch.get(CHUNKED[1]) or 1)
    if (layers + 1) % chunks == 0:
        return None
    change: Patch = {counted[0]: None}
    if layers % chunks:
        other = next(name for name in ENDS if name not in counted)
        change = {other: True} if (layers + 2) % chunks == 0 else {}
    return (
        f"{layers} layers and {flag_name(counted[0])} make {layers + 1}, which is no multiple of "
        f"{chunks} chunks",
        change,
        "" if change else "take a pipeline that divides them",
    )


@argument_rule("pp.embedding_gradient", f"{PARALLEL}: defer_embedding_wgrad_compute")
def _embedding_gradient(launch: MegatronLaunch) -> Answer:
    """--defer-embedding-wgrad-compute without a pipeline or fused accumulation of gradients."""
    name = "defer_embedding_wgrad_compute"
    if not is_on(launch, name):
        return None
    if launch.get("pipeline_model_parallel_size") == 1:
        return f"{flag_name(name)}: needs --pipeline-model-parallel-size above 1", {name: None}
    if launch.get("gradient_accumulation_fusion") is False:
        return f"{flag_name(name)}: does not go with --no-gradient-accumulation-fusion", {
            name: None
        }
    return None


RULES = rules_in(globals())
