"""Sequence parallelism (Ulysses): what the training script can split, and what it runs with.

Stages 0 to 3, offload, recomputation, LoRA, fp16 and bf16 train the losses and gradients of the
whole model (DeepSpeed 0.19.8, SGD without clipping: tests/trial/test_split_real.py).
"""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule


@rule("parallel_state_sp.py: initialize_sequence_parallel")
def _world(setup: Setup) -> Finding | None:
    sp, size = setup.sp_by_script, setup.tp * setup.pp * setup.sp_by_script
    if sp == 1 or setup.world % size == 0 or setup.world % (setup.tp * setup.pp):
        return None
    tp, pp, world = setup.tp, setup.pp, setup.world
    return finding("sequence_world", tp=tp, pp=pp, sp=sp, size=size, world=world)
