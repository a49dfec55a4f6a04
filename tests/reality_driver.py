"""Trains many configurations for two steps each in one set of ranks, and reads each back.

See `tests.rank_driver`. Not a trial: fresh processes per configuration are what a trial pays for,
and what these checks do without.
"""

from typing import Any

from autotune.contract import TrialSpec
from autotune.trial.engines.base import differences
from autotune.trial.prebuilt import preload
from autotune.trial.readback import read_back
from autotune.trial.scripts.train import batches, gradient_scale, make_engine, micro_step
from tests.rank_driver import main
from tests.trials import settings

STEPS = 2


def run(case: dict[str, Any]) -> dict[str, Any]:
    spec, ds_config = TrialSpec.from_dict(case["spec"]), case["ds_config"]
    preload(ds_config, spec.workload.model)
    told = settings(spec, ds_config)
    engine = make_engine(told, ds_config)
    try:
        if spec.layout.pp > 1:
            fed = batches(told, engine)
            pairs = ((batch["input_ids"], batch["labels"]) for batch in fed)
            means = [engine.train_batch(data_iter=pairs).item() for _ in range(STEPS)]
            losses = [mean for mean in means for _ in range(spec.layout.grad_accum)]
        else:
            fed, scale = batches(told, engine), gradient_scale(ds_config, spec.layout.sp)
            micro_steps = range(STEPS * spec.layout.grad_accum)
            losses = [micro_step(engine, next(fed), scale).item() for _ in micro_steps]
        found = read_back(engine, spec.engine.expected)
        return {
            "read_back": found,
            "differences": differences(spec.engine.expected, found),
            "losses": losses,
            "steps": engine.global_steps,
        }
    finally:
        engine.destroy()


if __name__ == "__main__":
    main(run, within_s=380)
