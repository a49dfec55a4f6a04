"""Layout: how the world is cut into tensor, pipeline and data parallel groups.

AutoTP splits heads, MLP and vocabulary unevenly where they do not divide, down to ranks that hold
no head at all, and trains the same losses as the whole model (seen with DeepSpeed 0.19.8, SGD
without clipping: test_witnesses.py of these rules). So only the world has to divide.
"""

from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup
from autotune.space.rule import Finding, rule


@rule("deepspeed/__init__.py:543-546, runtime/config.py:456-474")
def _sequence(setup: Setup) -> Finding | None:
    sp = setup.ds_config.get("sequence_parallel_size", 1)
    dp = setup.ds_config.get("data_parallel_size")
    if (sp == 1 and dp is None) or setup.has_auto_sp or setup.sp_by_script > 1:
        return None
    if dp is None:
        message = (
            f"sequence_parallel_size={sp} without data_parallel_size: unless the script hands "
            f"over groups of its own (mpu), the batch is divided by {sp} and no sequence is split"
        )
    elif "sequence_parallel_size" not in setup.ds_config or sp * dp == setup.world:
        return None
    else:
        message = (
            f"sequence_parallel_size * data_parallel_size = {sp} * {dp} = {sp * dp}, the world is "
            f"{setup.world}"
        )
    divides = setup.world % sp == 0
    is_refused = False
    if not divides:
        micro, accum, total = (setup.ds_config.get(name) for name in BATCH_KEYS)
        if type(micro) is type(accum) is type(total) is int:
            # It multiplies with a broken number of ranks.
            is_refused = total * sp != micro * accum * setup.world
    return Finding(
        message=message,
        changes={"data_parallel_size": max(1, setup.world // sp)} if divides else {},
        advice="" if divides else f"choose a sequence_parallel_size that divides {setup.world}",
        consequence="differs" if dp is None and not is_refused else "raised",
    )
