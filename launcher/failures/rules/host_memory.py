"""Host memory: HiCache's own refusal, pinning that fails, the kernel's killer. None of it is the GPU's memory, though
some of it says "CUDA" and "out of memory"."""

from __future__ import annotations

import re

from launcher.failure import Culprit, Direction, Kind, Stage
from launcher.failures.rule import Rule, Where, words

_HOST_POOL = re.compile(
    r"memory_pool_host|pool_host/|hiradix|hi_?cache|HostKVCache|TokenToKVPoolHost|host_register", re.I
)

REFUSED = Rule(
    Kind.HOST_OOM_HICACHE,
    words(
        r"Not enough host memory(?! for request)",
        r"host memory[^\n]*(?:insufficient|exceed)",
        r"(?:insufficient|exceeds?)[^\n]{0,60}host memory",
        r"Requesting [\d.]+ ?GB but only ha(?:ve|s) [\d.]+ ?GB",
    ),
    source="0.4.9 (#8102) memory_pool_host.py to 0.5.23 pool_host/base.py; 10 GiB are kept back",
    sentence="the host has not enough memory for the HiCache pool",
    culprit=Culprit.HOST_MEMORY,
    hicache=Direction.DOWN,
    stage=Stage.HOST_POOL,
)

REGISTER = Rule(
    Kind.HOST_PIN_FAILED,
    words(
        r"(?:cuda|hip)HostRegister\w*\b[^\n]*fail",
        r"(?:cuda|hip)(?:HostAlloc|MallocHost)\w*\b[^\n]*(?:fail|out of memory|error)",
        r"fail\w* to (?:pin|register)\b[^\n]*(?:memory|buffer|pool)",
        r"(?:host )?(?:buffer|memory) is not pinned",
        r"\bmlock\b[^\n]*(?:fail|Cannot allocate|not permitted)",
    ),
    source="0.5.14 and later pool_host/common.py (#39744, #26301); intermittent: one retry is justified",
    sentence="host memory for the HiCache pool could not be pinned",
    culprit=Culprit.HOST_MEMORY,
    hicache=Direction.DOWN,
    retry=True,
    stage=Stage.HOST_POOL,
)

PINNED_TENSOR = Rule(
    Kind.HOST_PIN_FAILED,
    words(
        r"(?:CUDA|HIP) error: (?:invalid argument|out of memory|operation not supported|OS call failed)",
        r"cudaErrorInvalidValue",
        r"\bOutOfMemoryError\b",
        r"pin(?:ned|_memory)",
    ),
    source="#7666, #6285: torch.empty(pin_memory=True) in memory_pool_host.py; the message alone is generic",
    sentence="host memory for the HiCache pool could not be pinned",
    culprit=Culprit.HOST_MEMORY,
    hicache=Direction.DOWN,
    retry=True,
    frames=_HOST_POOL,
    stage=Stage.HOST_POOL,
)

ALLOCATED = Rule(
    Kind.HOST_OOM_HICACHE,
    words(r"can'?t allocate memory", r"Cannot allocate memory", r"\bbad_alloc\b", r"^MemoryError", r"mmap[^\n]*fail"),
    source="torch's DefaultCPUAllocator and the C library, in frames of the host pool",
    sentence="the host has not enough memory for the HiCache pool",
    culprit=Culprit.HOST_MEMORY,
    hicache=Direction.DOWN,
    frames=_HOST_POOL,
    stage=Stage.HOST_POOL,
)

KERNEL_KILLED = Rule(
    Kind.HOST_OOM_KILLED,
    words(
        r"(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process \d+",
        r"\boom-kill:constraint=",
        r"invoked oom-killer",
        r"Detected \d+ oom[-_ ]?kill event",
        r"\bOOM ?Killed\b",
        r"exceeded (?:its |the )?(?:container |job )?memory limit",
        r"killed due to (?:the node running low on memory|memory pressure)",
        r"\b(?:systemd-oomd|earlyoom)\b[^\n]*\bkill",
    ),
    source="Linux mm/oom_kill.c; slurmstepd; Kubernetes; Ray's memory monitor; kvcache-ai/ktransformers#637",
    sentence="the kernel's OOM killer ended a process: the host ran out of memory",
    culprit=Culprit.HOST_MEMORY,
    where=Where.LINE,
    survivable=False,
)

CANNOT_ALLOCATE = Rule(
    Kind.UNKNOWN,
    words(r"can'?t allocate memory", r"Cannot allocate memory", r"\bbad_alloc\b", r"^MemoryError", r"Unable to mmap"),
    source="torch's DefaultCPUAllocator, the C library, safetensors",
    sentence="a process could not get host memory",
    culprit=Culprit.HOST_MEMORY,
    quote=True,
)

SHARED_MEMORY = Rule(
    Kind.UNKNOWN,
    words(
        r"(?:creating|open) shared memory segment[^\n]*/dev/shm",
        r"/dev/shm[^\n]*(?:No space left|too small|insufficient)",
        r"insufficient shared memory \(shm\)",
        r"No space left on device[^\n]*shm|shm[^\n]*No space left on device",
    ),
    source="NCCL shm transport; torch DataLoader; containers with docker's default of 64 MiB",
    sentence="/dev/shm is too small: give the container more (docker --shm-size, --ipc=host)",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
)

RULES = (KERNEL_KILLED, REFUSED, REGISTER, PINNED_TENSOR, ALLOCATED, SHARED_MEMORY, CANNOT_ALLOCATE)
