"""The five calls of NVIDIA's management library that a meter needs, where the package nvidia-ml-py is not installed.

Named as in that package, so that either will do.
"""

from __future__ import annotations

import ctypes

__all__ = ["Driver", "NvmlError"]

LIBRARY = "libnvidia-ml.so.1"


class NvmlError(RuntimeError):
    """The driver refused, in its own words."""


class Driver:
    """The library that comes with the driver.

    Args:
        library: its file.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self.library = ctypes.CDLL(library)
        self.library.nvmlErrorString.restype = ctypes.c_char_p

    def nvmlInit(self) -> None:
        """Begin; more than once does no harm."""
        self._call("nvmlInit_v2")

    def nvmlDeviceGetCount(self) -> int:
        """How many GPUs there are."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def nvmlDeviceGetHandleByIndex(self, index: int) -> ctypes.c_void_p:
        """One of them, in the order of the bus."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> ctypes.c_void_p:
        """One of them, "GPU-…"."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        return handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p) -> int:
        """Millijoules since the driver was loaded."""
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
        return millijoules.value

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise NvmlError(f"{name} is not in this driver's library") from None
        code = function(*arguments)
        if code:
            raise NvmlError(self.library.nvmlErrorString(code).decode())
