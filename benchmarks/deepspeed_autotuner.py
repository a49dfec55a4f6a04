"""DeepSpeed's own autotuner on an exported job: what it does, how long it takes, what it chooses.

Its clean-up runs `pdsh -w HOST pkill -f NAME`, which ends whatever on the machine has an
experiment's name on its command line. Here it finds a `pdsh` that does nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.search.session import Session

SCRIPT = Path(__file__).with_name("autotuned_training.py")
STAGES = [0, 1, 2, 3]
_LAST_LINES = 8
_KEPT_KEYS = ("optimizer", "bf16", "fp16", "gradient_clipping", "communication_data_type")
"""Of the export's configuration: what the user's file would say. The rest is to be tuned."""
_PDSH = "#!/bin/sh\nexit 0\n"


@dataclass(frozen=True, kw_only=True)
class Autotuned:
    """How a run of the autotuner ended."""

    outcome: str
    """`chose`, `chose nothing`, `failed`, `out of time` or `left out`."""
    why: str = ""
    """Of what was left out."""
    seconds: float = 0.0
    returncode: int | None = None
    experiments: tuple[dict[str, Any], ...] = ()
    """Name, the samples/s that it counted or null; then the last line of stderr as well."""
    chosen_by: str = ""
    """`autotuner`, or `its fastest experiment` where it wrote no choice."""
    stage: int | None = None
    micro_batch: int | None = None
    last_lines: tuple[str, ...] = ()


def missing() -> str:
    """What has to be installed for it; empty: nothing."""
    if find_spec("tabulate") is None:
        return "tabulate is not installed: pip install 'deepspeed[autotuning]'"
    if launcher() is None:
        return "the command `deepspeed` is not found beside this Python"
    return ""


def launcher() -> str | None:
    """The command `deepspeed` of this environment."""
    beside = Path(sys.executable).with_name("deepspeed")
    return str(beside) if beside.exists() else shutil.which("deepspeed")


def tune(session: Session, exported: Path, folder: Path, *, limit_s: float) -> Autotuned:
    """Run the autotuner.

    Args:
        session: The job.
        exported: A candidate of it, exported: the model and the loop are taken from there.
        folder: Where its files go; what is there is deleted.
        limit_s: After which it is ended.
    """
    if why := missing():
        return Autotuned(outcome="left out", why=why)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "ds_config.json"
    config.write_text(json.dumps(user_config(session, exported, folder), indent=2))
    command = [str(launcher()), "--autotuning", "tune", "--num_gpus", str(session.job.world)]
    command += [str(SCRIPT), "--export", str(exported.resolve()), "--deepspeed"]
    command += ["--deepspeed_config", str(config)]
    log = folder / "log.txt"
    began = time.monotonic()
    returncode = run(command, environment(session, folder), log, folder, limit_s=limit_s)
    seconds = time.monotonic() - began
    return judged(folder, returncode, seconds, log.read_text(encoding="utf-8", errors="replace"))


def user_config(session: Session, exported: Path, folder: Path) -> dict[str, Any]:
    """What a user would hand to the autotuner: the job, and nothing of how to run it."""
    exported_config = json.loads((exported / "ds_config.json").read_text(encoding="utf-8"))
    return {
        **{key: exported_config[key] for key in _KEPT_KEYS if key in exported_config},
        "zero_optimization": {"stage": STAGES},
        "autotuning": {
            "enabled": True,
            "results_dir": str(folder / "results"),
            "exps_dir": str(folder / "exps"),
            "max_train_batch_size": session.job.global_batch,
        },
    }


def environment(session: Session, folder: Path) -> dict[str, str]:
    """As the exports' launch.sh has it, with a harmless `pdsh` before all others."""
    tools = folder / "bin"
    tools.mkdir()
    pdsh = tools / "pdsh"
    pdsh.write_text(_PDSH)
    pdsh.chmod(0o755)
    own = Path(sys.executable).parent
    return {
        **os.environ,
        **extensions_environment(session.environment.accelerator),
        "DS_ACCELERATOR": session.environment.accelerator,
        "LOCAL_SIZE": str(session.job.world),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{tools}:{own}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{SCRIPT.parent}:{os.environ.get('PYTHONPATH', '')}",
    }


def run(
    command: list[str], variables: dict[str, str], log: Path, folder: Path, *, limit_s: float
) -> int | None:
    """Run a command with its output in a file; None: it was ended after `limit_s`."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=variables, stdout=out, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    for each in started:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    if process.poll() is None:
        process.kill()
    process.wait()


def judged(folder: Path, returncode: int | None, seconds: float, log: str) -> Autotuned:
    """What the files of a run say."""
    found = experiments(folder / "results")
    optimal = folder / "results" / "ds_config_optimal.json"
    chosen_by, config = "", None
    if optimal.exists():
        chosen_by, config = "autotuner", json.loads(optimal.read_text(encoding="utf-8"))
    elif ran := [each for each in found if each["samples_per_s"]]:
        best = max(ran, key=lambda each: float(each["samples_per_s"]))
        chosen_by = "its fastest experiment"
        config = json.loads(
            (folder / "results" / best["name"] / "ds_config.json").read_text(encoding="utf-8")
        )
    outcome = "out of time" if returncode is None else "failed" if returncode else "chose nothing"
    if chosen_by == "autotuner" and not returncode:
        outcome = "chose"
    lines = [line for line in log.replace("\r", "\n").splitlines() if line.strip()]
    return Autotuned(
        outcome=outcome,
        seconds=seconds,
        returncode=returncode,
        experiments=tuple(found),
        chosen_by=chosen_by,
        stage=None if config is None else int(config["zero_optimization"]["stage"]),
        micro_batch=None if config is None else int(config["train_micro_batch_size_per_gpu"]),
        last_lines=tuple(lines[-_LAST_LINES:]),
    )


def experiments(results: Path) -> list[dict[str, Any]]:
    """Every experiment that left a folder, in the order in which they ran."""
    if not results.is_dir():
        return []
    folders = sorted(
        (path for path in results.iterdir() if path.is_dir()), key=lambda p: p.stat().st_ctime
    )
    return [experiment(folder) for folder in folders]


def experiment(folder: Path) -> dict[str, Any]:
    """What one experiment left."""
    metrics, stderr = folder / "metrics.json", folder / "stderr.log"
    counted = None
    if metrics.exists():
        try:
            counted = json.loads(metrics.read_text(encoding="utf-8")).get("throughput")
        except (ValueError, AttributeError):
            counted = None
    said = ""
    if counted is None and stderr.exists():
        lines = stderr.read_text(encoding="utf-8", errors="replace").splitlines()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return {"name": folder.name, "samples_per_s": counted, "said": said}
