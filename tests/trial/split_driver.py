"""Trains the same samples split and whole, in one set of ranks (see `tests.rank_driver`).

Says of each case the loss and the norm of the whole gradient of every optimizer step, and what
the live engine reads back.
"""

from typing import Any

import torch
from deepspeed.utils import safe_get_full_grad

from autotune.contract import TrialSpec
from autotune.trial.engines.base import differences
from autotune.trial.readback import read_back
from autotune.trial.scripts.train import batches, gradient_scale, make_engine, micro_step
from tests.rank_driver import main
from tests.trials import settings

STEPS = 2


def norm_of_gradient(module: torch.nn.Module) -> float:
    total, in_parts = 0.0, torch.zeros(1, dtype=torch.float64)
    for parameter in module.parameters():
        gradient = safe_get_full_grad(parameter)
        squares = gradient.double().square().sum()
        is_whole = getattr(parameter, "allreduce", True)
        if is_whole and not getattr(parameter, "tensor_model_parallel", False):
            total += float(squares)
        else:  # each rank has other experts, other rows or columns
            in_parts += squares
    torch.distributed.all_reduce(in_parts)
    return (total + float(in_parts)) ** 0.5


def run(case: dict[str, Any]) -> dict[str, Any]:
    spec, ds_config = TrialSpec.from_dict(case["spec"]), case["ds_config"]
    trained = settings(spec, ds_config)
    engine = make_engine(trained, ds_config)
    scale = case.get("scale") or gradient_scale(ds_config, spec.layout.sp)
    norms: list[float] = []
    step = engine.step

    def seen_step() -> None:
        if engine.is_gradient_accumulation_boundary() and case["norms"]:
            norms.append(norm_of_gradient(engine.module))
        step()

    engine.step = seen_step
    try:
        stream = batches(trained, engine)  # of the same samples, whoever shares them
        losses = []
        for _ in range(STEPS):
            of_step = [
                micro_step(engine, next(stream), scale) for _ in range(spec.layout.grad_accum)
            ]
            loss = torch.stack([loss.detach().float() for loss in of_step]).mean()
            torch.distributed.all_reduce(loss)
            losses.append(loss.item() / spec.layout.world)
        found = read_back(engine, spec.engine.expected)
        return {
            "losses": losses,
            "norms": norms,
            "read_back": found,
            "differences": differences(spec.engine.expected, found),
        }
    finally:
        engine.destroy()


if __name__ == "__main__":
    main(run, within_s=280)
