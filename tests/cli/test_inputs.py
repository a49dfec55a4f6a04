"""A job is named in the same words to every command, in a job file and in Python."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune as api
from autotune.app.session import read_job
from autotune.base.errors import JobError
from autotune.job.job import JobText
from autotune.job.model import load_model, without_address
from autotune.testing import ENVIRONMENT
from tests.command_line import autotune

PLAIN: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "seq_len": 8192,
    "global_batch": 1024,
    "world": 64,
    "gpu": "H100",
    "precision": "bf16",
    "lengths": "packed",
}
AS_PEOPLE_WRITE: dict[str, Any] = {
    **PLAIN,
    "model": "https://huggingface.co/meta-llama/Meta-Llama-3.1-8B-Instruct",
    "seq_len": "8K",
    "global_batch": "1,024",
    "gpu": "h100",
    "precision": "BF16",
    "lengths": "Packed",
}
COMMANDS = {
    "search": "--space smoke --dry-run --fleet simulate --study it --json",
    "plan": "--space smoke --json",
    "explain": "zero.stage=2 --json",
    "estimate": "--set zero.stage=2 --json",
    "render": "--set zero.stage=2 --out made",
}


def outputs(command: str, *words: str, folder: Path) -> str:
    """What a command prints, and what it writes."""
    done = autotune(command, *COMMANDS[command].split(), *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + "".join(
        path.read_text(encoding="utf-8") for path in sorted(folder.glob("made/*.*"))
    )


def flags(keys: dict[str, Any]) -> list[str]:
    return [w for name, value in keys.items() for w in (f"--{name.replace('_', '-')}", f"{value}")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_a_job_as_people_write_it(command: str, tmp_path: Path) -> None:
    expected = outputs(command, *flags(PLAIN), folder=tmp_path)
    in_file = {name: AS_PEOPLE_WRITE[name] for name in ("model", "seq_len", "gpu", "precision")}
    typed = {name: value for name, value in AS_PEOPLE_WRITE.items() if name not in in_file}
    job = tmp_path / "job.yaml"
    job.write_text("".join(f'{name}: "{value}"\n' for name, value in in_file.items()))
    assert outputs(command, "--job", str(job), *flags(typed), folder=tmp_path) == expected


def test_python_reads_it_alike() -> None:
    first, second = (api.estimate("zero.stage=2", **keys) for keys in (PLAIN, AS_PEOPLE_WRITE))
    assert first.as_dict() == second.as_dict()


@pytest.mark.cases("written", "read")
def test_a_count_is_read_as_people_write_it(written: object, read: int) -> None:
    keys = {**PLAIN, "lengths": "fixed", "precision": "BF16", "seq_len": written}
    job, data = read_job(None, keys, ENVIRONMENT)
    assert (job.seq_len, data["seq_len"]) == (read, read)
    assert (job.precision, data["precision"]) == ("bf16", "bf16")


@pytest.mark.parametrize("written", ["8q", "8.5k", "8,19", "8__192", "k", "4M tokens", True])
def test_what_is_no_count_is_refused_with_its_key(written: object) -> None:
    with pytest.raises(JobError, match=r"global-batch: .* is not allowed: should") as caught:
        read_job(None, {**PLAIN, "global_batch": written}, ENVIRONMENT)
    assert "samples per optimizer step" in caught.value.hint


@pytest.mark.cases("written", "preset")
def test_a_model_is_found_by_the_name_that_people_know(written: str, preset: str) -> None:
    found, known = load_model(written), load_model(preset)
    positions = found.shape.configured_positions  # those of a stage of training may be others
    assert found == replace(known, shape=replace(known.shape, configured_positions=positions))


@pytest.mark.cases("address")
def test_a_model_is_found_by_the_address_of_any_of_its_pages(address: str) -> None:
    assert load_model(address) == load_model("qwen3-30b-a3b")


def test_an_address_of_an_old_repository_has_no_owner() -> None:
    assert without_address("https://huggingface.co/gpt2/tree/main") == "gpt2"
    assert without_address("https://example.org/a/b") == "https://example.org/a/b"


def test_another_owner_s_copy_is_told_the_preset() -> None:
    with pytest.raises(JobError, match="no preset has its shape") as caught:
        load_model("somebody/Llama-3.1-8B-Instruct")
    assert "the preset llama-3.1-8b" in caught.value.hint


def test_a_rank_of_adapters_is_named_alike_in_a_file() -> None:
    small = {"model": "tiny-llama", "seq_len": 32, "global_batch": 4, "world": 2}
    text = JobText(Path("job.yaml"), {**small, "precision": "fp32", "lora_rank": 4})
    job, data = read_job(text, {}, ENVIRONMENT)
    assert job.finetune is not None
    assert job.finetune.rank == 4
    assert data["finetune"] == {"method": "lora", "rank": 4}
    overridden, _ = read_job(text, {"lora_rank": 8}, ENVIRONMENT)
    assert overridden.finetune is not None
    assert overridden.finetune.rank == 8


def test_a_job_file_names_the_fleet_of_every_command(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("".join(f"{name}: {value}\n" for name, value in PLAIN.items()))
    done = autotune("plan", "--job", str(job), "--per-node", "4", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "H100" in json.dumps(json.loads(done.stdout))
