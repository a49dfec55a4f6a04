"""Trains many configurations for two steps each in one set of ranks, and reads each back.

Started under torchrun: `reality_driver.py CASES.json OUT.json`. Not a trial: fresh processes per
configuration are what a trial pays for, and what these checks do without.
"""

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
from deepspeed.utils import groups, logger

from autotune.contract import TrialSpec
from autotune.fleet.shared_memory import remove_segments
from autotune.trial.cpu_info import reuse_cpu_info
from autotune.trial.imports import preload
from autotune.trial.prebuilt import load_as_built
from autotune.trial.readback import differences, read_back
from autotune.trial.workload import batches, make_engine

STEPS = 2


def run(case: dict[str, Any]) -> dict[str, Any]:
    spec, ds_config = TrialSpec.from_dict(case["spec"]), case["ds_config"]
    preload(ds_config, spec.model)
    # Left over from the case before, whose engine made it.
    groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    engine = make_engine(spec, ds_config)
    try:
        losses = []
        tokens = batches(spec)
        if spec.pp > 1:
            pairs = ((batch, batch) for batch in tokens)
            means = [engine.train_batch(data_iter=pairs).item() for _ in range(STEPS)]
            losses = [mean for mean in means for _ in range(spec.grad_accum)]
        for _ in range(STEPS * spec.grad_accum if spec.pp == 1 else 0):
            batch = next(tokens)
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        found = read_back(engine)
        return {
            "read_back": found,
            "differences": differences(spec.expected, found),
            "losses": losses,
            "steps": engine.global_steps,
        }
    finally:
        engine.destroy()


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    logger.setLevel(logging.ERROR)
    reuse_cpu_info()
    load_as_built()
    deepspeed.init_distributed()
    results = []
    for case in cases:
        start = time.perf_counter()
        try:
            results.append(run(case))
        except Exception:
            results.append({"error": traceback.format_exc()})
        gc.collect()
        results[-1]["s"] = time.perf_counter() - start
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        remove_segments(int(os.environ["MASTER_PORT"]), os.environ["MASTER_ADDR"])
        Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
