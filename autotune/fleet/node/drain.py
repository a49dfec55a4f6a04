"""Whether device memory is free again after a trial: the next one needs the whole card.

The driver frees a dead process' memory a moment after it is gone; a trial that starts
meanwhile would run out of memory that is not its own.
"""

from collections.abc import Collection, Mapping

from autotune.devices.hardware import visible_gpus

TOLERANCE_BYTES = 64 * 2**20


def used_bytes(devices: Collection[str]) -> dict[str, int]:
    """Memory in use on each of some GPUs, by anybody; by UUID.

    Raises:
        FleetError: The driver does not answer: what is free is not known.
    """
    return {gpu.uuid: gpu.memory_used_bytes for gpu in visible_gpus() if gpu.uuid in devices}


def lacking_bytes(before: Mapping[str, int]) -> int:
    """Bytes that the worst GPU has free less than before a trial; 0: next to none.

    Args:
        before: `used_bytes` from before the trial started.

    Raises:
        FleetError: The driver does not answer.
    """
    now = used_bytes(before) if before else {}
    lacking = max((now.get(uuid, 0) - used for uuid, used in before.items()), default=0)
    return lacking if lacking > TOLERANCE_BYTES else 0
