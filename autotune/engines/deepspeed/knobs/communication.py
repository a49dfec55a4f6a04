"""Knobs of NCCL and gloo, as any engine has them, where DeepSpeed's stages use what they are of.

Gradients are all-reduced below stage 3 and reduce-scattered at it (stage_1_and_2.py:
allreduce_and_scatter, stage3.py); parameters are gathered from stage 1 on.
"""

import dataclasses

from autotune.engines.communication.knobs import KNOBS
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import at_stages
from autotune.space.knob import Knob

_WHEN = {"nccl.all_gather": at_stages(1, 2, 3), "nccl.reduce_scatter": at_stages(3)}


def _as_ours(knob: Knob) -> DeepSpeedKnob:
    fields = {each.name: getattr(knob, each.name) for each in dataclasses.fields(knob)}
    return DeepSpeedKnob(**{**fields, "when": _WHEN.get(knob.name, knob.when)})


ENTRIES = tuple(map(_as_ours, KNOBS))
