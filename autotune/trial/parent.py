"""End with the parent: a rank must not outlive the process that started it.

Killing torchrun alone leaves its ranks alive and holding their devices, so every process of a
trial asks the kernel for its own end when its parent goes.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends.

    Args:
        parent: Process id that the parent should have; if it is another one, the parent ended
            before this call and the process ends at once. None: any id but that of init, which
            adopts orphans; a parent that may itself be process 1 (a container's command) has to be
            named.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # not Linux: the sweep for orphans is what is left
    if os.getppid() == 1 if parent is None else os.getppid() != parent:
        os._exit(1)
