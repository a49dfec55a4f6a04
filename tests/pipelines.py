"""Pipelines for tests: cases for `pipeline_driver.py`, and the same training without ranks."""

import json
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from autotune.contract import Role, to_dict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.job.job import Job, make_job
from autotune.search.trial_spec import Run, make_spec
from autotune.trial.scripts.train import _tokens
from autotune.trial.scripts.transformer import Build, Shape, layer_specs, next_token_loss
from autotune.trial.transformer_shape import shape_of
from tests.driven_ranks import train_cases
from tests.jobs import CPU, canonical_candidate

STEPS = 3
TIMEOUT_S = 300
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


class Whole(torch.nn.Module):
    """All layers of a pipeline, one after the other in one process."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.specs = layer_specs(Build(shape=shape, seed=seed))
        built: dict[str, torch.nn.Module] = {}
        for index, spec in enumerate(self.specs):
            key = str(getattr(spec, "key", index))
            built[key] = built[key] if key in built else spec.build()
        self.layers = torch.nn.ModuleDict(built)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens to logits."""
        return reduce(self._step, enumerate(self.specs), tokens)

    def _step(self, x: torch.Tensor, numbered: Any) -> torch.Tensor:
        index, spec = numbered
        layer = self.layers[str(getattr(spec, "key", index))]
        forward = getattr(spec, "forward_fn", None)
        return layer(x) if forward is None else forward(layer, x)


def make_job_for(
    folder: Path,
    *,
    world: int,
    config: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    clipping: float = 0.0,
    precision: str = "fp32",
    global_batch: int = 8,
) -> Job:
    """A job for a tiny model, with SGD unless another optimizer is given."""
    model, base = folder / "config.json", folder / "base.json"
    model.write_text(json.dumps(config or LLAMA))
    base.write_text(json.dumps({"gradient_clipping": clipping}))
    data = {
        "model": str(model),
        "seq_len": 8,
        "global_batch": global_batch,
        "world": world,
        "precision": precision,
        "optimizer": optimizer or {"type": "SGD", "params": {"lr": 0.5}},
        "base_config": str(base),
    }
    return make_job(data, where="test")


def make_case(
    folder: Path,
    *,
    world: int,
    config: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    clipping: float = 0.0,
    precision: str = "fp32",
    global_batch: int = 8,
    steps: int = STEPS,
    own: bool = True,
    **knobs: Any,
) -> dict[str, Any]:
    """A candidate as the driver takes it; `__` in a knob's name stands for a dot.

    With `own` it is the pipeline's transformer also where a trial would take Hugging Face's model.
    """
    job = make_job_for(
        folder,
        world=world,
        config=config,
        optimizer=optimizer,
        clipping=clipping,
        precision=precision,
        global_batch=global_batch,
    )
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, **knobs)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="pipeline",
        number=0,
        job=job,
        engine=engine,
        environment=CPU,
    )
    ds_config = dict(engine.setup(candidate).ds_config)
    ds_config["zero_allow_untested_optimizer"] = True  # SGD
    if own:
        ds_config.pop("tensor_parallel", None)
    return {"spec": to_dict(spec), "ds_config": ds_config, "steps": steps, "own": own}


def run(folder: Path, world: int, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Train the cases one after the other; answers by case and rank."""
    driver = "tests.pipeline_driver"
    return train_cases(driver, cases, folder, world=world, timeout_s=TIMEOUT_S)


def unsplit(case: dict[str, Any]) -> dict[str, list[float]]:
    """The same training with all layers in this process and plain SGD."""
    spec = {**case["spec"]["workload"], **case["spec"]["layout"]}
    config = case["ds_config"]
    model = Whole(Shape(**shape_of(spec["model"], spec["seq_len"])), spec["seed"])
    rate = config["optimizer"]["params"]["lr"]
    clipping = config.get("gradient_clipping", 0.0)
    told = SimpleNamespace(
        seed=spec["seed"], global_batch=spec["global_batch"], source=spec["model"]
    )
    found: dict[str, list[float]] = {"losses": [], "norms": []}
    for step in range(case["steps"]):
        model.zero_grad()
        total = 0.0
        # Every layout trains the samples of a step that their numbers name.
        for number in range(spec["global_batch"]):
            tokens = _tokens(told, step, number, spec["seq_len"]).unsqueeze(0)
            loss = next_token_loss(model(tokens), tokens) / spec["global_batch"]
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clipping or float("inf"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
        found["losses"].append(total)
        found["norms"].append(norm.item())
    return found
