"""Layouts as a run of Megatron-LM's pretrain_gpt.py: against its flags, and its own parser."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from autotune.app.planning import open_outlook
from autotune.base.errors import JobError, RenderError
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.flags import flags, newest_release, release_of, releases
from autotune.export.door import export_handout, handout_of, read_export
from autotune.job.job import CHECKOUT_WORKLOAD
from autotune.planning.explained import estimate_candidate
from autotune.planning.outlook import FleetWishes
from autotune.search.trial_spec import MEASURE
from tests.captured import captured
from tests.export.dialects.test_megatron_core import exported as exported_for_cpu
from tests.jobs import CPU
from tests.megatron_parser import REFUSED, validated

WORLD = 16
DENSE = {"model": "llama-3-8b", "seq_len": 8192, "global_batch": 256, "world": WORLD}
EXPERTS = {**DENSE, "model": "mixtral-8x7b", "seq_len": 4096}
LAYOUTS = [
    (DENSE, "tp=1 pp=1"),
    (DENSE, "tp=4 pp=2 vp=4 sequence_parallel=true distributed_optimizer=true"),
    (DENSE, "tp=2 cp=2 recompute=full micro_batch=2"),
    (DENSE, "tp=2 pp=2 recompute=block_4"),
    (DENSE, "pp=2 vp=17 ends_as_layers=true"),
    (EXPERTS, "tp=2 ep=8 sequence_parallel=true distributed_optimizer=true"),
    ({**DENSE, "model": "gpt2", "seq_len": 1024}, "tp=2 pp=2 micro_batch=4"),
    ({**DENSE, "model": "gpt2", "seq_len": 1024, "precision": "fp32"}, "recompute=selective"),
]


def laid_out(job, settings, there=None, study=None, gpu="H100", **changes):
    outlook = open_outlook(None, {**job, "engine": "megatron"}, FleetWishes(gpu=gpu))
    candidate = estimate_candidate(outlook, settings.split()).candidate
    environment = dataclasses.replace(outlook.environment, **(there or {}))
    engine = MegatronEngine(outlook.job, environment)
    handout = handout_of(candidate, engine=engine, job=outlook.job, environment=environment)
    return dataclasses.replace(handout, study=study, **changes)


def exported(folder, job, settings, to="megatron", launcher=None, **changes):
    export_handout(laid_out(job, settings, **changes), folder, to=to, launcher=launcher)
    return folder


@pytest.mark.parametrize(("settings", "is_said"), [("tp=1 ep=8", False), ("tp=2 ep=8", True)])
def test_experts_are_split_as_the_layers_are_where_those_are_split(tmp_path, settings, is_said):
    out = exported(tmp_path, EXPERTS, settings)
    assert ("Experts are split by tp" in (out / "README.md").read_text()) is is_said


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.cases("there")
def test_kernels_that_are_not_there_are_turned_off_where_the_consumer_can(tmp_path, there, to):
    """Megatron-Bridge brings them."""
    out = exported(tmp_path, DENSE, "tp=1 pp=1", to=to, there=there)
    written = "\n".join(f.read_text() for f in out.iterdir() if f.suffix in {".sh", ".yaml"})
    has_both = to == "megatron"
    is_local = has_both and "has_transformer_engine" in there
    assert ("--transformer-impl" in written) == is_local
    knows_apex = has_both and "has_apex" in there
    assert ("--no-gradient-accumulation-fusion" in written) == knows_apex


def program(folder):
    """The words that a launch script starts, as bash makes them."""
    done = captured(
        ["bash", "-euc", 'source ./megatron_args.sh; printf "%s\\0" "${PROGRAM[@]}"'],
        cwd=folder,
        env={**os.environ, "MEGATRON_PATH": "/checkout"},
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every layout, written for the release of the checkout, or the newest."""
    found = []
    checkout = os.environ.get("MEGATRON_PATH")
    release = release_of(Path(checkout)) if checkout else newest_release()
    for job, settings in LAYOUTS:
        folder = tmp_path_factory.mktemp("run")
        found.append(exported(folder, job, settings, f"megatron@{release}"))
    return found


def test_every_argument_is_a_flag_of_the_newest_release(folders):
    for folder in folders:
        script, *words = program(folder)
        assert script == "/checkout/pretrain_gpt.py"
        assert {word for word in words if word.startswith("--")} <= set(flags(newest_release()))


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout")
def test_a_checkouts_own_parser_and_checks_take_every_run(folders):
    lines = [program(folder)[1:] for folder in folders]
    answers = validated(Path(os.environ["MEGATRON_PATH"]), lines, world=WORLD)
    assert [answer.get(REFUSED) for answer in answers] == [None] * len(LAYOUTS)
    interleaved = answers[1]
    assert interleaved["virtual_pipeline_model_parallel_size"] == 4
    assert (interleaved["tensor_model_parallel_size"], interleaved["data_parallel_size"]) == (4, 2)
    assert answers[3]["recompute_method"] == "block"
    assert answers[5]["num_experts"] == 8


@pytest.mark.parametrize("release", releases())
def test_a_run_is_written_for_each_release(tmp_path, release):
    words = program(exported(tmp_path, DENSE, "tp=2 pp=2", f"megatron@{release}"))
    assert {word for word in words if word.startswith("--")} <= set(flags(release))
    vocab = int(words[words.index("--vocab-size") + 1])
    # Up to 0.17 the tokenizer of random tokens adds one to them.
    assert vocab == 128256 - (release in ("0.14", "0.15", "0.16", "0.17"))


@pytest.mark.cases("study", "measured", "to", "written")
def test_a_study_is_written_for_the_release_that_its_trials_ran(
    tmp_path, study, measured, to, written
):
    there = {"megatron_core": measured}
    out = exported(tmp_path, DENSE, "tp=2", to=to, there=there, study=study)
    assert f"The flags are those of Megatron Core {written};" in (out / "README.md").read_text()


def test_what_the_ranks_need_is_exported_and_sourced(tmp_path):
    text = (exported(tmp_path, DENSE, "tp=2") / "megatron_args.sh").read_text()
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text
    launch = (tmp_path / "launch.sh").read_text()
    assert 'source "$here/megatron_args.sh"' in launch
    assert "DeepSpeed" not in launch
    assert '"${PROGRAM[@]}"' in launch


def test_slurm_starts_it_and_no_launcher_of_deepspeeds_does(tmp_path):
    exported(tmp_path, DENSE, "tp=2", launcher="slurm")
    assert (tmp_path / "job.sbatch").exists()
    assert (tmp_path / "launch.sh").exists()
    with pytest.raises(RenderError, match="configuration of DeepSpeed"):
        exported(tmp_path, DENSE, "tp=2", launcher="accelerate")


def test_a_release_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(JobError, match=r"no flags are known of Megatron Core 0\.3"):
        exported(tmp_path, DENSE, "tp=2", to="megatron@0.3")


def test_an_export_is_read_back_as_a_trial_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    out = exported_for_cpu(tmp_path, to="megatron@0.16", tp=2, micro_batch=4)
    with pytest.raises(JobError, match=r"pretrain_gpt\.py is in no folder that is named"):
        read_export(out, CPU, measure=MEASURE)
    checkout = tmp_path / "checkout"
    (checkout / "megatron/core").mkdir(parents=True)
    (checkout / "pretrain_gpt.py").touch()
    (checkout / "megatron/core/package_info.py").write_text("MAJOR = 0\nMINOR = 16\nPATCH = 1\n")
    monkeypatch.setenv("MEGATRON_PATH", str(checkout))
    subject = read_export(out, CPU, measure=MEASURE)
    spec, arguments = subject.spec, json.loads(subject.files["megatron_args.json"])
    assert (spec.workload.name, spec.workload.script) == (
        CHECKOUT_WORKLOAD,
        str(checkout / "pretrain_gpt.py"),
    )
    assert spec.workload.arguments[:2] == ["--mock-data", "--tokenizer-type"]
    assert arguments["num_workers"] == 0
    assert (spec.engine.expected["tp"], spec.engine.expected["micro_batch"]) == (2, 4)
    assert spec.engine.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
