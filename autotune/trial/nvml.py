"""Memory in use on one GPU, as NVIDIA's driver tells it, by the standard library alone.

A rank runs in the environment of the user's script, which need not have a package for NVML:
DeepSpeed and torch depend on none. Names, structs and codes: NVIDIA, nvml.h.
"""

import ctypes

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _MemoryInfo(ctypes.Structure):
    """As nvmlMemory_t, in bytes."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class DeviceMemory:
    """The memory of one GPU, or of one slice of it."""

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
        return int(info.used)

    def _ask(self, function: str, *arguments: object) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code != _SUCCESS:
            text = self._driver.nvmlErrorString(code).decode(errors="replace")
            raise OSError(f"the NVIDIA driver answers {function} with: {text}")
