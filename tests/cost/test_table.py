"""Tables of runs: one spelling for each value, and an error that says which."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import JobError
from autotune.cost import Recompute, predict
from autotune.cost.row_choices import SETTINGS
from autotune.cost.table import TableRows, read_table, rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from tests.cases import data_beside
from tests.cost.rows import ROW, csv_text, row

DATA = data_beside(__file__)

TABLE = shipped_accelerators()
SIZES = ("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab")
NAMED = {**dict.fromkeys((*SIZES, "gated_mlp", "tied_embeddings"), ""), "model": "deepseek-v3"}
NAMED |= {"pp": "8", "vp": "4", "tp": "1", "dp": "8", "ep": "8"}
NAMED |= {"gpu_type": "H100", "micro_batch": "1", "global_batch": "64", "framework": "bridge"}


def read(**changes: str) -> TableRows:
    return rows_to_plans([row(**changes)], TABLE)


def column(name: str, **changes: str) -> float:
    rows = read(**changes)
    assert rows.plans is not None, rows.reasons
    return float(getattr(rows.plans, name)[0])


def test_a_full_row_leaves_nothing_open() -> None:
    rows = read(loss="eager")
    assert (rows.reasons, rows.assumed) == (("",), ((),))
    assert column("grad_accum") == 128 / (2 * 8)
    assert column("network_bytes_per_s") == 8 * 200e9 / 8 / 8
    assert column("recompute") == Recompute.FULL


@pytest.mark.cases("changes", "name", "expected")
def test_each_value_has_a_column(changes: dict[str, str], name: str, expected: float) -> None:
    assert column(name, **changes) == pytest.approx(expected)


@pytest.mark.cases("changes", "reason")
def test_another_spelling_is_refused_with_what_is_allowed(changes, reason) -> None:
    found = read(**changes)
    assert reason in found.reasons[0]
    assert (found.plans is None) == bool(reason)


def test_a_model_gives_the_shape() -> None:
    sizes = ("n_layers", "hidden", "n_experts", "n_dense_layers", "latent_kv_rank")
    assert [column(name, **NAMED) for name in sizes] == [61, 7168, 256, 3, 512]
    assert column("n_mtp_layers", **NAMED) == 1
    assert column("n_mtp_layers", **{**NAMED, "n_mtp_layers": "0"}) == 0
    assert column("n_mtp_layers", **{**NAMED, "framework": "deepspeed"}) == 0
    assert column("n_layers", **{**NAMED, "n_layers": "32"}) == 32
    assert column("hidden", **{**NAMED, "model": "deepseek-ai/DeepSeek-V3"}) == 7168


def test_chunks_of_a_pipeline_may_hold_embedding_or_loss_alone() -> None:
    assert read(n_layers="30", pp="4", vp="8", dp="4").reasons == ("",)
    assert "more than n_layers=29" in read(n_layers="29", pp="4", vp="8", dp="4").reasons[0]


NUMBERS = ("", "0", "-1", "1e400", "nan", "1", "2", "7", "8.0", "3.5", "64", "1e6", "9" * 400)
WORDS = ("full", "every_0", "fsdp", "ulysses=0", "yes", "none", "fp8", "bf16", "H100", "V100")
CELLS = st.one_of(st.sampled_from(NUMBERS + WORDS), st.text(max_size=12))


@given(st.dictionaries(st.sampled_from(sorted({*ROW, *SETTINGS})), CELLS, max_size=6))
@settings(deadline=None, max_examples=200)
def test_any_row_is_predicted_in_numbers_or_has_a_reason(changes: dict[str, str]) -> None:
    rows = read(**changes)
    if rows.plans is None:
        assert rows.reasons[0]
        return
    predicted = predict(rows.plans)
    assert np.all(np.isfinite(predicted.step_time_s) & (predicted.step_time_s > 0))
    assert np.all(np.isfinite(predicted.peak_memory_bytes))
    assert np.all((predicted.fit_probability >= 0) & (predicted.fit_probability <= 1))


@pytest.mark.cases("text", "message")
def test_a_broken_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobError, match=message):
        read_table(path)


def test_a_table_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + csv_text(row(), row(id="a-2")).encode())
    header, rows = read_table(path)
    assert header == tuple(ROW)
    assert [one["id"] for one in rows] == ["a-1", "a-2"]


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is no text: byte 1 is not UTF-8"):
        read_table(path)


LONG_SAMPLES = DATA["LONG_SAMPLES"]


@pytest.mark.cases("changes")
def test_the_longest_samples_of_alst_are_about_as_large_as_the_device(changes) -> None:
    """And far too large without any of its parts."""
    alst = {**LONG_SAMPLES, **changes}
    lacks = [{"mlp_tile_tokens": "0"}, {"loss": "eager"}, {"offloaded_activations": "0"}]
    rows = rows_to_plans([alst, *({**alst, **lack} for lack in lacks)], TABLE)
    assert rows.plans is not None, rows.reasons
    fits, *others = predict(rows.plans).peak_memory_bytes / (80 * 2**30)
    assert 0.7 < fits < 1.25
    assert min(others) > 1.3 * fits


@pytest.mark.cases("newer", "older")
def test_a_device_with_more_of_the_same_chip_is_never_slower(newer: str, older: str) -> None:
    names = {accelerator.name: accelerator for accelerator in TABLE}
    of_one_node = {"n_gpus": "8", "gpus_per_node": "8", "interconnect": "8x400Gb", "dp": ""}
    for layout in DATA["LAYOUTS"]:
        cells = {**of_one_node, "tp": "1", "pp": "1", **layout}
        memory = [f"{names[name].memory_bytes / 2**30:g}" for name in (newer, older)]
        kinds = [re.sub(r"-\d+GB$", "", name) for name in (newer, older)]
        rows = [
            row(**cells, gpu_type=kind, gpu_mem_gb=gib)
            for kind, gib in zip(kinds, memory, strict=True)
        ]
        read = rows_to_plans(rows, TABLE)
        assert read.plans is not None, read.reasons
        faster_s, slower_s = predict(read.plans).step_time_s
        assert faster_s <= slower_s * (1 + 1e-9), layout
