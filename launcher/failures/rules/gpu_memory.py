"""GPU memory ran out. Which stage it ran out in, and so which way mem-fraction-static must move, the log's milestones
tell (launcher.failures.stages); an out-of-memory does not always say "out of memory", and some that do are not one."""

from __future__ import annotations

from launcher.failure import Culprit, Direction, Kind, Stage
from launcher.failures.rule import Rule, Where, words
from launcher.failures.story import Message

TIGHT_GIB = 0.75
"""Below this an error that may be an out-of-memory is one: a cuBLAS handle or an NCCL channel takes some 100 MiB."""


def _is_tight(message: Message) -> bool:
    return message.free_gib is not None and message.free_gib < TIGHT_GIB


NOT_ENOUGH_FOR_POOL = Rule(
    Kind.GPU_OOM_STARTUP_KV,
    words(
        r"Not enough (?:GPU )?memory\b.{0,200}increase\W{1,4}mem.fraction.static",
        r"leaves? no GPU memory for the (?:KV|mamba)",
        r"Raise\W{1,4}mem.fraction.static above",
        r"SWA pool \(.*cannot hold even one request",
        r"(?:KV|token) (?:cache )?pool.{0,60}cannot hold (?:even )?(?:one|a single) request",
        r"try to increase\W{1,4}mem.fraction.static",
    ),
    source="0.1.13 model_runner.py (#322) to 0.5.12 pool_configurator.py; 0.5.14-0.5.23 kv_cache_configurator.py",
    sentence="the weights leave no room for the KV pool at this mem-fraction-static: raise it",
    culprit=Culprit.CONFIGURATION,
    mem_fraction=Direction.UP,
    stage=Stage.KV_POOL,
)

TORCH = Rule(
    Kind.GPU_OOM_RUNTIME,
    words(
        r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b",
        r"\b(?:CUDA|HIP|XPU|NPU|MUSA|GPU|device) out of memory",
        r"(?:CUDA|HIP|Triton|cuda|driver|device) ?(?:driver )?(?:error|failure)\b[^\n]{0,40}out of memory",
        r"\b(?:cuda|hip)(?:Error)?(?:MemoryAllocation|OutOfMemory)\b",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
        r"\b(?:cuda|hip)Malloc\w*\b[^\n]{0,60}(?:failed|out of memory)",
        r"\bcuMem(?:Create|Alloc)\w*\b[^\n]{0,60}(?:failed|out of memory)",
    ),
    source="torch 2.0-2.9; ROCm: nlzy/vllm-gfx906#14; #4730, #5285, #17744",
    sentence="GPU memory ran out",
    culprit=Culprit.CONFIGURATION,
    mem_fraction=Direction.DOWN,
)

LIBRARY = Rule(
    Kind.GPU_OOM_RUNTIME,
    words(
        r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|HIPBLAS|ROCBLAS)_STATUS_(?:INTERNAL_ERROR_DEVICE_)?ALLOC(?:ATION)?_FAILED",
        r"\bcu(?:blas|dnn|solver|sparse)\w*\b.{0,60}(?:alloc\w* failed|out of memory)",
    ),
    source="torch; QwenLM/Qwen3#873; an H200 at 0.995 (0.5.17 init_cublas)",
    sentence="GPU memory ran out: a math library could not get its workspace",
    culprit=Culprit.CONFIGURATION,
    mem_fraction=Direction.DOWN,
)

LIBRARY_MASKED = Rule(
    Kind.GPU_OOM_RUNTIME,
    words(r"(?:CUBLAS|CUDNN)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)"),
    source="torch forum reports: cublasCreate answers NOT_INITIALIZED when the device is full",
    sentence="GPU memory ran out: a math library could not start with so little free",
    culprit=Culprit.CONFIGURATION,
    mem_fraction=Direction.DOWN,
    when=_is_tight,
)

NCCL = Rule(
    Kind.GPU_OOM_NCCL,
    words(
        r"N?CCL WARN[^\n]*out of memory",
        r"N?CCL WARN[^\n]*Failed to (?:CUDA|HIP) \w*alloc",
        r"N?CCL (?:error|failure)[^\n]*out of memory",
        r"NVSHMEM[^\n]*(?:out of memory|alloc\w* (?:failed|of [^\n]* failed)|failed to alloc)",
    ),
    source="NVIDIA/nccl#1235, NVIDIA/TensorRT-LLM#1670 (src/include/alloc.h)",
    sentence="GPU memory ran out for a communicator",
    culprit=Culprit.CONFIGURATION,
    where=Where.LINE,
    mem_fraction=Direction.DOWN,
)

NCCL_MASKED = Rule(
    Kind.GPU_OOM_NCCL,
    words(r"N?CCL error[^\n]*unhandled cuda error"),
    source="NCCL without NCCL_DEBUG=WARN hides the reason (THUDM/slime#669)",
    sentence="GPU memory ran out for a communicator: NCCL failed with so little free",
    culprit=Culprit.CONFIGURATION,
    mem_fraction=Direction.DOWN,
    when=_is_tight,
)

RULES = (NOT_ENOUGH_FOR_POOL, NCCL, NCCL_MASKED, TORCH, LIBRARY, LIBRARY_MASKED)
