"""A candidate in files that somebody has: what changes, what does not, and what is read back."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.base.errors import AutotuneError, JobError, RenderError
from autotune.base.nested import leaves
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.export.command_files import training_of
from autotune.export.door import export_handout, handout_of
from autotune.export.door import patched as patched_by_dialect
from autotune.export.patch import Wanted, patched, patched_all
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical
from tests import snapshots
from tests.cases import data_beside
from tests.engines.deepspeed.sources.test_baseline import made_by_trainer
from tests.jobs import CPU, canonical_candidate, tiny_job
from tests.observed import RAW, job_of, observed

DATA = data_beside(__file__)

AUTO_CONFIG = DATA["AUTO_CONFIG"]
PLAIN = DATA["PLAIN"]
ARGUMENTS = DATA["ARGUMENTS"]
ACCELERATE = DATA["ACCELERATE"]
AXOLOTL = DATA["AXOLOTL"]
FACTORY = DATA["FACTORY"]
LAUNCH = DATA["LAUNCH"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("patch")


def wanted(folder, **knobs):
    job = tiny_job(folder)
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, **knobs)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    return Wanted(handout, engine, None)


def write(folder, text, name):
    path = folder / name
    path.write_text(text)
    return path


def apply(paths, brought):
    """Patch files, and see that once more changes nothing."""
    made = patched_all(paths, brought)
    for one in made:
        if one.is_changed:
            one.write()
    assert not any(one.is_changed for one in patched_all(paths, brought))
    return made


OWN_FILES = DATA["OWN_FILES"]
CHOSEN = [
    {"zero__stage": 0, "micro_batch": 4},
    {"zero__stage": 1, "micro_batch": 2},
    {"zero__stage": 2, "micro_batch": 1, "reduce_bucket_size": 10_000},
    {"zero__stage": 3, "micro_batch": 4, "offload__optimizer": "cpu"},
]


@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
@pytest.mark.parametrize("key", ["base_config", "baseline"])
@pytest.mark.parametrize("name", OWN_FILES)
def test_an_export_and_a_patched_file_agree_key_by_key(folder, name, key, chosen):
    path = write(folder, json.dumps(OWN_FILES[name]), "own.json")
    job = tiny_job(folder, **{key: str(path)})
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, **chosen)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    exported = json.loads(handout.exported["ds_config.json"])
    changed = json.loads(patched(path, Wanted(handout, engine, None)).after)
    check_same(exported, changed, folder, tiny_job(folder))


OWN_COMMANDS = DATA["OWN_COMMANDS"]


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"zero.stage": 0},
        {"zero.stage": 2, "micro_batch": 8},
        {"zero.stage": 3, "offload.optimizer": "none", "micro_batch": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_the_export_of_a_command_and_its_patched_file_agree_key_by_key(tmp_path, name, chosen):
    wrote = OWN_COMMANDS[name]
    path = write(tmp_path, json.dumps(wrote), "own.json")
    arrived = {**wrote, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    description = {**RAW, "config": arrived, "config_written": wrote, "config_file": str(path)}
    command = ["torchrun", "--nproc-per-node", "2", "train.py", f"--config={path}"]
    job = job_of(replace(observed(description, command=command), folder=str(tmp_path)), tmp_path)
    engine = ScriptEngine(job, CPU)
    values = canonical({**engine.unchanged.values, **chosen}, engine.context)
    candidate = Candidate.of(values, world=job.world, global_batch=job.global_batch)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    export_handout(handout, tmp_path / "best", to="command")
    exported = json.loads((tmp_path / "best" / "ds_config.json").read_text())
    brought = Wanted(handout, engine, training_of(handout))
    changed = json.loads(patched(path, brought).after)
    check_same(exported, changed, tmp_path, replace(job, script=None))


def check_same(exported, changed, folder, job):
    """No key has two values; what one file alone spells out means what the other one does."""
    ours, theirs = dict(leaves(exported)), dict(leaves(changed))
    both = ours.keys() & theirs
    assert {at: ours[at] for at in both} == {at: theirs[at] for at in both}
    spelled = {"train_batch_size", "train_micro_batch_size_per_gpu"}
    spelled |= {"gradient_accumulation_steps", "zero_optimization", "optimizer"}
    assert {at[0] for at in ours.keys() ^ theirs} <= spelled
    read = []
    for config in (exported, changed):
        path = write(folder, json.dumps(config), "read.json")
        read.append(carried(DeepSpeedEngine(job, CPU).baseline(path)[1]))
        if "optimizer" not in changed:  # whose Adam is the script's to say
            read[-1].pop("optimizer.implementation")
    assert read[0] == read[1]


def reading(folder, path):
    return DeepSpeedEngine(tiny_job(folder), CPU).baseline(path)[1]


def carried(candidate):
    """Knobs that a ds_config carries."""
    return {n: v for n, v in candidate.values.items() if KNOBS[n].key and n != "compile"}


def said(made):
    return [str(one) for one in made.left]


@pytest.mark.cases("files", "others", "knobs")
def test_what_is_written_and_what_is_left_is_frozen(tmp_path, request, files, others, knobs):
    """With the knobs that the first file has after it, read back."""
    texts = {name: text for name, text in DATA.items() if isinstance(text, str)}
    for name, text in files.items():
        write(tmp_path, text.format(**texts), name)
    first = tmp_path / next(iter(files))
    told = []
    for one in apply([first, *(tmp_path / name for name in others)], wanted(tmp_path, **knobs)):
        told += [f"== {one.path.name}{', by hand' * one.is_by_hand}", one.diff.rstrip("\n")]
        told += [f"left: {each}" for each in said(one)]
    with contextlib.suppress(AutotuneError):
        back = reading(tmp_path, first)
        names = ("zero.stage", "micro_batch", "recompute", "compile", "attention", "offload.param")
        told.append("read back: " + " ".join(f"{name}={back.get(name)}" for name in names))
    text = "\n".join(told).replace(str(tmp_path), "FOLDER") + "\n"
    snapshots.check(f"patches/{request.node.callspec.id.replace(' ', '_')}.txt", text)


def test_hjson_is_told_and_not_written(folder):
    text = PLAIN.replace('"stage": 2,', "stage: 2,  // two")
    path = write(folder, text, "ds.hjson")
    with pytest.raises(RenderError, match="Hjson") as raised:
        patched(path, wanted(folder, zero__stage=1, micro_batch=4, overlap_comm=True))
    assert raised.value.hint == "write it by hand: zero_optimization.stage=1"


def test_the_installed_trainer_takes_what_was_patched(folder):
    pytest.importorskip("transformers")
    inner = write(folder, AUTO_CONFIG, "ds.json")
    text = "output_dir: out  # here\nuse_cpu: true\nbf16: true\ndeepspeed: ds.json\n"
    path = write(folder, text, "args.yaml")
    brought = wanted(
        folder, zero__stage=3, micro_batch=2, reduce_bucket_size=3000, recompute="every_2"
    )
    apply([path, inner], brought)
    made = made_by_trainer(path)
    assert made["train_micro_batch_size_per_gpu"] == 2
    assert made["gradient_accumulation_steps"] == 2
    assert made["zero_optimization"]["stage"] == 3
    assert made["zero_optimization"]["reduce_bucket_size"] == 3000
    assert made["recompute"] is True
    assert made["recompute_options"] == {"every_n_layers": 2}


def test_a_file_that_is_none_of_these(folder):
    brought = wanted(folder, zero__stage=3)
    path = write(folder, '{"name": "x", "version": 1, "dependencies": {}}', "package.json")
    with pytest.raises(JobError, match="no key that only DeepSpeed"):
        patched(path, brought)
    with pytest.raises(JobError, match="standard input"):
        patched(Path("-"), brought)


def test_a_file_that_changed_meanwhile_is_not_written(folder):
    path = write(folder, PLAIN, "ds.json")
    made = patched(path, wanted(folder, zero__stage=3))
    path.write_text(PLAIN + "\n")
    with pytest.raises(RenderError, match="changed since"):
        made.write()
    assert path.read_text() == PLAIN + "\n"


def test_the_diff_shows_no_secret(folder):
    text = PLAIN.replace(
        '"train_batch_size"', '"wandb": {"api_key": "abcdef0123"},\n    "train_batch_size"'
    )
    made = patched(write(folder, text, "ds.json"), wanted(folder, zero__stage=3))
    assert "abcdef0123" in made.after
    assert "abcdef0123" not in made.diff


KNOB_VALUES = {
    "zero__stage": st.sampled_from([0, 1, 2, 3]),
    "micro_batch": st.sampled_from([1, 2, 4]),
    "offload__optimizer": st.sampled_from(["none", "cpu"]),
    "offload__param": st.sampled_from(["none", "cpu"]),
    "reduce_bucket_size": st.sampled_from([2000, 50_000, 500_000_000]),
    "allgather_bucket_size": st.sampled_from([2000, 500_000_000]),
    "overlap_comm": st.booleans(),
    "contiguous_gradients": st.booleans(),
    "round_robin_gradients": st.booleans(),
    "stage3__param_persistence_threshold": st.sampled_from([0, 100, 100_000]),
    "stage3__prefetch_bucket_size": st.sampled_from([0, 3000, 50_000_000]),
    "communication_dtype": st.sampled_from(["model", "fp32"]),
    "grad_accum_dtype": st.sampled_from(["model", "fp32"]),
    "zenflow": st.sampled_from(["none", "sequential"]),
    "zenflow__select_interval": st.sampled_from([1, 3]),
    "optimizer__implementation": st.sampled_from(["deepspeed", "torch", "torch_fused"]),
}
CHOICES = st.fixed_dictionaries({}, optional=KNOB_VALUES)
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "dump_state": st.booleans(),
        "wall_clock_breakdown": st.booleans(),
        "mine": st.just({"a": [1, 2], "b": None}),
        "steps_per_print": st.just(7),
    },
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(theirs=CHOICES, ours=CHOICES, extra=EXTRA, form=st.sampled_from(["json", "yaml"]))
def test_what_is_patched_reads_back_as_the_candidate_and_loses_nothing(
    folder, theirs, ours, extra, form
):
    before = {**wanted(folder, **theirs).config, **extra}
    is_yaml = form == "yaml"
    text = yaml.safe_dump(before) if is_yaml else json.dumps(before, indent=1)
    path = write(folder, text, f"any.{form}")
    brought = wanted(folder, **ours)
    apply([path], brought)
    after = yaml.safe_load(path.read_text())
    governed = {key for knob in KNOBS.values() for key in knob.keys}
    lost = {".".join(at) for at, _ in leaves(before)} - {".".join(at) for at, _ in leaves(after)}
    assert all(any(name.startswith(key) for key in governed) for name in lost)
    assert {name: after[name] for name in extra} == extra
    if not is_yaml:
        assert carried(reading(folder, path)) == carried(brought.candidate)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    choice=st.fixed_dictionaries(
        {"zero__stage": KNOB_VALUES["zero__stage"], "micro_batch": KNOB_VALUES["micro_batch"]},
        optional={
            "offload__optimizer": KNOB_VALUES["offload__optimizer"],
            "recompute": st.sampled_from(["none", "full"]),
            "compile": st.sampled_from(["none", "torch"]),
        },
    ),
    form=st.sampled_from(["args", "axolotl", "factory", "accelerate"]),
)
def test_every_dialect_reads_back(folder, choice, form):
    inner = write(folder, AUTO_CONFIG, "ds.json")
    texts = {
        "args": (ARGUMENTS, "a.yaml"),
        "axolotl": (AXOLOTL, "x.yaml"),
        "factory": (FACTORY, "f.yaml"),
        "accelerate": (ACCELERATE, "acc.yaml"),
    }
    path = write(folder, *texts[form])
    brought = wanted(folder, **choice)
    apply([path] if form == "accelerate" else [path, inner], brought)
    back = reading(folder, path)
    names = ["zero.stage", "micro_batch", "offload.optimizer"]
    names += [] if form == "accelerate" else ["recompute", "compile"]
    assert {n: back.get(n) for n in names} == {n: brought.candidate.get(n) for n in names}
    assert back.grad_accum == brought.candidate.grad_accum


def test_a_patch_that_cannot_keep_a_comment_is_refused(folder):
    text = "base: &base {stage: 2}\nzero_optimization: *base\ntrain_micro_batch_size_per_gpu: 4\n"
    path = write(folder, text, "aliased.yaml")
    with pytest.raises(RenderError, match="every comment and alias"):
        patched(path, wanted(folder, zero__stage=3, micro_batch=4))


def test_another_engine_is_told(folder):
    job = tiny_job(folder)
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    with pytest.raises(JobError, match="megatron"):
        patched_by_dialect([Path("x.sh")], replace(handout, engine="megatron"), engine)


READ = DATA["READ"]


def own_of(folder: Path, **said: Any) -> Wanted:
    """Stage 2 and eight samples of a command whose script reads a file under a flag of its own."""
    described = {**RAW, "gives_data": True, **said}
    script = replace(observed(described, command=["torchrun", "a.py", "--e", "run.yaml"]))
    script = replace(script, folder=str(folder))
    job = job_of(script, folder)
    engine = ScriptEngine(job, CPU)
    values = {**engine.unchanged.values, "zero.stage": 2, "micro_batch": 8}
    candidate = Candidate.of(values, world=2, global_batch=16)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    edits = engine.edits(candidate)
    carried = [key for key in edits.configuration if not key.startswith("gradient")]
    handout = replace(handout, carried=carried)
    return Wanted(handout, engine, training_of(handout))


def test_a_file_that_a_command_reads_under_any_flag_gets_what_arrives_from_it(folder):
    path = write(folder, READ, "run.yaml")
    source = {
        **{"file": str(path), "at": ["engine"], "other": [], "is_whole": True},
        "same": ["train_batch_size", "zero_optimization.stage"],
        "sections": ["zero_optimization"],
    }
    brought = own_of(folder, sources=[source])
    made = patched(path, brought)
    expected = READ.replace("stage: 1", "stage: 2")
    assert made.after == expected + "  train_micro_batch_size_per_gpu: 8\n"
    assert said(made) == ["gradient_accumulation_steps=1: the configuration in your code"]
    start = write(folder, "torchrun --nproc-per-node 2 a.py --e run.yaml\n", "run.sh")
    line = patched(start, brought)
    assert not line.is_changed
    assert f"engine.zero_optimization.stage=2: {path}: --patch {path} writes it there" in said(
        line
    )


def test_a_configuration_under_any_flag_is_deepspeed_s(folder):
    path = write(folder, '{"zero_optimization": {"stage": 1}}', "of_mine.json")
    made = patched(path, own_of(folder, config_file=str(path)))
    assert json.loads(made.after) == {
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    }
    assert not made.left
