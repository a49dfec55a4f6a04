"""One meter per device: the reported figure is the one that the limit is checked against.

CPU ranks: private data of the process (VmData) above the base after imports. The kernel counts
`RLIMIT_DATA` in the same unit, and an allocation above it fails cleanly, with a typed error. Both
are virtual memory: a bucket that is allocated and never touched counts, as it would on a GPU.
Shared memory and child processes do not count.

GPU: what the allocator reserved, plus what the process holds on the device besides it (context,
NCCL buffers) by NVML. A limit is handed to the allocator less that rest.
"""

import ctypes
import functools
import os
import resource
import threading
from abc import ABC, abstractmethod

import torch

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0

_MemoryInfo = ctypes.c_ulonglong * 3
"""As nvmlMemory_t: total, free and used bytes."""


class DeviceMemory:
    """The memory of one GPU, or of one slice of it, as NVIDIA's driver tells it.

    By ctypes: a user's script need not have a package for NVML in its environment, for neither
    DeepSpeed nor torch depends on one. Names, structs and codes: NVIDIA, nvml.h.
    """

    def __init__(self, name: str) -> None:
        """Find the GPU.

        Raises:
            OSError: There is no driver, or it does not know the GPU.
        """
        self._driver = ctypes.CDLL(LIBRARY)
        self._driver.nvmlErrorString.restype = ctypes.c_char_p
        self._ask("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        if name.isdigit():
            number = ctypes.c_uint(int(name))
            self._ask("nvmlDeviceGetHandleByIndex_v2", number, ctypes.byref(self._device))
        else:
            uuid = ctypes.c_char_p(name.encode())
            self._ask("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(self._device))

    def used_bytes(self) -> int:
        """Memory in use, by this process and all others.

        Raises:
            OSError: The driver does not answer for the GPU.
        """
        info = _MemoryInfo()
        self._ask("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(info))
        return int(info[2])

    def _ask(self, function: str, *arguments: object) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code != _SUCCESS:
            text = self._driver.nvmlErrorString(code).decode(errors="replace")
            raise OSError(f"the NVIDIA driver answers {function} with: {text}")


_AT_LIMIT = 0.97
_PAGE_BYTES = resource.getpagesize()
_RESIDENT, _PRIVATE_DATA = 1, 5
"""Fields of statm, in pages; private data is what RLIMIT_DATA counts, plus the stack."""


class Meter(ABC):
    """Memory of one rank on its device."""

    @abstractmethod
    def start(self, limit_bytes: int | None) -> None:
        """Take the base, right after imports, and begin to watch; from here on the limit holds."""

    def cap(self) -> None:  # noqa: B027
        """Apply what depends on the process's other memory; called again as that grows."""

    def settle(self) -> None:  # noqa: B027
        """Disturb no step from here on: steps are measured, and have shown their peak by now."""

    def lift(self) -> None:  # noqa: B027
        """Take the limit off the host, so that what failed at it can still be written down."""

    @abstractmethod
    def read(self) -> dict[str, int]:
        """Bytes by meter so far; the key `peak` is the one that the limit is checked against."""

    @abstractmethod
    def now(self) -> dict[str, int]:
        """Bytes by meter as they stand, to be watched for growth."""

    def explains(self, error: BaseException) -> bool:
        """True for an exception that the limit caused though it does not speak of memory."""
        return False


class CpuMeter(Meter):
    """Private data above the base after imports, sampled by a thread."""

    close_period_s = 0.002
    """Time between two readings of the thread, until `settle`."""
    settled_period_s = 0.1
    """Time between two readings after that. Ranks share their core with threads of gloo, and
    whatever wakes up on it decides which of them runs: with a reading every 5 ms, steps took 0.966
    to 1.029 of their time, by configuration (`benchmarks/meter_cost.py EXPORT --period 0.005`)."""

    def __init__(self) -> None:
        self._period_s = self.close_period_s
        self._base_bytes = 0
        self._has_base = threading.Event()
        self._limit_bytes: int | None = None
        self._peak_bytes = 0

    def start(self, limit_bytes: int | None) -> None:
        # Its stack is part of the base.
        threading.Thread(target=self._watch, name="memory-meter", daemon=True).start()
        self._base_bytes = _statm_bytes(_PRIVATE_DATA)
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)  # none may raise its own
            cap = self._base_bytes + limit_bytes
            cap = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (cap, hard))
        self._has_base.set()

    def settle(self) -> None:
        self._period_s = self.settled_period_s

    def lift(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    def read(self) -> dict[str, int]:
        """Adds the highest resident set of the process."""
        self._sample()
        peak = {"peak": self._peak_bytes, "private_data": self._peak_bytes}
        return {**peak, "host_rss": peak_rss_bytes()}

    def now(self) -> dict[str, int]:
        private_bytes = _statm_bytes(_PRIVATE_DATA) - self._base_bytes
        return {"private_data": private_bytes, "host_rss": _statm_bytes(_RESIDENT)}

    def explains(self, error: BaseException) -> bool:
        """At the limit the interpreter and C code fail in ways of their own.

        Seen: SystemError without a message, ImportError of a library that could not be mapped.
        """
        if self._limit_bytes is None or not isinstance(error, Exception):
            return False
        return self.read()["peak"] >= _AT_LIMIT * self._limit_bytes

    def _sample(self) -> None:
        self._peak_bytes = max(self._peak_bytes, _statm_bytes(_PRIVATE_DATA) - self._base_bytes)

    def _watch(self) -> None:
        self._has_base.wait()
        period = threading.Event()
        while not period.wait(self._period_s):
            self._sample()


class _CudaMeter(Meter):
    """The peak that the allocator keeps, plus what NVML sees of this process above it."""

    def __init__(self) -> None:
        self._device = DeviceMemory(_device_name(int(os.environ["LOCAL_RANK"])))
        self._limit_bytes: int | None = None
        self._used_before_bytes = 0

    def start(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._used_before_bytes = self._device.used_bytes()

    def cap(self) -> None:
        """Give the allocator the limit less context and NCCL, which exist by now."""
        if self._limit_bytes is None:
            return
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        share = (self._limit_bytes - self._rest_bytes()) / total
        if share <= 0:
            raise MemoryError(
                f"out of memory: the limit of {self._limit_bytes} bytes is below what the CUDA "
                f"context and NCCL take alone ({self._rest_bytes()} bytes)"
            )
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))

    def read(self) -> dict[str, int]:
        reserved = int(torch.cuda.max_memory_reserved())
        rest = self._rest_bytes()
        return {
            "peak": reserved + rest,
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": reserved,
            "context_and_comm": rest,
            "host_rss": peak_rss_bytes(),
        }

    def now(self) -> dict[str, int]:
        return {
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "context_and_comm": self._rest_bytes(),
            "host_rss": _statm_bytes(_RESIDENT),
        }

    def _rest_bytes(self) -> int:
        # NVML, not torch.cuda.mem_get_info: that one creates the context which is to be measured.
        now = self._device.used_bytes() - int(torch.cuda.memory_reserved())
        return max(0, now - self._used_before_bytes)


def make_meter(accelerator: str) -> Meter:
    """The meter of an accelerator."""
    return _CudaMeter() if accelerator == "cuda" else CpuMeter()


def peak_rss_bytes() -> int:
    """Highest resident set of this process since it started (VmHWM)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_name(local_rank: int) -> str:
    """Name of a rank's GPU for NVML: of those that are visible, or its number."""
    parts = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = [part.strip() for part in parts if part.strip()]  # CUDA reads `0, 1`, too
    return visible[local_rank] if visible else str(local_rank)


def _statm_bytes(field: int) -> int:
    return int(os.pread(_statm(), 256, 0).split()[field]) * _PAGE_BYTES


@functools.cache
def _statm() -> int:
    # Opened once: the thread shares the rank's core, and to open it for each reading slows the
    # steps of a small model (benchmarks/meter_cost.py measures what the meter takes).
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
