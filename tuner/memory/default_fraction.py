"""SGLang's own choice of --mem-fraction-static when none is given, recomputed without a GPU.

Source: `memory_hook.handle_gpu_memory_settings` of SGLang 0.5.23, the same sum in 0.5.6-0.5.17 (MiB):
    reserved = 512 + 1.5 * max(chunk, 2048) + 1024 * tp * pp / 8 + 2 * decode graph batch
             + (MHA: 8 * prefill graphs | MLA: 1536)
    fraction = round((total - max(reserved, 10 GiB on GPUs above 60 GiB)) / total, 3)
"""

from __future__ import annotations

PREFILL_GRAPH_SIZES = 62
"""The number that reproduces 0.893 (H200), 0.812 (H100) and 0.849 (B200) at TP 8."""

_CHUNK_BY_GPU_GIB = ((20, 2048), (60, 4096), (160, 8192))
_LARGEST_CHUNK = 16384


def default_chunk_tokens(gpu_total_gib: float) -> int:
    """SGLang's default --chunked-prefill-size by the size of the GPU (2,048 below 20 GiB, 16,384 from 160 GiB up)."""
    for below_gib, chunk in _CHUNK_BY_GPU_GIB:
        if gpu_total_gib < below_gib:
            return chunk
    return _LARGEST_CHUNK


def default_graph_batch(gpu_total_gib: float, tp_size: int) -> int:
    """The largest decode batch with a captured graph by default: H100/H200 256 (TP < 4) or 512, B200 512."""
    return 512 if tp_size >= 4 or gpu_total_gib >= 160 else 256


def default_mem_fraction(gpu_total_gib: float, *, tp_size: int, is_mla: bool, chunk_tokens: int | None = None) -> float:
    """The fraction that SGLang would take on GPUs of `gpu_total_gib` each."""
    chunk = chunk_tokens or default_chunk_tokens(gpu_total_gib)
    reserved_mib = 512 + 1.5 * max(chunk, 2048) + 1024 * tp_size / 8
    reserved_mib += 2 * default_graph_batch(gpu_total_gib, tp_size)
    reserved_mib += 1536 if is_mla else 8 * PREFILL_GRAPH_SIZES
    if gpu_total_gib > 60:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return round(1 - reserved_mib / (gpu_total_gib * 1024), 3)
