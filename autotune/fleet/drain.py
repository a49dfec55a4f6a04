"""Wait until a gang's device memory is free again: the next trial must find the whole card.

The driver frees a dead process' memory a moment after it is gone; a trial that starts
meanwhile would run out of memory that is not its own.
"""

import time
from collections.abc import Mapping

from autotune.devices.hardware import visible_gpus
from autotune.fleet.gangs import Gang

_TOLERANCE_BYTES = 64 * 2**20
_TIMEOUT_S = 15.0
_PERIOD_S = 0.1


def used_bytes(gang: Gang) -> dict[int, int]:
    """Memory in use on each GPU of the gang, by anybody; by slot index."""
    indices = {slot.index for slot in gang.slots}
    return {gpu.index: gpu.memory_used_bytes for gpu in visible_gpus() if gpu.index in indices}


def wait_until_drained(gang: Gang, before: Mapping[int, int]) -> int:
    """Wait until every GPU of the gang is back at what it held before the trial.

    Args:
        gang: The trial's slots.
        before: `used_bytes` from before it started.

    Returns:
        0 when it came to that. After 15 s, when somebody else took the memory: the bytes that the
        worst GPU lacks, which the next trial will lack as well.

    Raises:
        FleetError: The driver does not answer: what is free is not known.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        now = used_bytes(gang)
        lacking_bytes = max((now.get(i, 0) - used for i, used in before.items()), default=0)
        if lacking_bytes <= _TOLERANCE_BYTES:
            return 0
        if time.monotonic() > deadline:
            return lacking_bytes
        time.sleep(_PERIOD_S)
