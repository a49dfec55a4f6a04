"""Exports of users' own commands: the program of each reads its edited file, and trains by it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.yaml_file import dump_yaml
from tests.examples.environments import EXAMPLES, MATERIAL, activated, python_of
from tests.export.dialects.test_command import exported, handed_out
from tests.export.dialects.test_consumers import losses_of, needs

SCRIPTS = Path(__file__).parent / "scripts"
STAGE_2: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": False},
}
ARRIVED: dict[str, Any] = {
    **STAGE_2,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
}


def an_example(name: str, folder: Path, file: str, **more: Any) -> Path:
    """A copy of an example whose file asks for two steps, each with its loss."""
    where = folder / name
    shutil.copytree(EXAMPLES / name, where, ignore=shutil.ignore_patterns(MATERIAL))
    fields = yaml.safe_load((where / file).read_text())
    fields |= {"max_steps": 2, "logging_steps": 1, "output_dir": "trained", **more}
    (where / file).write_text(dump_yaml(fields))
    return where


def tuned(where: Path, command: str, framework: str, **description: Any) -> Path:
    """An export of the command in its framework's own form, with stage 1 and 8 samples a pass."""
    described = {"config_written": STAGE_2, "config": ARRIVED, **description}
    handout = handed_out(where, command, framework, **described)
    return exported(handout, where, framework)


def check_losses(losses: list[float]) -> None:
    assert len(losses) == 2
    assert all(1 < loss < 12 for loss in losses), "random weights"


@pytest.mark.real
@needs("trl")
def test_trl_trains_by_the_user_s_file_with_the_edits(tmp_path: Path) -> None:
    where = an_example("trl", tmp_path, "sft.yaml", eval_strategy="no", save_strategy="no")
    command = "accelerate launch --config_file accelerate.yaml train.py --config sft.yaml"
    out = tuned(where, command, "trl", parses_arguments=True)
    assert yaml.safe_load((out / "sft.yaml").read_text())["per_device_train_batch_size"] == 8
    check_losses(losses_of(out))


@pytest.mark.thorough
@pytest.mark.real
@needs("lightning")
def test_lightning_takes_a_file_without_the_accumulation(tmp_path: Path) -> None:
    """Its own Trainer holds that, and it refuses two."""
    shutil.copy(SCRIPTS / "lightning_train.py", tmp_path / "train.py")
    written = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(written))
    out = tuned(
        tmp_path,
        "python train.py --config ds.json",
        "lightning",
        config_written=written,
        config={**written, "gradient_accumulation_steps": 2},
        config_file=str(tmp_path / "ds.json"),
    )
    assert "gradient_accumulation_steps" not in json.loads((out / "ds_config.json").read_text())
    assert len(losses_of(out)) == 2


@pytest.mark.real
@pytest.mark.consumer
@pytest.mark.parametrize(
    ("name", "framework", "command", "more", "batch"),
    [
        (
            *("llama_factory", "llama-factory", "llamafactory-cli train train.yaml"),
            *({"save_strategy": "no"}, "per_device_train_batch_size"),
        ),
        (
            *("axolotl", "axolotl"),
            "axolotl train train.yaml --launcher torchrun -- --nproc-per-node 2",
            *({"saves_per_epoch": None, "save_strategy": "no"}, "micro_batch_size"),
        ),
    ],
    ids=["llama_factory", "axolotl"],
)
def test_a_program_trains_by_the_user_s_file_with_the_edits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    framework: str,
    command: str,
    more: dict[str, Any],
    batch: str,
) -> None:
    python = python_of(f"AUTOTUNE_{name.upper()}")
    where = an_example(name, tmp_path, "train.yaml", **more)
    lent = {**os.environ, **activated(Path(python)), "PYTHONPATH": ""}
    made = [python, EXAMPLES / "prepare.py", where / MATERIAL]
    subprocess.run(made, check=True, env=lent, capture_output=True)
    out = tuned(where, command, framework)
    (path,) = out.glob("*.yaml")
    assert yaml.safe_load(path.read_text())[batch] == 8
    for variable, value in {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    check_losses(losses_of(out, python=python))
