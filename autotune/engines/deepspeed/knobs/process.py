"""Knobs of the processes that train, as variables of the environment."""

from collections.abc import Mapping

from autotune.contract import KnobValue
from autotune.space.knob import Knobs

_VARIABLES: Mapping[tuple[str, KnobValue], Mapping[str, str]] = {
    # The old name: torch before 2.9 reads no other, and later ones still read it.
    ("allocator", "expandable_segments"): {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ("host_allocator", "keep"): {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_TOP_PAD_": str(64 * 2**20),
    },
}
"""Variables by knob and value; a value that is not here needs none."""


def environment_of(values: Knobs) -> dict[str, str]:
    """Environment variables that a candidate's ranks start with."""
    return {
        variable: text
        for pair in values.items()
        for variable, text in _VARIABLES.get(pair, {}).items()
    }
