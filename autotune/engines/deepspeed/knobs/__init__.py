"""DeepSpeed's knobs: a file for each page of the documentation; here all of them, in order.

Adding one is an entry in a file of this folder and a line in the template. The evidence in the
entries is DeepSpeed 0.19.8.
"""

from autotune.engines.deepspeed.knobs import (
    compute,
    layout,
    offload,
    precision,
    process,
    zero,
)
from autotune.space.knob import Catalogue

KNOBS: Catalogue = {
    knob.name: knob
    for knob in (
        *layout.ENTRIES,
        *offload.ENTRIES,
        *precision.ENTRIES,
        *zero.ENTRIES,
        *zero.ZEROPP,
        *offload.DETAILS,
        *compute.ENTRIES,
        *process.ENTRIES,
    )
}
"""Knobs by name, in an order in which a knob comes after those that it looks at."""
