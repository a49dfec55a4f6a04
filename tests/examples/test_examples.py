"""The page of examples is what `make examples` runs; some need environments of their own."""

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.app.test_own_script_real import observed_in
from tests.examples.environments import EXAMPLES, MATERIAL, ExampleEnvironment, examples, python_of
from tests.examples.run import RECORDS, autotune, in_words, prepare, variables_of

KNOWN = examples()
OF_OTHERS = [
    pytest.param(name, f"AUTOTUNE_{name.upper()}", id=name)
    for name, example in KNOWN.items()
    if not example.is_ours
]


def test_every_example_is_on_the_page() -> None:
    assert set(KNOWN) == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", [name for name, example in KNOWN.items() if not example.is_ours])
def test_an_environment_is_pinned_and_its_torch_is_for_cpus(name: str) -> None:
    text = ExampleEnvironment(name=name, folder=Path("nowhere")).pins()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    assert "torch==2.13.0" in lines  # any other is a download of gigabytes
    assert len({pin.name.lower() for pin in pins}) == len(pins)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_is_of_an_example_and_in_words(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"] == " ".join(KNOWN[path.stem].command)
    assert in_words(record).startswith("ok, a trial starts in ")


@pytest.mark.real
@pytest.mark.consumer
@pytest.mark.parametrize(("name", "variable"), OF_OTHERS)
def test_an_example_of_an_environment_of_its_own_is_observed(tmp_path, name, variable) -> None:
    python = python_of(variable)
    example = KNOWN[name]
    made = ExampleEnvironment(name=name, folder=Path(python).parents[1])
    environment = variables_of(example, made)
    where = prepare(example, made, tmp_path, environment)
    done = autotune("diagnose", example, where, tmp_path / "results", environment)
    assert done.returncode == 0, done.stderr
    script = observed_in(tmp_path / "results")
    assert script.framework == name.replace("_", "-")
    assert (script.micro_batch, script.grad_accum, script.global_batch) == (4, 2, 16)
    assert script.description["recomputed_layers"] == 4
    assert {p.name for p in where.iterdir()} - {p.name for p in example.folder.iterdir()} <= {
        MATERIAL
    }
