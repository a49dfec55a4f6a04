"""DeepSpeed's knobs: a file for each section of the documentation; here all of them, in order.

Adding one is an entry in a file of this folder. The evidence in the entries is DeepSpeed 0.19.8.
"""

from collections.abc import Mapping
from dataclasses import replace

from autotune.engines.deepspeed.knobs import (
    communication,
    compute,
    layout,
    offload,
    precision,
    process,
    zero,
)
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob

_GROUPS = (
    ("layout", layout.ENTRIES),
    ("offload", offload.ENTRIES),
    ("precision", precision.ENTRIES),
    ("zero", zero.ENTRIES),
    ("zeropp", zero.ZEROPP),
    ("offload", offload.DETAILS),
    ("compute", compute.ENTRIES),
    ("process", process.ENTRIES),
    ("communication", communication.ENTRIES),
)
KNOBS: Mapping[str, DeepSpeedKnob] = {
    knob.name: replace(knob, group=group) for group, entries in _GROUPS for knob in entries
}
"""Knobs by name, in an order in which a knob comes after those that it looks at."""
