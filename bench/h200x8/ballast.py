"""`python -m bench.h200x8.ballast GPU LEAVE_GIB SECONDS`: a stranger that takes a GPU's memory, for a while.

Through the driver's own library, so that it needs no framework.
"""

from __future__ import annotations

import ctypes
import sys
import time


def take(gpu: int, leave_gib: float) -> float:
    """Allocate all but `leave_gib` of what is free on that GPU; GiB taken. Raises RuntimeError."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, free, total, pointer = (
        ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64(),
    )  # fmt: skip
    _check(cuda.cuInit(0))
    _check(cuda.cuDeviceGet(ctypes.byref(device), gpu))
    _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check(cuda.cuCtxSetCurrent(context))
    _check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    size = max(0, free.value - int(leave_gib * 2**30))
    _check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return size / 2**30


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the CUDA driver answered {code}")


if __name__ == "__main__":
    print(f"{take(int(sys.argv[1]), float(sys.argv[2])):.2f}", flush=True)
    time.sleep(float(sys.argv[3]))
