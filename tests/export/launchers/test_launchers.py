"""What launchers start: with stand-ins for the clusters' own commands, and what no pair can do."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import RenderError
from autotune.base.plugins import load_plugin, plugin_names
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.export.base import Dialect, NodeLauncher
from autotune.export.dialects.settings import FIELDS_FILE
from autotune.export.door import can_start
from tests.captured import captured, stand_in
from tests.clusters.slurm import needs_slurm, slurm_cluster
from tests.export.dialects.test_consumers import losses_of
from tests.export.handed import GPUS, export, handed
from tests.jobs import CPU

TWO_NODES = {"world": 16, "global_batch": 32}


def dialects() -> dict[str, Dialect]:
    found = {name: load_plugin("dialect", name) for name in plugin_names("dialect")}
    return {
        name: dialect
        for name, dialect in found.items()
        if isinstance(dialect, Dialect) and "deepspeed" in dialect.engines
    }


def test_every_pair_is_written_or_refused_with_those_that_can(tmp_path):
    """Nothing in between: a script that its launcher does not start is never handed out."""
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    launchers = [name for name in plugin_names("launcher") if not name.startswith("toy-")]
    assert len(launchers) == 7
    refused = set()
    started = {to: dialect for to, dialect in dialects().items() if dialect.launcher}
    for to, dialect in started.items():
        for launcher in launchers:
            folder = tmp_path / f"{to}.{launcher}"
            if can_start(dialect, launcher):
                out = export(handout, folder, to, launcher)
                text = (out / "launch.sh").read_text()
                assert "train.py" in text
                subprocess.run(["bash", "-n", out / "launch.sh"], check=True)
                marker = json.loads((out / "autotune_export.json").read_text())
                assert (marker["dialect"], marker["launcher"]) == (to, launcher)
                continue
            with pytest.raises(RenderError, match="read by `accelerate launch` alone") as caught:
                export(handout, folder, to, launcher)
            fits = "accelerate, kubernetes, ray, skypilot, slurm"
            assert caught.value.hint == f"leave --launcher out, or name one of: {fits}"
            refused.add((to, launcher))
    assert refused == {("accelerate", "torchrun"), ("accelerate", "deepspeed")}


def test_a_consumer_that_starts_its_own_ranks_takes_no_launcher(tmp_path):
    handout = handed(tmp_path, environment=GPUS, micro_batch=2)
    out = export(handout, tmp_path / "alone", "ms-swift")
    assert json.loads((out / "autotune_export.json").read_text())["launcher"] is None
    for launcher in ("torchrun", "slurm"):
        with pytest.raises(RenderError, match="ms-swift starts its ranks by itself") as caught:
            export(handout, tmp_path / launcher, "ms-swift", launcher)
        assert caught.value.hint == "leave --launcher out"


def test_what_starts_nodes_starts_the_ranks_as_the_dialect_wants(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    (tmp_path / "a").mkdir()
    by_accelerate = export(handout, tmp_path / "a", "accelerate", "slurm")
    assert "accelerate.commands.launch" in (by_accelerate / "launch.sh").read_text()
    assert (by_accelerate / "accelerate.yaml").exists()
    (tmp_path / "b").mkdir()
    by_torchrun = export(handout, tmp_path / "b", "hf", "slurm")
    assert "torch.distributed.run" in (by_torchrun / "launch.sh").read_text()


def printed(command: list[str | Path], folder: Path, **variables: str) -> str:
    """What a script does with stand-ins before all other commands."""
    # Tests of DeepSpeed in this process leave an address and a port.
    variables_here = {
        name: value for name, value in os.environ.items() if not name.startswith("MASTER_")
    }
    done = captured(
        command,
        cwd=folder,
        env={**variables_here, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_accelerate_is_told_where_the_others_are(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    out = export(handout, tmp_path, "accelerate")
    (out / "bin").mkdir()
    stand_in(out / "bin", "python", f'[[ $1 = - ]] && exec {sys.executable} "$@"; echo "$@"')
    variables = {"PYTHON": str(out / "bin" / "python")}
    host = socket.gethostname()
    text = printed(["bash", out / "launch.sh"], out, MASTER_ADDR=host, **variables)
    assert f"--config_file {out}/accelerate.yaml" in text
    assert f"--main_process_ip {host} --main_process_port 29500 --rdzv_conf is_host=true" in text
    # All nodes are this machine, and cannot all serve.
    text = printed(["bash", out / "launch.sh"], out, MASTER_ADDR="localhost", **variables)
    assert "--main_process_ip localhost" in text
    assert "--rdzv_conf" not in text
    config = yaml.safe_load((out / "accelerate.yaml").read_text())
    assert (config["num_machines"], config["num_processes"]) == (2, 16)
    assert config["rdzv_backend"] == "c10d"


def test_a_hostfile_without_names_is_not_started(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    out = export(handout, tmp_path, "deepspeed", "deepspeed")
    (out / "bin").mkdir()
    stand_in(out / "bin", "python", 'cat "$DS_ENV_FILE"; echo "$@"')
    environment = {**os.environ, "PYTHON": str(out / "bin" / "python"), "OMP_NUM_THREADS": "3"}
    done = captured(["bash", out / "launch.sh"], env=environment)
    assert done.returncode == 2
    assert "put the names of your machines" in done.stderr
    named = out / "mine"
    named.write_text((out / "hostfile").read_text().replace("machine-", "node"))
    assert named.read_text().count("slots=8") == 2
    text = printed(["bash", out / "launch.sh"], out, **environment | {"HOSTFILE": str(named)})
    assert "OMP_NUM_THREADS=3" in text
    assert f"--hostfile {named}" in text
    assert "--no_ssh_check" not in text


def test_a_study_of_other_machines_names_them(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    handout = dataclasses.replace(handout, hosts=["worker-1", "me@10.0.0.2"])
    out = export(handout, tmp_path, "deepspeed", "deepspeed")
    lines = (out / "hostfile").read_text().splitlines()[1:]
    assert lines == [
        "# ranks 0 to 7 on worker-1; 8 to 15 on me@10.0.0.2",
        "# data parallel groups of 16 ranks, such as 0 to 15: over 2 places",
        *("worker-1 slots=8", "me@10.0.0.2 slots=8"),
    ]
    assert "#   ranks 0 to 7 on worker-1; 8 to 15" in (out / "launch.sh").read_text()
    assert "`hostfile` names those that it was measured on" in (out / "README.md").read_text()
    (out / "bin").mkdir()
    stand_in(out / "bin", "python", 'echo "$@"')
    text = printed(["bash", out / "launch.sh"], out, PYTHON=str(out / "bin" / "python"))
    assert f"--hostfile {out}/hostfile" in text
    out = export(handout, tmp_path / "ranks", "deepspeed", "torchrun")
    assert "measured on worker-1, me@10.0.0.2." in (out / "README.md").read_text()
    fewer = dataclasses.replace(handout, hosts=["worker-1"])
    out = export(fewer, tmp_path / "fewer", "deepspeed", "deepspeed")
    assert "machine-2 slots=8" in (out / "hostfile").read_text()


SRUN = """
while [[ $1 = --* ]]; do shift; done
for node in 1 2; do "$@"; done
"""


def test_slurm_runs_the_ranks_of_every_node(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    out = export(handout, tmp_path, "hf", "slurm")
    lines = (out / "job.sbatch").read_text().splitlines()
    asked = {line for line in lines if line.startswith("#SBATCH")}
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --exclusive"} <= asked
    (out / "bin").mkdir()
    stand_in(out / "bin", "srun", SRUN)
    stand_in(
        out / "bin",
        "scontrol",
        'if [[ $2 = node ]]; then echo "NodeName=$4 NodeAddr=127.0.0.1 NodeHostName=x"; exit; fi; '
        'printf "${FIRST:-localhost}\\nother\\n"',
    )
    stand_in(out / "bin", "python", f'[[ $1 = - ]] && exec {sys.executable} "$@"; echo "$@"')
    given = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(out)}
    command = ["bash", out / "job.sbatch", "--max_steps", "2"]
    given["PYTHON"] = str(out / "bin" / "python")
    text = printed(command, out, **given)
    assert text.count("--rdzv-endpoint localhost:20007") == 2
    assert text.count("--max_steps 2") == 2
    # A name that Slurm alone knows, and an address that the user knows better.
    text = printed(command, out, FIRST="n0.invalid", **given)
    assert text.count("--rdzv-endpoint 127.0.0.1:20007") == 2
    named = {"MASTER_ADDR": "localhost", "MASTER_PORT": "7000"}
    text = printed(command, out, FIRST="n0.invalid", **named, **given)
    assert text.count("--rdzv-endpoint localhost:7000") == 2
    wrong = captured(
        ["bash", out / "job.sbatch"],
        env={**os.environ, **given, "SLURM_SUBMIT_DIR": str(tmp_path)},
    )
    assert wrong.returncode == 2
    assert "holds no launch.sh" in wrong.stderr


def test_one_of_something_is_not_several(tmp_path):
    one_core = dataclasses.replace(CPU, n_devices=1)
    handout = handed(tmp_path, environment=one_core, micro_batch=1)
    for launcher, words in [
        ("torchrun", "2 machines with 1 rank each"),
        ("slurm", "2 nodes with 1 rank each"),
        ("kubernetes", "2 pods with\n1 core each"),
        ("ray", "2 nodes of the cluster with 1 core each"),
        ("skypilot", "2 nodes with 1 core each"),
    ]:
        (tmp_path / launcher).mkdir()
        readme = (export(handout, tmp_path / launcher, "hf", launcher) / "README.md").read_text()
        assert words in readme
        assert "1 sample per rank" in readme
        assert "on 2 data-parallel ranks" in readme


@pytest.mark.thorough
@pytest.mark.real
@needs_slurm
def test_a_batch_job_of_two_nodes_trains_as_it_is(tmp_path, monkeypatch):
    # Tests of DeepSpeed in this process leave an address and a port.
    for name in ("PYTHONPATH", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**extensions_environment("cpu"), "PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)
    one_core = dataclasses.replace(CPU, n_devices=1)
    handout = handed(tmp_path, environment=one_core, micro_batch=2)
    assert handout.n_nodes == 2
    out = export(handout, tmp_path, "deepspeed", "slurm")
    monkeypatch.chdir(out)
    (tmp_path / "cluster").mkdir()
    # The names of its nodes are known to Slurm alone.
    with slurm_cluster(tmp_path / "cluster", 2) as cluster:
        job = cluster.run("sbatch", "--parsable", "job.sbatch", "--steps", "2")
        try:
            cluster.wait_until(lambda: cluster.jobs() == [], "it has ended", 400)
        except AssertionError as error:
            logs = [log.read_text() for log in out.glob(f"*-{job}.log")]
            raise AssertionError(f"{cluster.state_of(job)}, {logs}") from error
        (log,) = out.glob(f"*-{job}.log")
        logs = log.read_text()
        assert cluster.state_of(job) == "COMPLETED", logs
    steps = [line for line in logs.splitlines() if line.startswith("step ")]
    assert len(steps) == 2, logs
    assert all(4 < float(line.split()[3]) < 8 for line in steps)


def test_a_pod_unpacks_the_export_and_runs_it(tmp_path):
    """What `submit.sh` puts into the cluster is what the container's command starts."""
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    out = export(handout, tmp_path, "hf", "kubernetes")
    (out / "bin").mkdir()
    sent = tmp_path / "kept"
    sent.mkdir()
    stand_in(
        out / "bin",
        "kubectl",
        f'for word in "$@"; do [[ $word = --from-file=* ]] && cp "${{word#*tgz=}}" {sent}/; done; '
        f'if [[ $* = "-n mine create -f -" ]]; then cat >{sent}/job.yaml; fi; true',
    )
    printed(["bash", out / "submit.sh", "registry/image:1", "-n", "mine"], out)
    (packed,) = [path for path in sent.iterdir() if path.name != "job.yaml"]
    job = yaml.safe_load((sent / "job.yaml").read_text())
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["image"] == "registry/image:1"
    (command,) = container["args"]
    place = tmp_path / "pod"
    command = command.replace("/tmp/export", str(place)).replace("/export/export.tgz", str(packed))
    stand_in(out / "bin", "python3", '[[ $1 = - ]] && echo "true own" || echo "$@"')
    text = printed(["bash", "-c", command], out)
    assert f"{place}/train.py" in text
    assert "--nproc-per-node 8" in text


SKYPILOT = json.loads(FIELDS_FILE.read_text())["skypilot"]


@pytest.mark.cases("device", "gib", "name")
def test_skypilot_is_asked_for_the_gpus_by_its_own_names(tmp_path, device, gib, name):
    there = dataclasses.replace(GPUS, device_name=device, device_memory_bytes=int(gib * 2**30))
    out = export(handed(tmp_path, environment=there, micro_batch=2), tmp_path, "hf", "skypilot")
    task = yaml.safe_load((out / "sky.yaml").read_text())
    assert set(task) <= set(SKYPILOT["task"])
    assert set(task["resources"]) <= set(SKYPILOT["resources"])
    assert task["resources"]["accelerators"] == {name: 2}
    assert task["num_nodes"] == 1


def test_every_node_of_skypilot_finds_the_first(tmp_path):
    handout = handed(tmp_path, environment=GPUS, job=TWO_NODES, micro_batch=2)
    out = export(handout, tmp_path, "hf", "skypilot")
    task = yaml.safe_load((out / "sky.yaml").read_text())
    assert (task["num_nodes"], task["workdir"]) == (2, ".")
    (out / "bin").mkdir()
    stand_in(out / "bin", "python", f'[[ $1 = - ]] && exec {sys.executable} "$@"; echo "$@"')
    # SkyPilot runs it in the folder that it copied, with the nodes' addresses a line each.
    text = printed(
        ["bash", "-c", task["run"]],
        out,
        SKYPILOT_NODE_IPS="127.0.0.1\n127.0.0.2",
        PYTHON=str(out / "bin" / "python"),
    )
    assert "--nnodes 2 --nproc-per-node 8" in text
    assert "--rdzv-endpoint 127.0.0.1:29500" in text


@pytest.mark.thorough
@pytest.mark.real
def test_ray_trains(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed here")
    out = export(handed(tmp_path, micro_batch=2), tmp_path, "hf", "ray")
    started = [sys.executable, "-m", "ray.scripts.scripts"]
    subprocess.run(
        [*started, "start", "--head", "--num-cpus=2"],
        env={**os.environ, **extensions_environment("cpu", os.environ)},  # what its ranks inherit
        check=True,
        timeout=300,
    )
    try:
        done = captured(
            [sys.executable, out / "ray_job.py", "--max_steps", "2"],
            env={**os.environ, "PYTHON": sys.executable},
            timeout=900,
        )
    finally:
        subprocess.run([*started, "stop"], check=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (done.stdout + done.stderr).count("'loss'") == 2


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed"])
def test_raw_deepspeed_trains_by_every_launcher_of_ranks(tmp_path, launcher):
    out = export(handed(tmp_path, micro_batch=2, zero__stage=2), tmp_path, "deepspeed", launcher)
    assert len(losses_of(out, "--steps", "2")) == 2


def test_a_launcher_of_nodes_is_none_of_ranks():
    starts_nodes = {
        name
        for name in plugin_names("launcher")
        if isinstance(load_plugin("launcher", name), NodeLauncher)
    }
    assert {"kubernetes", "ray", "skypilot", "slurm"} <= starts_nodes
    assert not starts_nodes & {"accelerate", "deepspeed", "torchrun"}
