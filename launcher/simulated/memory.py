"""Where the GPU's memory goes in one start, and at which stage it does not suffice. GiB per rank.

tokens   = floor((available after weights - (1 - mem_fraction) * B) * 2^30 / bytes per token)
           (SGLang 0.5.6-0.5.23, kv_cache_configurator._profile_available_bytes, pool_configurator)
headroom = what is left after the pool, the request table and the graphs: "available_gpu_mem" of the log.
The four H200 starts at 0.85, 0.97, 0.98 and 0.985 follow from it to 0.02 GiB once the pool's buffers are
rounded up to 2 MiB each (one for K and one for V per layer), which is how torch's allocator takes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from launcher.simulated.options import FP8_DTYPES, EngineOptions
from launcher.simulated.presets import Preset

GIB = 2**30
_BUFFER_BYTES = 2 * 2**20
HOST_RESERVE_GB = 10 * 2**30 / 1e9
"""SGLang never takes the last 10 GiB of host memory (pool_host/base.py)."""


class StartDeath(StrEnum):
    """Why a start dies of memory, in the order in which a start would meet it."""

    UNBALANCED = "unbalanced"
    WEIGHTS_OOM = "weights_oom"
    FRACTION_TOO_LOW = "fraction_too_low"
    POOL_OOM = "pool_oom"
    CUBLAS = "cublas"
    PREFILL_GRAPH_OOM = "prefill_graph_oom"
    DECODE_GRAPH_OOM = "decode_graph_oom"
    HOST_POOL_SMALLER = "host_pool_smaller"
    HOST_TOO_SMALL = "host_too_small"
    HOST_OOM_KILLED = "host_oom_killed"
    PIN_FAILED = "pin_failed"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One start's memory. Fields after the stage of `death` are what they would have been."""

    baseline_gib: float
    """B, the least over the ranks."""
    load_begin_gib: float
    weights_gib: float
    after_weights_gib: float
    bytes_per_token: int
    capacity_tokens: int
    kv_gib: float
    split_kv: bool
    """K and V are two pools (MHA); MLA has one."""
    after_pool_gib: float
    prefill_graphs_gib: float
    decode_graphs_gib: float
    headroom_gib: float
    minimum_mem_fraction: float
    max_running_requests: int
    host_tokens: int
    host_gb: float
    death: StartDeath | None


def bytes_per_token(preset: Preset, dtype: str, tp_size: int) -> int:
    """b: KV bytes per token and rank. MHA is split over the ranks (at least one head each), MLA is not."""
    return preset.model.layers * _buffer_bytes_per_token(preset, dtype, tp_size) * _buffers_per_layer(preset)


def plan_memory(
    preset: Preset,
    options: EngineOptions,
    version: tuple[int, ...] = (0, 5, 17),
    taken_gib: tuple[float, ...] = (),
    host_available_gb: float | None = None,
) -> MemoryPlan:
    """The memory of one start. `taken_gib` is what strangers hold on each rank's GPU, `version` SGLang's."""
    ranks = [preset.box.free_before_weights_gib - taken for taken in (*taken_gib, *_zeros(options, taken_gib))]
    baseline = min(ranks)
    weights = preset.model.weights_gib * preset.model.tp_size / options.tp_size
    after_weights = baseline - preset.box.lost_before_weights_gib - weights
    per_token = bytes_per_token(preset, options.kv_cache_dtype, options.tp_size)
    tokens = _capacity(options, after_weights, baseline, per_token)
    running = _max_running_requests(options, tokens)
    pool_gib = _pool_gib(preset, options, tokens)
    table_gib = (running + 1) * (options.context_len + 4) * 4 / GIB
    after_pool = after_weights - pool_gib - table_gib
    prefill_graphs = preset.overhead.prefill_graphs_gib if options.prefill_graphs else 0.0
    decode_graphs = _decode_graphs_gib(preset, options)
    host_tokens, host_gb = _host_pool(options, tokens, per_token)
    host_free_gb = preset.box.host_available_gb if host_available_gb is None else host_available_gb
    fits = _Fits(
        unbalanced=baseline < 0.9 * max(ranks),
        after_weights=after_weights,
        tokens=tokens,
        room_for_pool=after_weights - pool_gib,
        after_pool=after_pool,
        cublas=preset.overhead.cublas_gib,
        after_prefill_graphs=after_pool - prefill_graphs,
        headroom=after_pool - prefill_graphs - decode_graphs,
    )
    death = _gpu_death(fits) or _host_death(options, host_tokens, host_gb, tokens, host_free_gb, version)
    return MemoryPlan(
        baseline_gib=baseline,
        load_begin_gib=baseline - preset.box.lost_before_weights_gib,
        weights_gib=weights,
        after_weights_gib=after_weights,
        bytes_per_token=per_token,
        capacity_tokens=tokens,
        kv_gib=tokens * per_token / GIB,
        split_kv=preset.model.attention == "mha",
        after_pool_gib=after_pool,
        prefill_graphs_gib=prefill_graphs,
        decode_graphs_gib=decode_graphs,
        headroom_gib=fits.headroom,
        minimum_mem_fraction=1 - after_weights / baseline,
        max_running_requests=running,
        host_tokens=host_tokens,
        host_gb=host_gb,
        death=death,
    )


@dataclass(frozen=True, slots=True)
class _Fits:
    unbalanced: bool
    after_weights: float
    tokens: int
    room_for_pool: float
    after_pool: float
    cublas: float
    after_prefill_graphs: float
    headroom: float


def _gpu_death(fits: _Fits) -> StartDeath | None:
    """The first stage at which a rank's GPU memory does not suffice."""
    checks = (
        (fits.unbalanced, StartDeath.UNBALANCED),
        (fits.after_weights < 0, StartDeath.WEIGHTS_OOM),
        (fits.tokens <= 0, StartDeath.FRACTION_TOO_LOW),
        (fits.room_for_pool < 0 or fits.after_pool < 0, StartDeath.POOL_OOM),
        (fits.after_pool < fits.cublas, StartDeath.CUBLAS),
        (fits.after_prefill_graphs < 0, StartDeath.PREFILL_GRAPH_OOM),
        (fits.headroom < 0, StartDeath.DECODE_GRAPH_OOM),
    )
    return next((death for failed, death in checks if failed), None)


def _host_death(
    options: EngineOptions,
    host_tokens: int,
    host_gb: float,
    tokens: int,
    free_gb: float,
    version: tuple[int, ...],
) -> StartDeath | None:
    """Host memory for HiCache, by the rules of the version.

    <= 0.5.14 asserts host > device; <= 0.5.18 each rank compares its own request with the whole box, so
    that several ranks that each fit are killed by the kernel together; >= 0.5.19 each rank has its share
    of the budget.
    """
    if not options.hicache_on:
        return None
    if version <= (0, 5, 14) and host_tokens <= tokens:
        return StartDeath.HOST_POOL_SMALLER
    usable_gb = free_gb - HOST_RESERVE_GB
    share_gb = usable_gb if version <= (0, 5, 18) else usable_gb / options.tp_size
    if host_gb > share_gb:
        return StartDeath.HOST_TOO_SMALL
    return StartDeath.HOST_OOM_KILLED if host_gb * options.tp_size > free_gb else None


def _zeros(options: EngineOptions, taken_gib: tuple[float, ...]) -> tuple[float, ...]:
    return (0.0,) * max(0, options.tp_size - len(taken_gib))


def _buffers_per_layer(preset: Preset) -> int:
    return 2 if preset.model.attention == "mha" else 1


def _buffer_bytes_per_token(preset: Preset, dtype: str, tp_size: int) -> int:
    element = 1 if dtype in FP8_DTYPES else 2
    model = preset.model
    if model.attention == "mla":
        return ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)) * element
    return max(1, (model.kv_heads or 1) // tp_size) * (model.head_dim or 1) * element


def _capacity(options: EngineOptions, after_weights: float, baseline: float, per_token: int) -> int:
    budget_gib = after_weights - baseline * (1 - options.mem_fraction_static)
    tokens = math.floor(budget_gib * GIB / per_token)
    if options.max_total_tokens is not None:
        tokens = min(tokens, options.max_total_tokens)
    return tokens // options.page_size * options.page_size


def _pool_gib(preset: Preset, options: EngineOptions, tokens: int) -> float:
    if tokens <= 0:
        return 0.0
    buffer = (tokens + options.page_size) * _buffer_bytes_per_token(preset, options.kv_cache_dtype, options.tp_size)
    rounded = math.ceil(buffer / _BUFFER_BYTES) * _BUFFER_BYTES
    return rounded * preset.model.layers * _buffers_per_layer(preset) / GIB


def _max_running_requests(options: EngineOptions, tokens: int) -> int:
    """Default of SGLang 0.5.6-0.5.23: min(max(tokens / context * 512, 2048), 4096), at most tokens / 2."""
    default = min(max(int(tokens / options.context_len * 512), 2048), 4096)
    asked = options.max_running_requests
    limit = default if asked is None else asked
    return max(1, min(limit, max(1, tokens // 2)))


def _decode_graphs_gib(preset: Preset, options: EngineOptions) -> float:
    """Workspaces stay without graphs; the captured part grows with the largest batch (half and half)."""
    share = options.graph_max_batch / preset.overhead.graph_max_batch
    return preset.overhead.decode_graphs_gib * (0.5 + 0.5 * share)


def _host_pool(options: EngineOptions, tokens: int, per_token: int) -> tuple[int, float]:
    """Tokens and decimal GB of the host pool per rank (pool_host/base.py: a size overrides the ratio)."""
    if not options.hicache_on:
        return 0, 0.0
    if options.hicache_gb > 0:
        return int(options.hicache_gb * 1e9 // per_token) + options.page_size, float(options.hicache_gb)
    host_tokens = int(max(0, tokens) * options.hicache_ratio) + options.page_size
    return host_tokens, host_tokens * per_token / 1e9
