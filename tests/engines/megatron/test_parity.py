"""Mixtures under Megatron's arguments compute what Hugging Face's models compute.

Weights are copied; a loss and a gradient norm have to agree. What would train as another model is
refused before: see test_model_arguments.py.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import TrialSpec, settings_of
from tests.captured import captured
from tests.cases import data_beside
from tests.engines.megatron.trained import MIXTURES, REPOSITORY, case_of, job_for, layouts_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
]
DRIVER = Path(__file__).with_name("parity_driver.py")
WITHIN = 1e-5


def model(preset: str, changes: dict[str, Any], *lacks: str) -> dict[str, Any]:
    """A small model whose weights are large enough to tell; DeepSeek's without further tokens."""
    config = {**MIXTURES[preset], "initializer_range": 0.1}
    if preset == "deepseek-v3":
        config["num_nextn_predict_layers"] = 0
    return {key: value for key, value in {**config, **changes}.items() if key not in lacks}


MODELS = {name: model(*row) for name, row in data_beside(__file__)["MODELS"].items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parity")
    cases = [_case(config, folder / str(n)) for n, config in enumerate(MODELS.values())]
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases))
    done = captured(
        [sys.executable, str(DRIVER), str(asked), str(answered)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(MODELS, json.loads(answered.read_text()), strict=True))


def _case(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    engine, candidate = layouts_of(job_for(folder, config, world=1), micro_batch=1)[0]
    case = case_of(engine, candidate)
    spec = TrialSpec.from_dict(case["spec"])
    settings = settings_of(spec.workload, spec.layout)
    return {"config": config, "arguments": case["arguments"], "settings": settings}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_hugging_faces_model(answers: dict[str, dict[str, Any]], name: str) -> None:
    found = answers[name]
    assert not found["unset"]
    assert found["ours"] == pytest.approx(found["theirs"], rel=WITHIN)
