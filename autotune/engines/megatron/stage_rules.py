"""Rules of pipeline stages: which layers a stage has."""

from collections.abc import Callable

import numpy as np

from autotune.engines.megatron.choices import BALANCED
from autotune.engines.megatron.layout_rule import layout_rule, with_parameters
from autotune.engines.megatron.layout_task import Counts, LayoutRows, Truth, written_stages
from autotune.engines.megatron.stages import Stages, StageWork, balanced_layers, even_layers
from autotune.space.rule import Rule


def _of_written(holds: Callable[..., bool], *names: str) -> Callable[..., Truth]:
    """A condition on the stages of each layout that somebody wrote, and on other values.

    Columns have one value for each layout, facts of the task one for all.
    """

    def answer(stages: Counts, *others: Counts | int) -> Truth:
        found = np.ones(len(stages), dtype=np.bool_)
        for at in np.flatnonzero(stages > BALANCED):
            values = (
                int(other if np.ndim(other) == 0 else np.ravel(other)[at]) for other in others
            )
            found[at] = holds(written_stages(int(stages[at])), *values)
        return found

    return with_parameters(answer, "stages", *names)


def _has_ends(stages: Stages) -> bool:
    letters = "".join(stages)
    return (
        letters[:1] == "E"
        and letters[-1:] == "L"
        and letters.count("E") == 1 == letters.count("L")
    )


def _has_mtp_last(stages: Stages, n_mtp_layers: int, pp: int) -> bool:
    letters = "".join(stages)
    mtp_stages = [at for at, stage in enumerate(stages) if "m" in stage]
    if letters.count("m") != n_mtp_layers or len(mtp_stages) > 1:
        return False
    return not mtp_stages or (
        "t" not in letters[letters.index("m") :] and mtp_stages[0] >= len(stages) - pp
    )


def _differs_from_even(
    stages: Counts, pp: Counts, vp: Counts, n_layers: int, work: StageWork | None
) -> Truth:
    found = np.ones(len(stages), dtype=np.bool_)
    where = np.flatnonzero((stages == BALANCED) & (pp > 1))
    splits, places = np.unique(np.stack([pp[where], vp[where]]), axis=1, return_inverse=True)
    differs = [
        _is_uneven_split(work or StageWork(n_layers=n_layers), *map(int, s)) for s in splits.T
    ]
    found[where] = np.array(differs, dtype=np.bool_)[np.ravel(places)]
    return found


def _is_uneven_split(work: StageWork, pp: int, vp: int) -> bool:
    """True for balanced stages that no other knobs make."""
    if work.n_layers % (pp * vp) and (work.n_layers + 2) % (pp * vp):
        return True
    counts = balanced_layers(work, pp, vp)
    if counts == even_layers(work.n_layers, pp, vp):
        return False
    first, *middle, last = counts
    ends = (work.n_layers + 2) // (pp * vp)
    return bool(
        first != ends - 1 or last != ends - 1 or any(n_middle != ends for n_middle in middle)
    )


def has_experts_on_each_rank(counts: list[int], pp: int, n_dense_layers: int) -> bool:
    """True if each pipeline rank has a layer of experts, given the layers of each stage."""
    ends = np.cumsum(counts)
    experts = np.minimum(np.array(counts), np.maximum(0, ends - n_dense_layers))
    return all(int(experts[rank::pp].sum()) > 0 for rank in range(pp))


def _tracks_each_rank(
    stages: Counts,
    pp: Counts,
    vp: Counts,
    first_stage_layers: Counts,
    n_layers: int,
    n_dense_layers: int,
    n_mtp_layers: int,
    tracks_aux_loss: bool,
    work: StageWork | None,
) -> Truth:
    found = np.ones(len(stages), dtype=np.bool_)
    if not (tracks_aux_loss and n_mtp_layers and n_dense_layers):
        return found
    columns = np.stack([stages, pp, vp, first_stage_layers])
    splits, places = np.unique(columns, axis=1, return_inverse=True)
    model = work or StageWork(n_layers=n_layers)
    answers = [
        _rank_has_experts(model, n_layers, n_dense_layers, *map(int, split)) for split in splits.T
    ]
    found = np.array(answers, dtype=np.bool_)[np.ravel(places)]
    return found


def _rank_has_experts(
    work: StageWork, n_layers: int, n_dense: int, stages: int, pp: int, vp: int, first: int
) -> bool:
    if stages > BALANCED:
        counts = [stage.count("t") for stage in written_stages(stages)]
        return has_experts_on_each_rank(counts, pp, n_dense)
    if stages:
        return has_experts_on_each_rank(list(balanced_layers(work, pp, vp)), pp, n_dense)
    # Even stages: the first rank's chunks are the first ones.
    return (first or n_layers // pp) > n_dense or (vp > 1 and n_layers > n_dense + n_layers // vp)


RULES: tuple[Rule[LayoutRows], ...] = (
    layout_rule(
        "stages.same",
        "ours: the same run as without",
        allows=_differs_from_even,
        message="balanced stages are those that {n_layers} layers over pp {pp} x vp {vp} chunks "
        "have anyway",
        fix="take stages=even",
    ),
    layout_rule(
        "stages.count",
        "megatron/core/transformer/pipeline_parallel_layer_layout.py, __init__",
        allows=_of_written(lambda stages, pp: len(stages) % pp == 0, "pp"),
        message="the layout has a number of stages that is no multiple of pp {pp}",
        fix="add or join stages, which | separates",
    ),
    layout_rule(
        "stages.chunks",
        "ours: Megatron counts the chunks in the layout",
        allows=_of_written(lambda stages, pp, vp: len(stages) == pp * vp, "pp", "vp"),
        message="the layout has other than pp {pp} x vp {vp} stages",
        fix="take the vp that follows from it: its stages over pp",
    ),
    layout_rule(
        "stages.layers",
        "megatron/core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout: "
        "num_layers",
        allows=_of_written(
            lambda stages, n_layers: sum(stage.count("t") for stage in stages) == n_layers,
            "n_layers",
        ),
        message="the layout places another number of layers, each a t, than n_layers {n_layers}",
        fix="make them equal",
    ),
    layout_rule(
        "stages.ends",
        "megatron/core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout: "
        "LayerType.embedding, LayerType.loss",
        allows=_of_written(_has_ends),
        message="the layout begins with the embedding E and ends with the loss L, and has each "
        "once",
        fix="begin it with E and end it with L",
    ),
    layout_rule(
        "stages.mtp",
        "megatron/core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout: "
        "LayerType.mtp",
        allows=_of_written(_has_mtp_last, "n_mtp_layers", "pp"),
        message="the layout has an m for each of the n_mtp_layers {n_mtp_layers} layers that "
        "predict further tokens, all in one stage after the last t, in the last chunk of "
        "its rank",
        fix="put them before L",
    ),
    layout_rule(
        "stages.mtp_on_first_rank",
        "megatron/core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout: "
        "its loop over the first rank leaves the last chunk out",
        allows=_of_written(
            lambda stages, pp: pp == 1 or not any("m" in stage for stage in stages[::pp]), "pp"
        ),
        message="the layout has m on the first rank of the pipeline: the ranks wait for one "
        "another while the model is built, or train with an embedding that differs",
        fix="put m before L",
    ),
    layout_rule(
        "stages.tracked_losses",
        "megatron/core/transformer/moe/moe_utils.py before 0.17, track_moe_metrics",
        allows=_tracks_each_rank,
        message="a rank of pp {pp} has none of the layers of experts, of which the first "
        "{n_dense_layers} layers are none: with layers that predict further tokens, losses"
        " of load balancing are summed over trackers of unequal sizes",
        fix="take fewer stages, or Megatron Core 0.17",
    ),
)
"""Rules of stages that count layers; rules.json has the others."""
