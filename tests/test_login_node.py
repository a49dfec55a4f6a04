"""What runs no trial works where torch, and all that trains, is not installed."""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from autotune.base.errors import ExitCode

REPOSITORY = Path(__file__).resolve().parents[1]
LOGIN = REPOSITORY / "requirements-login.txt"
STUDY = REPOSITORY / "results" / "recorded" / "studies" / "demo.json"
TRAINS = {"deepspeed", "ninja", "setuptools", "torch", "transformers"}
"""Packages that trials alone need."""
_NEEDS = [line for line in LOGIN.read_text("utf-8").splitlines() if not line.startswith("#")]


def test_all_that_is_left_out_trains() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    declared = settings["project"]["dependencies"]
    assert {Requirement(line).name for line in declared if line not in _NEEDS} == TRAINS
    assert [line for line in declared if line in _NEEDS] == _NEEDS


def installed_with(names: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """Packages and all that they need, as they are installed here."""
    waiting, known = list(names), set[str]()
    while waiting:
        requirement = Requirement(waiting.pop())
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not is_wanted or requirement.name in known:
            continue
        known.add(requirement.name)
        found = importlib.metadata.distribution(requirement.name)
        yield found
        waiting += found.requires or ()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this checkout and links to what requirements-login.txt installs."""
    home = tmp_path_factory.mktemp("login") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(
        sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    )
    for found in installed_with(_NEEDS):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(found.locate_file(top))
    about = next(iter(importlib.metadata.distributions(name="autotune")))._path  # type: ignore[attr-defined]
    (site / about.name).symlink_to(about)
    (site / "checkout.pth").write_text(str(REPOSITORY), encoding="utf-8")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded study, and files to check."""
    made = tmp_path_factory.mktemp("work")
    for name, text in json.loads(STUDY.read_text(encoding="utf-8")).items():
        path = made / "results" / "demo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (made / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2}\n')
    (made / "job.yaml").write_text("model: gpt2\nseq_len: 1k\nglobal_batch: 64\nworld: 8\n")
    (made / "train.py").write_text(
        "from transformers import TrainingArguments\n"
        "TrainingArguments('out', deepspeed='ds_config.json', bf16=True)\n"
    )
    (made / "accelerate.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
    )
    (made / "launch.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 10\n"
    )
    return made


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )


JOB = "--model meta-llama/Llama-3.1-8B --seq-len 4k --global-batch 64 --world 8"
MIXTURE = "--model qwen3-30b-a3b --seq-len 4k --global-batch 64 --world 16 --gpu H100"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("models qwen3", "qwen3-8b"),
        ("knobs zero.stage", "zero.stage"),
        ("rule batch.product", "train_batch_size"),
        ("check ds_config.json train.py accelerate.yaml launch.sh", "launch.sh"),
        (f"plan {JOB} --gpu H100 --space smoke", "zero.stage"),
        ("plan --job job.yaml --gpu A100-80GB --space smoke", "zero.stage"),
        (f"plan {MIXTURE} --engine megatron --top 1", "ep"),
        (f"explain zero.stage=3 {JOB} --gpu H100", "step time"),
        (f"estimate --set zero.stage=3 {JOB} --gpu H100", "memory"),
        (f"render --set zero.stage=3 {JOB} --gpu H100 --out rendered", "rendered"),
        (f"plan {JOB} --gpu H100 --space smoke --export planned", "planned"),
        ("status", "demo"),
        ("report", "verdict"),
        ("report --html page.html", "page.html"),
        ("report --trial 0", "trial 0"),
        ("compare demo demo", "demo"),
        ("export --out exported", "exported"),
        ("export --to hf --launcher slurm --out exported-hf", "exported-hf"),
        (f"search {JOB} --fleet simulate:8xH100 --space smoke --dry-run", "baseline"),
        (f"search {JOB} --fleet simulate:8xH100 --space smoke --trials 2", "verdict"),
    ],
)
def test_what_runs_no_trial_works(line: str, said: str, python: Path, folder: Path) -> None:
    done = run(python, folder, "-m", "autotune", *shlex.split(line))
    assert done.returncode == ExitCode.FOUND, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"search {JOB}", "torch is not installed: trials need it"),
        (f"search {JOB} --dry-run", "torch is not installed: trials need it"),
        ("search -- torchrun train.py", "torch is not installed: trials need it"),
        ("soak", "torch is not installed: trials need it"),
        ("plan --job job.yaml", "--gpu H100"),
        ("doctor", "pip install 'torch"),
    ],
)
def test_what_is_missing_for_a_trial_is_named(
    line: str, said: str, python: Path, folder: Path
) -> None:
    done = run(python, folder, "-m", "autotune", *shlex.split(line))
    assert done.returncode == ExitCode.FLEET_UNAVAILABLE, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if "trials need it" in said:
        install = re.search(r"fix: pip install (.*)", done.stderr)
        assert install is not None
        assert {*install[1].split()} == TRAINS


def test_python_plans_without_torch(python: Path, folder: Path) -> None:
    code = (
        "import autotune, sys; found = autotune.plan(model='llama-3.1-8b', seq_len='8k', "
        "global_batch=64, world=8, gpu='H100', space='smoke'); assert found.best; "
        "assert autotune.check('ds_config.json').passes; "
        "assert len(autotune.load('demo')); "
        "sys.exit('torch' in sys.modules)"
    )
    done = run(python, folder, "-c", code)
    assert done.returncode == 0, done.stderr
