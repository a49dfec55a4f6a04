"""Stages by their work, and what Megatron Core itself says of layouts and settings of experts."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from autotune.engines.megatron.stages import (
    StageWork,
    balanced_layers,
    layers_in,
    rank_loads,
    stages_of,
    work_of,
    written,
)
from autotune.job.model import load_model
from tests.cases import data_beside

DATA = data_beside(__file__)

needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="megatron-core is not installed"
)
OF_NVIDIA = "Et|(tt|)*30mL"
"""NVIDIA's layout of DeepSeek-V3 on 8 stages of 4 chunks, in Megatron-Bridge's recipes."""


def deepseek() -> StageWork:
    return work_of(load_model("deepseek-v3").shape, 4096)


def ways(n_layers: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to give layers to some parts."""
    if parts == 1:
        yield (n_layers,)
        return
    for first in range(n_layers + 1):
        for rest in ways(n_layers - first, parts - 1):
            yield (first, *rest)


@pytest.mark.parametrize("n_layers", [1, 5, 8])
@pytest.mark.parametrize("tail", [0.0, 0.6, 2.5, 20.0])
@pytest.mark.parametrize("dense", [0, 2])
def test_no_other_way_makes_the_heaviest_rank_lighter(n_layers: int, tail: float, dense: int):
    work = StageWork(n_layers=n_layers, n_dense_layers=dense, dense_layer=0.5, head=tail)
    for pp in (2, 3, 4):
        found = max(rank_loads(work, balanced_layers(work, pp, 1), pp))
        best = min(max(rank_loads(work, way, pp)) for way in ways(n_layers, pp))
        assert found == pytest.approx(best, rel=1e-9) or found <= best + 0.5 * bool(dense)


def test_deepseek_is_no_heavier_than_in_nvidias_layout():
    work = deepseek()
    of_nvidia = layers_in(stages_of(OF_NVIDIA) or ())
    assert sum(of_nvidia) == work.n_layers
    ours = balanced_layers(work, 8, 4)
    assert max(rank_loads(work, ours, 8)) <= max(rank_loads(work, of_nvidia, 8))
    assert written(balanced_layers(work, 32, 1), 1) == OF_NVIDIA


@pytest.mark.parametrize("layout", ["E|L", "Et*3|t*2L", "E(t|)*3tL", "Et,t|(tt|)*2mL", "Ett||t|L"])
def test_a_layout_is_read_as_it_is_written(layout: str):
    stages = stages_of(layout)
    assert stages is not None
    assert "".join(stages).strip("EtmL") == ""
    again = stages_of(written(layers_in(stages), "".join(stages).count("m")))
    assert layers_in(again or ()) == layers_in(stages)


@pytest.mark.parametrize("layout", ["", "EttxL", "E(t|)*99999999L", "[['embedding']]"])
def test_what_is_no_layout_is_none(layout: str):
    assert stages_of(layout) is None


@needs_megatron
@pytest.mark.parametrize(("pp", "vp"), [(2, 1), (2, 8), (4, 4), (8, 4), (16, 1), (32, 1), (16, 4)])
def test_megatron_takes_the_layouts_that_are_made(pp: int, vp: int):
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import (
        PipelineParallelLayerLayout,
    )

    work = deepseek()
    counts = balanced_layers(work, pp, vp)
    read = PipelineParallelLayerLayout(written(counts, work.n_mtp_layers), pp)
    assert read.virtual_pipeline_model_parallel_size == vp
    assert not read.validate_layer_layout(work.n_layers, work.n_mtp_layers)
    by_rank = [
        [chunk.count(LayerType.decoder) for chunk in chunks]  #
        for chunks in read.layout
    ]
    assert by_rank == [list(counts[rank::pp]) for rank in range(pp)]


def configured(settings: dict[str, Any]) -> None:
    """Make a configuration of Megatron Core, which refuses what clashes."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    plain = {"num_layers": 8, "hidden_size": 16, "num_attention_heads": 4}
    if settings.get("pipeline_model_parallel_size", 1) > 1:
        plain["pipeline_dtype"] = torch.bfloat16  # type: ignore[assignment]
    TransformerConfig(**plain, **settings)


@needs_megatron
@pytest.mark.parametrize("rule", DATA["REFUSED_LAYOUTS"])
def test_megatron_refuses_layouts_as_the_rules_do(rule: str):
    layout, more = DATA["REFUSED_LAYOUTS"][rule]
    named = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": layout}
    with pytest.raises((AssertionError, ValueError)):
        configured({**named, **more})


@needs_megatron
@pytest.mark.parametrize("rule", DATA["REFUSED_SETTINGS"])
def test_megatron_refuses_settings_of_experts_as_the_rules_do(rule: str):
    with pytest.raises((AssertionError, ValueError)):
        configured(DATA["REFUSED_SETTINGS"][rule])
    configured(DATA["EXPERTS"])
