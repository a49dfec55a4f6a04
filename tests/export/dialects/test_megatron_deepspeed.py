"""Layouts as a run of Megatron-DeepSpeed: its flags, and the ds_config that has to agree."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from autotune.app.check import CheckFlags, check_files
from autotune.app.planning import open_outlook
from autotune.base.errors import RenderError
from autotune.engines.megatron.engine import MegatronEngine
from autotune.export.base import MeasuredFigures
from autotune.export.dialects.megatron_deepspeed import FLAGS_FILE, flags
from autotune.export.door import export_handout, handout_of
from autotune.planning.explained import estimate_candidate
from autotune.planning.outlook import FleetWishes
from tests.export.dialects.test_megatron_core import exported as exported_for_cpu
from tests.export.dialects.test_megatron_lm import DENSE, EXPERTS, exported
from tests.record_megatron_deepspeed_flags import as_text, flags_of

LAYOUTS = (
    "tp=2 pp=2 distributed_optimizer=true",
    "tp=2 recompute=full micro_batch=2 sequence_parallel=true",
    "pp=4",
)
FIGURES = MeasuredFigures(
    trial=3, n_runs=1, samples_per_s=2.0, samples_per_s_low=1.9, samples_per_s_high=2.1
)


def program(folder, name="PROGRAM"):
    source = "source ./megatron_deepspeed_args.sh"
    done = subprocess.run(
        ["bash", "-euc", f'{source}; printf "%s\\0" "${{{name}[@]}}"'],
        cwd=folder,
        env={**os.environ, "MEGATRON_PATH": "/checkout", "DATA_PATH": "/data/x"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def test_what_was_tuned_stands_apart_from_the_rest(tmp_path):
    out = exported(tmp_path / "out", DENSE, LAYOUTS[1], to="megatron-deepspeed")
    flags_in = {
        group: {word for word in program(out, group) if word.startswith("--")}
        for group in ("MODEL_ARGS", "LAYOUT_ARGS", "TRAINING_ARGS")
    }
    assert flags_in["LAYOUT_ARGS"] >= {"--zero-stage", "--checkpoint-activations", "--deepspeed"}
    assert flags_in["MODEL_ARGS"] >= {"--layernorm-epsilon", "--num-key-value-heads"}
    assert {"--lr", "--clip-grad", "--seed"} < flags_in["TRAINING_ARGS"]
    assert not flags_in["LAYOUT_ARGS"] & (flags_in["MODEL_ARGS"] | flags_in["TRAINING_ARGS"])


@pytest.mark.parametrize("settings", LAYOUTS)
def test_flags_are_its_own_and_agree_with_the_configuration(tmp_path, settings):
    out = exported(tmp_path / "out", DENSE, settings, to="megatron-deepspeed")
    words = program(out)
    named = [word for word in words if word.startswith("--")]
    assert set(named) <= set(flags())
    value = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    config = json.loads((out / "ds_config.json").read_text())
    assert value["--global-batch-size"] == str(config["train_batch_size"])
    assert value["--micro-batch-size"] == str(config["train_micro_batch_size_per_gpu"])
    assert value["--zero-stage"] == str(config["zero_optimization"]["stage"])
    assert value["--deepspeed_config"] == str(out / "ds_config.json")
    assert ("--no-pipeline-parallel" in named) is ("pp" not in settings)
    line = f"torchrun --nproc-per-node 8 --nnodes 2 {shlex.join(words)}"
    (report,) = check_files([str(out / "ds_config.json")], CheckFlags(launch=line)).reports
    assert [one.violation.rule for one in report.found if one.violation.level == "error"] == []
    assert not [one for one in report.found if "megatron_deepspeed" in one.violation.rule]


@pytest.mark.parametrize(
    ("job", "settings", "message"),
    [
        (DENSE, "pp=2 vp=4", "interleaved"),
        (DENSE, "tp=2 cp=2", "context parallelism"),
        (DENSE, "recompute=block_8", "a part of"),
        (EXPERTS, "ep=8", "experts"),
    ],
)
def test_what_it_does_not_train_is_refused(tmp_path, job, settings, message):
    with pytest.raises(RenderError, match=message) as caught:
        exported(tmp_path, job, settings, to="megatron-deepspeed")
    assert "another layout with --rank" in caught.value.hint


def test_of_a_measured_one_the_fix_names_the_flag_of_export_and_of_cpu_ranks_no_layout(tmp_path):
    outlook = open_outlook(None, {**DENSE, "engine": "megatron"}, FleetWishes(gpu="H100"))
    candidate = estimate_candidate(outlook, ["pp=2", "vp=4"]).candidate
    engine = MegatronEngine(outlook.job, outlook.environment)
    handout = handout_of(
        candidate, engine=engine, job=outlook.job, environment=outlook.environment, figures=FIGURES
    )
    with pytest.raises(RenderError, match="interleaved") as caught:
        export_handout(handout, tmp_path / "out", to="megatron-deepspeed")
    assert "another layout with --trial" in caught.value.hint
    with pytest.raises(RenderError, match="does not train CPU ranks") as caught:
        exported_for_cpu(tmp_path, to="megatron-deepspeed", tp=2)
    assert caught.value.hint == "write it --to megatron for Megatron-LM"


@pytest.mark.skipif(
    "MEGATRON_DEEPSPEED_PATH" not in os.environ,
    reason="MEGATRON_DEEPSPEED_PATH names no checkout",
)
def test_the_file_of_flags_is_what_the_source_says():
    found = as_text(flags_of(Path(os.environ["MEGATRON_DEEPSPEED_PATH"])))
    assert FLAGS_FILE.read_text(encoding="utf-8") == found
