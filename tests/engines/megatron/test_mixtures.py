"""Mixtures of experts in many layouts, trained by the real Megatron Core on CPU ranks.

Qwen3-MoE, DeepSeek-V3 (latent attention, groups, shared experts, a dense first layer, and a layer
that predicts further tokens) and GPT-OSS (biases, sinks, windows): every layout has to train as
one rank does. Arguments are Megatron's own words, so that a layout can be tried that no knob has.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.megatron.engine import MegatronEngine
from autotune.space.candidate import Candidate
from tests.engines.megatron.test_reality import plain
from tests.engines.megatron.trained import HERE, MIXTURES, Trained, job_for, train

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
]
Q, D, G = MIXTURES
SAME_LOSS = 1e-5
SAME_NORM = 1e-4
"""Of the norm of the first gradients, as a share: later ones follow from it."""
LEARNING = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}}
"""Fast enough for a wrong gradient to show in the losses of three steps."""
EXPERTS = {"tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}


def placed(text: str) -> dict[str, Any]:
    """Arguments of a layout of pipeline stages."""
    return {"pipeline_model_parallel_layout": text}


def recomputed(*modules: str) -> dict[str, Any]:
    """Arguments that compute modules again."""
    return {"recompute_granularity": "selective", "recompute_modules": list(modules)}


Row = tuple[str, int, dict[str, Any], dict[str, Any]]
"""Model, ranks, knobs, and arguments besides."""
STAGES: Row = (D, 2, {"pp": 2}, placed("Ett|t|t|mL"))
ROWS: tuple[Row, ...] = (
    (G, 2, EXPERTS, {}),
    STAGES,
    (D, 2, {"ep": 2}, recomputed("mla_up_proj", "layernorm", "shared_experts", "moe", "mlp")),
)
"""Those that have most to go wrong."""
FURTHER: tuple[Row, ...] = (
    (Q, 2, {"ep": 2, "distributed_optimizer": True}, {}),
    (D, 2, {"ep": 2, "distributed_optimizer": True}, {}),
    (D, 2, EXPERTS, {}),
    (G, 2, {"pp": 2}, placed("E|tt|tt|L")),
    (D, 4, {"pp": 4}, placed("Ett|tt|m|L")),
    (D, 4, {"ep": 2, "etp": 2}, {}),
)
"""The same splits of another model, or by more ranks."""


def case_of_row(row: Row, folder: Path, **changes: Any) -> tuple[MegatronEngine, Candidate]:
    """A row's candidate; on one rank with `world=1`."""
    model, world, knobs, _ = row
    # As many token ids as two tensor parallel ranks have without adding some.
    config = {**MIXTURES[model], "vocab_size": 512}
    settings = {"world": world, "optimizer": LEARNING, **changes}
    engine = MegatronEngine(job_for(folder / model, config, **settings), HERE)
    return engine, plain(engine, {"micro_batch": 1, **knobs}, settings["world"])


def name_of(row: Row) -> str:
    """What a row is."""
    return f"{row[0]} on {row[1]}: {row[2]} {row[3]}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trained, Trained]]:
    return train_rows(ROWS, tmp_path_factory.mktemp("mixtures"))


def train_rows(rows: tuple[Row, ...], folder: Path) -> dict[str, tuple[Trained, Trained]]:
    """Each row by what it is, with what one rank makes of its model."""
    models = sorted({row[0] for row in rows})
    alone: list[Row] = [(model, 1, {}, {}) for model in models]
    asked = [*alone, *rows]
    cases = [case_of_row(row, folder) for row in asked]
    found = train(cases, folder, [row[3] for row in asked])
    of_model = dict(zip(models, found[: len(models)], strict=True))
    return {
        name_of(row): (one, of_model[row[0]])
        for row, one in zip(rows, found[len(models) :], strict=True)
    }


def test_layouts_train_as_one_rank(trained: dict[str, tuple[Trained, Trained]]) -> None:
    check_alike(trained)


@pytest.mark.thorough
def test_further_layouts_train_as_one_rank(tmp_path: Path) -> None:
    check_alike(train_rows(FURTHER, tmp_path))


def check_alike(trained: dict[str, tuple[Trained, Trained]]) -> None:
    """Check the losses of each and its gradient norm."""
    failed = {
        name: errors
        for name, (one, _) in trained.items()
        if (errors := [rank["error"] for rank in one.ranks if rank["error"]])
    }
    assert not failed
    apart = {}
    for name, (one, alone) in trained.items():
        norms = one.ranks[0]["norms"][0], alone.ranks[0]["norms"][0]
        is_same = one.losses() == pytest.approx(alone.losses(), rel=0, abs=SAME_LOSS)
        if not is_same or norms[0] != pytest.approx(norms[1], rel=SAME_NORM):
            apart[name] = (one.losses(), alone.losses(), norms)
    assert not apart
    assert all(alone.losses()[0] - alone.losses()[-1] > 0.1 for _, alone in trained.values())


def test_what_trained_is_what_was_asked(trained: dict[str, tuple[Trained, Trained]]) -> None:
    """Parameters, those of the layer that predicts further tokens included, and the stages."""
    one, _ = trained[name_of(STAGES)]
    found = one.ranks[0]["read_back"]
    assert found["stages"] == "Ett|t|t|mL"
    assert found["vp"] == 2
    assert found["dense_layers"] == [0]
    assert found["n_mtp_layers"] == 1
    assert found["dispatcher"] == "alltoall"
    assert found["n_params"] == one.engine.expected(one.candidate)["n_params"]


OVERLAPPED = {"overlap_moe_expert_parallel_comm": True}


@pytest.mark.thorough
def test_dispatch_that_runs_beside_other_layers_trains_alike(tmp_path: Path) -> None:
    """In bf16, which it needs."""
    rows: tuple[Row, ...] = (
        (D, 2, {"ep": 2}, {}),
        (D, 2, {"ep": 2}, {**OVERLAPPED, "mtp_num_layers": None}),
        (D, 2, {"ep": 2}, {"mtp_num_layers": None}),
        (D, 4, {"pp": 2, "ep": 2}, {**OVERLAPPED, **placed("Et|tt|t|mL")}),
    )
    cases = [case_of_row(row, tmp_path, precision="bf16") for row in rows]
    with_mtp, overlapped, plain_, stages = train(cases, tmp_path, [row[3] for row in rows])
    for one, other in ((overlapped, plain_), (stages, with_mtp)):
        assert not [rank["error"] for rank in (*one.ranks, *other.ranks) if rank["error"]]
        assert one.losses() == pytest.approx(other.losses(), rel=0, abs=2e-2)
