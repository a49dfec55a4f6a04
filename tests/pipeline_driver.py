"""Trains pipelines one after the other in one set of ranks (see `tests.rank_driver`).

A case is a trial's spec and its ds_config; the answer holds the loss and the gradient's norm of
every step, and the read-back.
"""

import copy
from typing import Any

import deepspeed
import torch

from autotune.contract import TrialSpec
from autotune.trial.engines.base import differences
from autotune.trial.prebuilt import preload
from autotune.trial.readback import read_back
from autotune.trial.scripts.train import Settings, batches, make_engine, make_stage
from tests.rank_driver import main
from tests.trials import settings


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train one case for its number of steps."""
    spec, ds_config = TrialSpec.from_dict(case["spec"]), case["ds_config"]
    preload(ds_config, spec.workload.model)
    told = settings(spec, ds_config, own=case["own"])
    engine = own_engine(told, ds_config) if case["own"] else make_engine(told, ds_config)
    norms: list[float] = []
    take_step = engine._take_model_step

    def noting_step(*args: Any, **kwargs: Any) -> Any:
        ours = norm_of(engine) if case["own"] else 0.0
        done = take_step(*args, **kwargs)
        theirs = engine.get_global_grad_norm()  # none of plain torch's optimizers
        norms.append(ours if theirs is None else float(theirs))
        return done

    engine._take_model_step = noting_step
    try:
        losses = [
            train_step(engine, spec, data) for data in [batches(told, engine)] * case["steps"]
        ]
        found = read_back(engine, spec.engine.expected)
        return {
            "losses": losses,
            "norms": norms,
            "read_back": found,
            "differences": differences(spec.engine.expected, found),
        }
    finally:
        engine.destroy()


def own_engine(told: Settings, ds_config: dict[str, Any]) -> Any:
    """The pipeline's transformer, also with one stage, which a trial leaves to Hugging Face."""
    model = make_stage(told)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=copy.deepcopy(ds_config)
    )
    return engine


def train_step(engine: Any, spec: TrialSpec, data: Any) -> float:
    """One optimizer step; its loss, for a pipeline the mean over all replicas."""
    if hasattr(engine, "train_batch"):
        return float(
            engine.train_batch(data_iter=((batch["input_ids"], batch["labels"]) for batch in data))
        )
    total = 0.0
    for _ in range(spec.layout.grad_accum):
        loss = engine(**next(data)).loss
        engine.backward(loss)
        engine.step()
        total += loss.item() / spec.layout.grad_accum
    return total


def norm_of(engine: Any) -> float:
    """The norm of the whole model's gradient, every element counted once."""
    total = torch.zeros(())
    is_first = engine.grid.get_slice_parallel_rank() == 0
    for parameter in engine.module.parameters():
        is_split = getattr(parameter, "tensor_model_parallel", False)
        is_copy = getattr(parameter, "ds_pipe_replicated", False)
        if parameter.grad is not None and not is_copy and (is_split or is_first):
            total += parameter.grad.float().pow(2).sum().cpu()
    torch.distributed.all_reduce(total, group=engine.grid.get_model_parallel_group())
    return float(total.sqrt())


if __name__ == "__main__":
    main(run, within_s=270)
