"""Trains pipelines one after the other in one set of ranks, and says what came of each.

Started under torchrun: `pipeline_driver.py CASES.json OUT.json`. A case is a trial's spec and its
ds_config; the answer holds the loss and the gradient's norm of every step, and the read-back.
"""

import copy
import gc
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import logger

from autotune.contract import TrialSpec
from autotune.fleet.node.ports import remove_segments
from autotune.trial.engines.base import differences
from autotune.trial.imports import preload
from autotune.trial.prebuilt import load_as_built, reuse_cpu_info
from autotune.trial.readback import read_back
from autotune.trial.scripts.train import Settings, batches, make_engine, make_stage
from tests.deepspeed_state import clean_globals
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


def main() -> None:
    """Run every case; an exception is part of the answer."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    logger.setLevel(logging.ERROR)
    reuse_cpu_info()
    load_as_built()
    deepspeed.init_distributed()
    gc.freeze()
    results = []
    for case in cases:
        start = time.perf_counter()
        try:
            with clean_globals():
                results.append(run(case))
        except Exception:
            results.append({"error": traceback.format_exc()})
        gc.collect()
        results[-1]["s"] = time.perf_counter() - start
    everybodys: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everybodys, results)
    if torch.distributed.get_rank() == 0:
        remove_segments(int(os.environ["MASTER_PORT"]), os.environ["MASTER_ADDR"])
        answers = [list(ranks) for ranks in zip(*everybodys, strict=True)]
        Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
    # After a good run, destructors of process groups and their threads can still crash.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
