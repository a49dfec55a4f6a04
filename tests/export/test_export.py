import ast
import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.base.errors import JobError, RenderError
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.export import door
from autotune.export.door import MARKER_FILE, export_handout, handout_of, read_export, write_export
from autotune.record.answer import Speedup, Standing
from autotune.space.built_in import SCRIPT_FILES
from autotune.space.candidate import Candidate
from autotune.testing import MEASURE
from tests import snapshots
from tests.captured import captured, stand_in
from tests.jobs import CPU, TINY, canonical_candidate, tiny_job

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "autotune" / "trial" / "scripts"
STANDING = Standing(
    trial=7,
    candidate=Candidate.of({}, world=2, global_batch=8),
    n_runs=3,
    samples_per_s=12.34,
    samples_per_s_low=12.0,
    samples_per_s_high=12.5,
    peak_memory_bytes=3 * 2**28,
)
MEASURED = {
    "figures": STANDING,
    "baseline": dataclasses.replace(STANDING, samples_per_s=10.0),
    "gain": Speedup(ratio=1.234, low=1.2, high=1.26),
    "change": "recompute=full",
}


THOROUGH = pytest.mark.thorough
ADAPTED = {
    "finetune": {"method": "lora", "rank": 4},
    "lengths": {"histogram": {4: 0.5, 9: 0.4, 16: 0.1}, "pad_to_multiple": 4},
}


def export(tmp_path: Path, measured=MEASURED, job=None, to="deepspeed", launcher=None, **knobs):
    job = job or tiny_job(tmp_path)
    handout = handout_of(
        canonical_candidate(job, **knobs),
        engine=DeepSpeedEngine(job, CPU),
        job=job,
        environment=CPU,
    )
    export_handout(
        dataclasses.replace(handout, **measured), tmp_path / "out", to=to, launcher=launcher
    )
    return tmp_path / "out"


def test_the_files(tmp_path):
    out = export(tmp_path, zero__stage=2, micro_batch=2, recompute="full")
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == {
        "README.md",
        "autotune_export.json",
        "ds_config.json",
        "figures.json",
        "launch.sh",
        "model/config.json",
        "settings.json",
        "train.py",
    }
    for name in ("README.md", "launch.sh", "settings.json"):
        snapshots.check(f"render/export_{name}", (out / name).read_text())
    assert os.access(out / "launch.sh", os.X_OK)
    assert json.loads((out / "model/config.json").read_text()) == TINY
    assert json.loads((out / "figures.json").read_text())["figures"]["samples_per_s"] == 12.34
    assert "autotune" not in (out / "train.py").read_text()
    compile((out / "train.py").read_text(), "train.py", "exec")
    subprocess.run(["bash", "-n", out / "launch.sh"], check=True)


def test_figures_that_were_disturbed_say_so(tmp_path):
    out = export(
        tmp_path, {"figures": dataclasses.replace(STANDING, n_disturbed=1)}, zero__stage=1
    )
    assert "| of these disturbed | 1: " in (out / "README.md").read_text()


def test_the_readme_spells_no_interval_that_says_nothing(tmp_path):
    noisy = {**MEASURED, "gain": Speedup(ratio=1.234, low=1e-7, high=9364823.12)}
    text = (export(tmp_path, noisy, zero__stage=1) / "README.md").read_text()
    assert "1.234x (runs differ too much for an interval)" in text


def test_the_readme_says_what_was_not_measured_and_what_was_overridden(tmp_path):
    (tmp_path / "base.json").write_text('{"train_batch_size": 64}')
    job = tiny_job(tmp_path, base_config=str(tmp_path / "base.json"))
    text = (export(tmp_path, measured={}, job=job, zero__stage=1) / "README.md").read_text()
    title, _, first = text.split("\n")[:3]
    assert title.startswith("# ")
    assert "nothing here was measured" in first
    assert "| `train_batch_size` | 64 | 8 |" in text
    assert not (tmp_path / "out" / "figures.json").exists()


def test_an_export_keeps_what_a_user_s_file_writes_and_a_soak_of_it_does_not(tmp_path):
    monitor = {"enabled": True, "output_path": "figures", "job_name": "mine"}
    given = {"csv_monitor": monitor, "gradient_clipping": 0.3, "steps_per_print": 7}
    (tmp_path / "base.json").write_text(json.dumps(given))
    job = tiny_job(tmp_path, base_config=str(tmp_path / "base.json"))
    out = export(tmp_path, job=job, zero__stage=1)
    config = json.loads((out / "ds_config.json").read_text())
    assert {name: config[name] for name in given} == given
    text = (out / "README.md").read_text()
    assert "do not run as you wrote them" not in text
    assert "Not tuned: `gradient_clipping` 0.3" in text
    soaked = read_export(out, CPU, measure=MEASURE)
    assert "csv_monitor" not in json.loads(soaked.files["ds_config.json"])


@pytest.mark.parametrize(
    ("world", "n_devices", "n_nodes", "per_node"), [(16, 8, 2, 8), (12, 8, 2, 6), (4, 8, 1, 4)]
)
def test_a_world_above_one_node_is_started_on_every_node(
    tmp_path, world, n_devices, n_nodes, per_node
):
    gpus = dataclasses.replace(CPU, accelerator="cuda", n_devices=n_devices)
    job = tiny_job(tmp_path, world=world, global_batch=48)
    engine = DeepSpeedEngine(job, gpus)
    export_handout(
        handout_of(
            canonical_candidate(job, micro_batch=1), engine=engine, job=job, environment=gpus
        ),
        tmp_path / "out",
        to="deepspeed",
    )
    # What torchrun would be told; the variable names another command in its place.
    script = tmp_path / "out" / "launch.sh"
    stand_in(tmp_path, "python", f'[[ $1 = - ]] && exec {sys.executable} "$@"; echo "$@"')
    env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "python")}
    host = socket.gethostname()
    text = captured(["bash", script], env={**env, "MASTER_ADDR": host}).stdout
    assert f"--nproc-per-node {per_node} " in text
    readme = (tmp_path / "out" / "README.md").read_text()
    if n_nodes == 1:
        assert "--standalone" in text
        assert "MASTER_ADDR" not in readme
        return
    assert f"--nnodes {n_nodes} " in text
    assert f"--rdzv-endpoint {host}:29500" in text
    # By the name that it was given: this machine's own address for it is often loopback's.
    assert f"--local-addr {host} --rdzv-conf is_host=true" in text
    assert "--standalone" not in text
    assert f"for {n_nodes} machines with {per_node} ranks each" in readme
    for loopback in ("localhost", "127.0.0.1"):
        beside = captured(["bash", script], env={**env, "MASTER_ADDR": loopback}).stdout
        # All nodes are this machine, and cannot all serve: torchrun lets the first one.
        assert "is_host" not in beside
        assert f"--rdzv-endpoint {loopback}:29500 --local-addr {loopback}" in beside
    alone = captured(["bash", script], env=env)
    assert alone.returncode != 0
    assert "MASTER_ADDR: name one of the 2 machines" in alone.stderr
    lost = captured(["bash", script], env={**env, "MASTER_ADDR": "no.invalid"})
    assert lost.returncode != 0
    assert "MASTER_ADDR=no.invalid" in lost.stderr
    assert "Traceback" not in lost.stderr


def test_what_compiles_at_first_is_said_unless_a_folder_of_built_extensions_is_named(tmp_path):
    out = export(tmp_path, micro_batch=2)
    assert "TORCH_EXTENSIONS_DIR" in (out / "README.md").read_text()
    shows = '[[ $4 = folder ]] && { echo "$BUILT"; exit; }; echo "[$TORCH_EXTENSIONS_DIR] $PATH"'
    stand_in(tmp_path, "python", shows)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "python")}
    for variables, used in (
        ({}, ""),
        ({"BUILT": "/gone"}, ""),
        ({"BUILT": str(out)}, f"[{out}] {tmp_path}:"),
        ({"BUILT": str(out), "TORCH_EXTENSIONS_DIR": "/built"}, "[/built]"),
    ):
        done = captured(["bash", out / "launch.sh"], env={**env, **variables})
        assert done.returncode == 0
        assert done.stdout.startswith(used or "[] ")
        assert ("compiles DeepSpeed's extensions" in done.stderr) is (not used)


def test_the_script_is_that_of_the_trials(tmp_path):
    out = export(tmp_path, job=tiny_job(tmp_path, **ADAPTED), zero__stage=3, micro_batch=2)
    for name in ("train.py", "lengths.py"):
        assert (out / name).read_text() == (SCRIPTS / name).read_text()


def test_a_pipeline_is_handed_out_with_its_transformer(tmp_path):
    out = export(tmp_path, pp=2, zero__stage=1, micro_batch=2, recompute="every_2")
    source = SCRIPTS / "transformer.py"
    assert (out / "transformer.py").read_text() == source.read_text()
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - set(sys.stdlib_module_names) == {"torch", "deepspeed"}
    config = json.loads((out / "ds_config.json").read_text())
    assert config["pipeline"] == {"activation_checkpoint_interval": 2, "use_reentrant": False}
    assert "tensor_parallel" not in config
    assert json.loads((out / "settings.json").read_text())["transformer"]["n_layers"] == 3
    assert "cut into 2 stages" in (out / "README.md").read_text()


def test_the_readme_says_what_tensor_parallelism_changes(tmp_path):
    text = (export(tmp_path, tp=2, micro_batch=2) / "README.md").read_text()
    assert "2 * 4 * 1 = 8 samples" in text
    assert "count 2 times too many" in text


@pytest.mark.parametrize(
    "script",
    ["benchmarks/plain_training.py", *(f"autotune/trial/scripts/{n}" for n in SCRIPT_FILES)],
)
def test_plain_training_imports_nothing_of_ours(script):
    tree = ast.parse((REPOSITORY / script).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert imports
    assert not [n for n in imports if "autotune" in ast.unparse(n)]


def test_an_unknown_dialect_is_answered_with_the_menu(tmp_path):
    with pytest.raises(JobError, match="no such dialect") as caught:
        export(tmp_path, to="fairscale")
    # Those that write another engine's configurations are no answer.
    assert caught.value.hint.endswith("hf, lightning, llama-factory, ms-swift, trl")
    with pytest.raises(
        RenderError, match="a configuration of deepspeed cannot be written in that form"
    ):
        export(tmp_path, to="megatron")


def test_an_unknown_launcher_is_answered_with_the_menu(tmp_path):
    with pytest.raises(JobError, match="no such launcher") as caught:
        export(tmp_path, launcher="horse")
    assert "torchrun" in caught.value.hint


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RenderError, match="cannot be written"):
        export(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_a_folder_that_another_has_prepared_gets_no_export(tmp_path):
    folder = tmp_path / "open" / "out"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    os.chown(folder, 12_345, 12_345)
    with pytest.raises(RenderError, match="belongs to user 12345") as caught:
        write_export(folder, {"run.sh": ""}, marker={})
    assert caught.value.hint
    assert not list(folder.iterdir())


def test_an_export_that_finds_no_room_leaves_no_empty_folder(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(RenderError, match="No space left on device"):
        export(tmp_path)
    assert not (tmp_path / "out").exists()
    with pytest.raises(RenderError):
        write_export(tmp_path / "a" / "b", {"run.sh": ""}, marker={})
    assert not (tmp_path / "a").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(RenderError):
        export(tmp_path)
    assert (tmp_path / "out").exists(), "it was there before"


@pytest.mark.parametrize(
    "to", ["accelerate", "axolotl", "hf", "lightning", "llama-factory", "ms-swift", "trl"]
)
def test_figures_are_handed_out_in_every_dialect(tmp_path, to):
    out = export(tmp_path, to=to, zero__stage=2)
    assert json.loads((out / "figures.json").read_text())["figures"]["samples_per_s"] == 12.34
    assert "`figures.json`" in (out / "README.md").read_text()
    out = export(tmp_path, measured={}, to=to, zero__stage=2)
    assert "`figures.json`" not in (out / "README.md").read_text()


def test_files_of_somebody_else_are_not_written_over(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("my own")
    with pytest.raises(RenderError, match=r"out: holds README.md, which no earlier export wrote"):
        export(tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["README.md"]
    (tmp_path / "out" / "README.md").unlink()
    export(tmp_path)
    export(tmp_path, zero__stage=2)


def test_no_dialect_writes_over_files_of_somebody_else(tmp_path):
    """Whatever its files are called: what says that a folder is ours is no file of a dialect's."""
    (tmp_path / "config.yaml").write_text("my own")
    with pytest.raises(RenderError, match=r"holds config.yaml, which no earlier ex") as caught:
        write_export(tmp_path, {"config.yaml": "ours", "run.sh": ""}, marker={"dialect": "other"})
    assert "name a new folder" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "my own"


def test_every_export_says_what_wrote_it(tmp_path):
    out = export(tmp_path)
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    marker = json.loads((out / MARKER_FILE).read_text())
    assert marker.pop("files").keys() == written - {MARKER_FILE}
    assert marker == {
        **{"schema_version": 1, "dialect": "deepspeed", "launcher": "torchrun"},
        **{"engine": "deepspeed", "study": None, "trial": 7},
    }


def test_a_folder_without_the_marker_is_somebody_else_s(tmp_path):
    (export(tmp_path) / MARKER_FILE).unlink()
    with pytest.raises(RenderError, match="which no earlier export wrote"):
        export(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize(
    ("knobs", "changes"),
    [
        pytest.param(
            {"zero__stage": 3, "micro_batch": 2, "recompute": "every_2"}, {}, marks=THOROUGH
        ),
        pytest.param({"zero__stage": 1, "tp": 2, "micro_batch": 2}, {}, marks=THOROUGH),
        ({"zero__stage": 1, "pp": 2, "micro_batch": 2, "recompute": "full"}, {}),
        pytest.param({"zero__stage": 3, "micro_batch": 2}, ADAPTED, marks=THOROUGH),
    ],
    ids=["stage3", "tp2", "pp2", "adapters"],
)
def test_the_folder_trains_as_it_is(tmp_path, knobs, changes):
    out = export(tmp_path, job=tiny_job(tmp_path, **changes), **knobs)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = captured(
        ["bash", out / "launch.sh", "--steps", "2"],
        cwd=tmp_path,
        env={**clean, **extensions_environment("cpu"), "PYTHON": sys.executable},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == 2
    losses = [float(line.split()[3]) for line in steps]
    assert all(4 < loss < 8 for loss in losses)  # ln 256 = 5.5: random tokens, untrained


def test_words_of_a_users_own_run_stay_as_they_are_for_the_user_alone(tmp_path):
    files = {"args.yaml": "hub_token: hf_Zq7xV2mK9pLwZq7x\n", "launch.sh": "train --token x\n"}
    write_export(tmp_path / "own", files, marker={}, is_private=True)
    write_export(tmp_path / "other", files, marker={})

    for name, text in files.items():
        assert (tmp_path / "own" / name).read_text() == text
        assert (tmp_path / "own" / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "other" / "args.yaml").read_text() == "hub_token: ***\n"


def test_an_export_that_was_cut_short_is_replaced_by_the_next(tmp_path, monkeypatch):
    write_text, written = door.write_text, []

    def killed_at_the_second(path, *args, **kwargs):
        written.append(path.name)
        if len(written) == 2:
            raise KeyboardInterrupt
        write_text(path, *args, **kwargs)

    monkeypatch.setattr(door, "write_text", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path, micro_batch=2)
    monkeypatch.undo()
    assert (export(tmp_path, micro_batch=2) / "launch.sh").exists()


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_a_link_in_an_export_is_replaced_and_what_it_leads_to_stays(tmp_path, target):
    (tmp_path / "there").write_text("precious")
    out = tmp_path / "out"
    write_export(out, {"run.sh": "old"}, marker={"dialect": "other"})
    (out / "run.sh").unlink()
    (out / "run.sh").symlink_to(tmp_path / target)
    write_export(out, {"run.sh": "new"}, marker={"dialect": "other"})
    assert not (out / "run.sh").is_symlink()
    assert (out / "run.sh").read_text() == "new"
    assert os.access(out / "run.sh", os.X_OK)
    assert (tmp_path / "there").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_a_link_of_somebody_elses_is_not_taken_for_a_free_name(tmp_path, target):
    (tmp_path / "there").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.sh").symlink_to(tmp_path / target)
    with pytest.raises(RenderError, match=r"holds run\.sh, which no earlier export wrote"):
        write_export(out, {"run.sh": "ours"}, marker={"dialect": "other"})
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("to", ["deepspeed", "accelerate"])
def test_the_readme_lists_what_the_environment_of_ranks_has(tmp_path, to):
    for folder, allocator in ((tmp_path / "keep", "keep"), (tmp_path / "default", "default")):
        folder.mkdir()
        readme = (export(folder, to=to, host_allocator=allocator) / "README.md").read_text()
        assert ("| `MALLOC_MMAP_MAX_` | `0` |" in readme) == (allocator == "keep")
