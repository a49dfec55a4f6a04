"""The command behind `estimate`: every row comes back, in order, with a prediction or a reason."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

import autotune
from autotune.app.estimate import estimate_rows, predict_frame
from autotune.base.errors import AutotuneError
from autotune.report.terminal.tables import print_told
from tests.cost.rows import ROW, csv_text, row
from tests.jobs import own_accelerator
from tests.report.told import printed

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cost.md"


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    found = re.search(r"^```\n(id,model,.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    source = tmp_path / "runs.csv"
    source.write_text(found[1], encoding="utf-8")
    done = estimate_rows(source, tmp_path / "out.csv")
    assert (done.rows, done.predicted, len(done.first)) == (2, 1, 1)
    values = {"rows": done.first.to_dict("index")}
    assert " GiB" in printed(print_told, "estimated_rows", values)
    columns = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    for name in re.findall(r"^\| `(pred_\w+|assumed|reason)` \|", DOCUMENT.read_text(), re.M):
        assert name in columns


def written(folder: Path, *rows: dict[str, str]) -> list[dict[str, str]]:
    source, out = folder / "in.csv", folder / "deep" / "out.csv"
    source.write_text(csv_text(*rows), encoding="utf-8")
    estimate_rows(source, out)
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_comes_back_in_order(tmp_path: Path) -> None:
    found = written(tmp_path, row(), row(id="bad", n_layers=""), row(id="last"))
    assert [one["id"] for one in found] == ["a-1", "bad", "last"]
    assert [bool(one["reason"]) for one in found] == [False, True, False]
    assert found[1]["pred_step_time_s"] == ""
    assert all(one[name] == text for one in found[:1] for name, text in ROW.items())


def test_the_figures_belong_together(tmp_path: Path) -> None:
    one = written(tmp_path, row())[0]
    rate = 128 * 2048 / 64 / float(one["pred_step_time_s"])
    assert float(one["pred_tokens_per_s_per_gpu"]) == pytest.approx(rate, rel=1e-4)
    parts = ("params", "grads", "optimizer", "activations", "logits", "buckets", "gathered")
    parts = (*parts, "workspace", "fragmentation", "context")
    total = sum(float(one[f"pred_{part}_gb"]) for part in parts)
    assert float(one["pred_peak_memory_gb"]) == pytest.approx(total, rel=1e-4)
    assert 0 <= float(one["pred_fit_probability"]) <= 1
    assert "loss=not fused" in one["assumed"]


def test_memory_is_of_the_meter_and_the_stage_that_the_row_names(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    head, line = csv_text(row()).splitlines()
    runs = [(meter, stage) for meter in ("reserved", "device") for stage in (0, 1, 2)]
    lines = [f"{head},memory_meter,watched_stage", *(f"{line},{m},{s}" for m, s in runs)]
    source.write_text("\n".join(lines), encoding="utf-8")
    estimate_rows(source, out)
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    context = [float(one["pred_context_gb"]) for one in found]
    peaks = [float(one["pred_peak_memory_gb"]) for one in found]
    assert [one["pred_peak_memory_gb"] for one in found[:3]] == [
        one["pred_reserved_gb"] for one in found[:3]
    ]
    assert peaks[3:] == pytest.approx(
        [peak + more for peak, more in zip(peaks[:3], context[:3], strict=True)], rel=1e-4
    )
    assert peaks[3] == max(peaks[4:]) != min(peaks[4:])
    assert len({one["pred_fit_probability"] for one in found}) == 1


def test_an_empty_table_is_an_empty_table(tmp_path: Path) -> None:
    assert written(tmp_path) == []


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text(csv_text(row()), encoding="utf-8")
    with pytest.raises(AutotuneError, match="is the input itself"):
        estimate_rows(source, source)
    assert source.read_text(encoding="utf-8") == csv_text(row())


def test_own_accelerators(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(csv_text(row(gpu_type="Mine")), encoding="utf-8")
    assert estimate_rows(source, out).predicted == 0
    own = own_accelerator(tmp_path / "own.yaml", "Mine")
    done = estimate_rows(source, out, accelerators=own)
    assert (done.predicted, done.reasons) == (1, {})


def test_what_is_no_table_of_runs_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "ds_config.json"
    source.write_text('{"train_batch_size": 8}\n', encoding="utf-8")
    with pytest.raises(AutotuneError, match="no column of its first line is known"):
        estimate_rows(source, tmp_path / "out.csv")
    with pytest.raises(AutotuneError, match="no column of its first line is known"):
        predict_frame(source)


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 16}])
def test_a_row_and_a_command_forecast_the_same(lora) -> None:
    job = {"model": "llama-3-8b", "seq_len": 2048, "global_batch": 16}
    settings = ("zero.stage=2", "micro_batch=4", "recompute=full")
    command = autotune.estimate(*settings, **job, **lora, world=4, gpu="A100-80GB").as_dict()
    cells = {"zero_stage": 2, "micro_batch": 4, "recompute": "full", "precision": "bf16"}
    adapted = {"task": "lora", "reduce_bucket_elements": 41943040} if lora else {}
    fleet = {"framework": "deepspeed", "gpu_type": "A100-80GB", "n_gpus": 4}
    row = predict_frame(pd.DataFrame([job | cells | lora | adapted | fleet])).iloc[0]
    assert row.pred_step_time_s == pytest.approx(command["pred_step_time_s"], rel=1e-3)
    peak_gib = command["pred_peak_memory_bytes"] / 2**30
    assert row.pred_peak_memory_gb == pytest.approx(peak_gib, rel=1e-3)
