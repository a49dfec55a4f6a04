"""Intervals of predictions: wider where nobody looked, and refused where the file is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import JobError
from autotune.cost import predict
from autotune.cost.errors import LEVEL, Errors, MissSizes, doubt_of, load_errors, spare_of
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import find_accelerator, shipped_accelerators
from autotune.devices.probed import MeasuredRates
from tests.cost.rows import row

ERRORS = Errors(
    sources=3,
    step_time=MissSizes(seen=0.1, unseen=0.3, doubtful=0.5),
    mixture_step_time=MissSizes(seen=0.2, unseen=0.4, doubtful=0.0),
    peak_memory=MissSizes(seen=0.1, unseen=0.2, doubtful=0.0),
    peaks={"megatron": [312.0]},
)


def test_what_was_seen_is_narrower() -> None:
    a100, a800, h100 = (find_accelerator(name) for name in ("A100", "A800", "H100"))
    assert ERRORS.is_seen("megatron", a100)
    assert ERRORS.is_seen("megatron", a800)  # the same device with slower links
    assert not ERRORS.is_seen("megatron", h100)
    assert not ERRORS.is_seen("fsdp", a100)
    probed = replace(h100, measured=MeasuredRates())
    assert ERRORS.is_seen("megatron", probed)
    assert not ERRORS.is_seen("fsdp", probed)


def test_communication_and_offload_are_in_doubt() -> None:
    alone = row(n_gpus="1", tp="1", pp="1", dp="1")
    rows = [alone, row(tp="8", pp="1", dp="8"), row(offload="cpu(optimizer)")]
    read = rows_to_plans(rows, shipped_accelerators())
    assert read.plans is not None
    said = predict(read.plans)
    doubt = doubt_of(said)
    assert doubt[0] < doubt[1] < doubt[2] == 1.0
    reach = ERRORS.reach(read.frameworks, read.accelerators, said)
    assert np.allclose(reach.step_time, np.exp(0.1 + 0.5 * doubt))
    low_s, high_s, low_bytes, high_bytes = reach.around(said, 0)
    assert low_s < said.step_time_s[0] < high_s
    assert low_bytes < said.peak_memory_bytes[0] < high_bytes


def test_routing_that_nobody_forces_may_be_slower_and_not_faster() -> None:
    mixture = {"n_experts": "8", "experts_per_token": "2", "ep": "8"}
    routing = ({}, {"forced_balance": "1"}, {"expert_imbalance": "1.3"})
    rows = [row(**mixture, **said) for said in routing]
    read = rows_to_plans([*rows, row(**{**mixture, "ep": "1"})], shipped_accelerators())
    assert read.plans is not None
    said = predict(read.plans)
    reach = ERRORS.reach(read.frameworks, read.accelerators, said)
    assert np.allclose(reach.step_time, np.exp(0.2))
    for index, slower in enumerate((1.5, 1.0, 1.0, 1.0)):
        low_s, high_s, *_ = reach.around(said, index)
        assert low_s == pytest.approx(said.step_time_s[index] / np.exp(0.2))
        assert high_s == pytest.approx(said.step_time_s[index] * np.exp(0.2) * slower)
    assert said.step_time_s[2] > said.step_time_s[1]
    assumes = [any("expert_imbalance" in each for each in noted) for noted in read.assumed]
    assert assumes[:3] == [True, False, False]


def test_a_loss_of_which_nobody_says_how_spares_memory_at_the_low_end() -> None:
    whole = {"pp": "1", "dp": "16"}  # of two stages the first is fuller, without logits
    losses = [{}, {"loss": "fused"}, {"loss": "eager"}]
    rows = [row(**whole, **said) for said in losses]
    rows.append(row(framework="fsdp", tp="1", pp="1", dp="64"))
    read = rows_to_plans(rows, shipped_accelerators())
    assert read.plans is not None
    said = predict(read.plans)
    spare = spare_of(said, read.fewest_logit_bytes)
    fused = said.peak_memory_bytes[1]
    assert spare[0] == pytest.approx(said.peak_memory_bytes[0] / fused)
    assert spare[0] > 1.0
    assert spare[1:].tolist() == [1.0, 1.0, 1.0], "said, or fused by the framework's default"
    note = "loss=not fused (fused at the low end of memory)"
    assert [note in noted for noted in read.assumed] == [True, False, False, False]


def test_the_shipped_errors_are_wider_where_nothing_was_seen() -> None:
    shipped = load_errors()
    assert shipped.step_time.seen <= shipped.step_time.unseen
    assert shipped.peaks["megatron"]
    assert LEVEL == 0.9  # what docs/cost.md and the words of reports say


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "errors.yaml"
    path.write_text("sources: many\n", encoding="utf-8")
    with pytest.raises(JobError, match="sources"):
        load_errors(path)
