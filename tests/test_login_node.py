"""What runs no trial works where torch, and all that trains, is not installed."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autotune.base.errors import ExitCode
from autotune.space.built_in import script_digest
from tests.cases import data_beside
from tests.command_line import autotune

DATA = data_beside(__file__)

REPOSITORY = Path(__file__).resolve().parents[1]
LOGIN = REPOSITORY / "requirements-login.txt"
STUDY = REPOSITORY / "results" / "recorded" / "studies" / "demo.json"
TRAINS = {"deepspeed", "ninja", "setuptools", "torch", "transformers"}
"""Packages that trials alone need."""
LACKING = DATA["LACKING"]
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
        if not is_wanted or (name := canonicalize_name(requirement.name)) in known:
            continue
        known.add(name)
        found = importlib.metadata.distribution(requirement.name)
        yield found
        waiting += found.requires or ()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this checkout and links to what requirements-login.txt installs."""
    home = tmp_path_factory.mktemp("login") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for found in installed_with(_NEEDS):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(found.locate_file(top))
    # Its folder of metadata, which no public name leads to where it is installed in place.
    about = next(iter(importlib.metadata.distributions(name="autotune")))._path
    (site / about.name).symlink_to(about)
    (site / "checkout.pth").write_text(str(REPOSITORY), encoding="utf-8")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded study, as of this release, and files to check."""
    made = tmp_path_factory.mktemp("work")
    files = json.loads(STUDY.read_text(encoding="utf-8"))["files"]
    then = json.loads(files["trials/0000/spec.json"])["workload"]["digest"]
    for name, text in files.items():
        path = made / "results" / "demo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(then, script_digest()), encoding="utf-8")
    shutil.copytree(made / "results" / "demo", made / "results" / "again")
    for name, text in {
        "ds_config.json": (
            '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, '
            '"zero_optimization": {"stage": 2}}\n'
        ),
        "job.yaml": "model: gpt2\nseq_len: 1k\nglobal_batch: 64\nworld: 8\n",
        "other.json": '{"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1}\n',
        "accelerate.yaml": (
            "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
        ),
        "train.sh": "deepspeed --num_gpus 8 train.py --deepspeed ds_config.json --bf16\n",
        "launch.sh": (
            "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
            "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
            "--micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 10\n"
        ),
    }.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


@pytest.mark.cases("line", "expected")
def test_what_runs_no_trial_works(line: str, expected: str, python: Path, folder: Path) -> None:
    done = autotune(*shlex.split(line), folder=folder, python=python)
    assert done.returncode == ExitCode.FOUND, done.stderr
    assert expected in done.stdout + done.stderr


@pytest.mark.cases("line", "expected")
def test_what_is_missing_for_a_trial_is_named(line, expected, python, folder) -> None:
    (folder / "train.py").write_text("print(1)\n", encoding="utf-8")
    done = autotune(*shlex.split(line), folder=folder, python=python)
    assert done.returncode == ExitCode.FLEET_UNAVAILABLE, done.stderr
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if expected == LACKING:
        install = re.search(r"fix: pip install ([^;]*);", done.stderr)
        assert install is not None
        assert {*install[1].split()} == TRAINS


def test_hjson_is_read_with_a_package_of_deepspeed_s(python: Path, folder: Path) -> None:
    (folder / "ds.hjson").write_text("{\n  # ours\n  zero_optimization: {stage: 2}\n}\n")
    done = autotune("check", "ds.hjson", folder=folder, python=python)
    assert "pip install hjson" in done.stderr


@pytest.mark.parametrize(
    ("model", "package"), [("other.json", "torch"), ("gpt2 --lora-rank 8", "peft")]
)
def test_a_model_that_has_to_be_built_names_its_package(model, package, python, folder) -> None:
    line = f"plan --model {model} --seq-len 64 --global-batch 8 --world 8 --gpu H100"
    done = autotune(*shlex.split(line), folder=folder, python=python)
    assert done.returncode == ExitCode.INVALID_INPUT
    assert f"pip install {package}" in done.stderr


def test_python_plans_without_torch(python: Path, folder: Path) -> None:
    code = (
        "import autotune, sys; found = autotune.plan(model='llama-3.1-8b', seq_len='8k', "
        "global_batch=64, world=8, gpu='H100', space='smoke'); assert found.best; "
        "assert autotune.plan(model='llama-3.1-8b', lora_rank=8, gpu='H100', seq_len=64, world=8, "
        "global_batch=8, space='smoke').best; "
        "assert autotune.check('ds_config.json').passes; "
        "assert len(autotune.load('demo')); "
        "sys.exit('torch' in sys.modules)"
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-c", code], cwd=folder, env=variables, check=True)
