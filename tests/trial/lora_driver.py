"""Trains adapters at one stage after the other in one set of ranks (see `tests.rank_driver`).

Says of each case which parameters were changed, and what the live engine reads back.
"""

from typing import Any

import deepspeed
import torch

from autotune.contract import TrialSpec
from autotune.trial.engines.base import differences
from autotune.trial.readback import read_back
from autotune.trial.scripts.train import add_adapters, batches, make_model
from tests.rank_driver import main
from tests.trials import settings

STEPS = 2


def values_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in module.named_parameters():
        shard = [parameter] if hasattr(parameter, "ds_id") else []
        with deepspeed.zero.GatheredParameters(shard):
            found[name] = parameter.detach().float().clone()
    return found


def run(case: dict[str, Any]) -> dict[str, Any]:
    spec, ds_config = TrialSpec.from_dict(case["spec"]), case["ds_config"]
    torch.manual_seed(spec.workload.seed)
    trained = settings(spec, ds_config)
    model = make_model(trained, ds_config)
    add_adapters(model, spec.workload.model["lora"])
    trainable = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trainable, config=ds_config)
    try:
        before = values_of(engine.module)
        batch, losses = next(batches(trained, engine)), []
        for _ in range(STEPS):
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        after = values_of(engine.module)
        found = read_back(engine, spec.engine.expected)
        return {
            "names": list(after),
            "changed": [name for name in after if not torch.equal(before[name], after[name])],
            "losses": losses,
            "read_back": found,
            "differences": differences(spec.engine.expected, found),
        }
    finally:
        engine.destroy()


if __name__ == "__main__":
    main(run, within_s=180)
