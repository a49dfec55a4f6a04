"""DeepSpeed's knobs: a row each of `knobs.json`, and those of communication after them.

A row has the fields of `DeepSpeedKnob`; functions that it names are those of `situation.py` and
`readers.py`. The evidence in the rows is DeepSpeed 0.19.8.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from autotune.engines.communication.knobs import KNOBS as COMMUNICATION_KNOBS
from autotune.engines.deepspeed.knobs import readers, situation
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.space import knob as shared
from autotune.space.knob import Knob, Knobs
from autotune.space.knob_rows import read_knobs

_STAGES = {"nccl.all_gather": (1, 2, 3), "nccl.reduce_scatter": (3,)}
"""Collectives -> the stages that use them: parameters are gathered from stage 1 on; gradients are
all-reduced below stage 3 and reduce-scattered at it (stage_1_and_2.py: allreduce_and_scatter)."""


def _of_communication(knob: Knob) -> DeepSpeedKnob:
    fields = {field.name: getattr(knob, field.name) for field in dataclasses.fields(knob)}
    if stages := _STAGES.get(knob.name):
        fields["when"] = {"zero.stage": stages}
    return DeepSpeedKnob(**{**fields, "group": "communication"})


_FUNCTIONS = (shared, situation, readers)

KNOBS: Mapping[str, DeepSpeedKnob] = {
    **read_knobs(Path(__file__).with_name("knobs.json"), DeepSpeedKnob, *_FUNCTIONS),
    **{name: _of_communication(knob) for name, knob in COMMUNICATION_KNOBS.items()},
}
"""Knobs by name, in an order in which a knob comes after those that it looks at."""


def environment_of(values: Knobs) -> dict[str, str]:
    """Environment variables that a candidate's ranks start with."""
    brought = (KNOBS[name].variables.get(str(value), {}) for name, value in values.items())
    return {variable: text for found in brought for variable, text in found.items()}
