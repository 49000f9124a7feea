"""Kernels and libraries on the GPU: limits of one multiprocessor, workspaces, crashes, graph capture. The words
"memory" and "out of resource" in them are not the GPU's memory."""

from __future__ import annotations

import re

from launcher.failure import Culprit, Kind, Stage
from launcher.failures.rule import Rule, Weight, Where, words

RESOURCE_LIMIT = Rule(
    Kind.KERNEL_RESOURCE_LIMIT,
    words(
        r"\bOutOfResources\b",
        r"out of resources?: (?:shared memory|registers|tensor memory|threads)",
        r"too many resources requested for launch",
        r"uses too much shared data",
        r"(?:exceeds?|larger than|more than)[^\n]{0,60}shared memory",
        r"shared memory[^\n]{0,60}(?:exceeds?|limit|too (?:large|big|much))",
        r"cudaFuncSetAttribute[^\n]*(?:invalid argument|fail)",
        r"(?:Required|requires?)[^\n]{0,40}(?:shared memory|registers)[^\n]*(?:limit|only)",
    ),
    source="triton 3.x (#3370, triton-lang/triton#8182); CUDA runtime; ptxas",
    sentence="a kernel asks for more shared memory or registers than this GPU has: not a lack of memory",
    culprit=Culprit.SERVER_BUG,
    quote=True,
)

WORKSPACE = Rule(
    Kind.WORKSPACE_OVERFLOW,
    words(
        r"\bAlignedAllo\w+",
        r"[Oo]ut of workspace memory",
        r"(?:Buffer overflow|Failed to allocate memory)[^\n]* with size \d+ and alignment",
        r"workspace[^\n]{0,60}(?:too small|overflow|not (?:(?:big|large) )?enough|insufficient|exceed)",
        r"(?:insufficient|exceeds?|increase)[^\n]{0,40}workspace",
    ),
    source="flashinfer allocator.h, which SGLANG_FLASHINFER_WORKSPACE_SIZE enlarges; trtllm-gen; cutlass",
    sentence="a preallocated workspace is too small (SGLANG_FLASHINFER_WORKSPACE_SIZE enlarges flashinfer's)",
    culprit=Culprit.SERVER_BUG,
    quote=True,
)

CUSTOM_ALL_REDUCE = Rule(
    Kind.GRAPH_CAPTURE_OTHER,
    words(r"Capture[^\n]*graph failed", r"invalid argument", r"IPC"),
    source="#9706: register_graph_buffers",
    sentence="CUDA graph capture failed in custom all-reduce, not for lack of memory: try --disable-custom-all-reduce",
    culprit=Culprit.SERVER_BUG,
    weight=Weight.SUSPECT,
    frames=re.compile(r"custom_all_reduce|register_graph_buffers"),
    stage=Stage.GRAPH_CAPTURE,
)

CAPTURE = Rule(
    Kind.GRAPH_CAPTURE_OTHER,
    words(
        r"Capture[^\n]*graph failed",
        r"graph capture[^\n]*(?:fail|error|invalid)",
        r"operation not permitted when stream is capturing",
        r"cudaErrorStreamCapture\w*",
        r"(?:CUDA|HIP) error: [^\n]*captur",
        r"CUDAGraph[^\n]*(?:fail|error)",
    ),
    source="0.4.3-0.5.12 cuda_graph_runner.py; 0.5.14 and later cuda_graph_setup.py (prefill, decode, draft)",
    sentence="CUDA graph capture failed for another reason than memory",
    culprit=Culprit.SERVER_BUG,
    weight=Weight.SUSPECT,
    stage=Stage.GRAPH_CAPTURE,
    quote=True,
)

CRASH = Rule(
    Kind.CUDA_CRASH,
    words(
        r"illegal memory access",
        r"device-side assert",
        r"misaligned address",
        r"(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|HIPBLAS|ROCBLAS)_STATUS_\w+",
        r"unspecified launch failure",
        r"illegal instruction|invalid program counter|invalid address space",
        r"(?:cuda|hip)Error(?:IllegalAddress|LaunchFailure|Assert)\w*",
        r"Memory access fault by GPU",
        r"HSA_STATUS_ERROR\w*",
        r"an? internal error[^\n]*(?:cutlass|cublas|cudnn)|cutlass[^\n]*internal error|Error Internal",
        r"the launch timed out",
    ),
    source="CUDA and ROCm runtimes through torch (#4584, #8336, #29284)",
    sentence="a kernel or library crashed on the GPU",
    culprit=Culprit.SERVER_BUG,
    retry=True,
    quote=True,
)

HARDWARE = Rule(
    Kind.CUDA_CRASH,
    words(
        r"uncorrectable (?:ECC|NVLink) error",
        r"GPU (?:is lost|has fallen off the bus)",
        r"NVRM: Xid",
        r"hardware stack error",
        r"CUDA error: unknown error",
    ),
    source="CUDA runtime; the NVIDIA driver's kernel lines",
    sentence="the GPU itself failed",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    retry=True,
    quote=True,
)

NO_GPU = Rule(
    Kind.UNKNOWN,
    words(
        r"No CUDA GPUs are available",
        r"no CUDA-capable device is detected",
        r"Found no NVIDIA driver",
        r"driver version is insufficient|driver on your system is too old",
        r"no kernel image is available",
        r"system not yet initialized|fabric ?manager",
        r"forward compatibility was attempted",
    ),
    source="torch.cuda; the CUDA runtime (Fabric Manager on HGX boxes)",
    sentence="the GPUs, their driver or this build of SGLang do not fit together",
    culprit=Culprit.INFRASTRUCTURE,
    quote=True,
)

OTHER = Rule(
    Kind.CUDA_CRASH,
    words(r"\b(?:CUDA|HIP|AcceleratorError)\b[^\n]{0,20}error\b", r"^torch\.AcceleratorError", r"Triton Error \[\w+\]"),
    source="whatever else the CUDA runtime answers through torch",
    sentence="a CUDA call failed",
    culprit=Culprit.SERVER_BUG,
    weight=Weight.SUSPECT,
    retry=True,
    quote=True,
)

SPECIFIC = (RESOURCE_LIMIT, WORKSPACE)
GENERAL = (HARDWARE, NO_GPU, CUSTOM_ALL_REDUCE, CAPTURE, CRASH)
LAST = (OTHER,)
