"""SGLang's log lines, in the wording of 0.5.17 and of 0.5.23. Every start says that it is simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.config import ServerConfig
from launcher.simulated.events import DecodeLogged, LogRecord, PrefillLogged, RetractLogged
from launcher.simulated.memory import HOST_RESERVE_GB, MemoryPlan, StartDeath
from launcher.simulated.options import EngineOptions
from launcher.simulated.presets import Preset

TORCH_DTYPES = {
    "bfloat16": "torch.bfloat16",
    "fp8_e4m3": "torch.float8_e4m3fn",
    "fp8_e5m2": "torch.float8_e5m2",
}
READY_LINE = "The server is fired up and ready to roll!"


@dataclass(frozen=True, slots=True)
class Timed:
    """One line, so many seconds after the launch."""

    at_s: float
    text: str
    """Without the time stamp; `rank` None is the launcher's."""
    rank: int | None = None
    raw: bool = False
    """Printed as it is: tracebacks, uvicorn's own lines."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """When each stage of a start begins, seconds after the launch."""

    distributed_s: float
    weights_s: float
    pool_s: float
    prefill_graphs_s: float
    decode_graphs_s: float
    host_pool_s: float
    http_s: float
    ready_s: float


@dataclass(frozen=True, slots=True)
class Wording:
    """Whose lines: a version, and how many ranks prefix theirs."""

    version: tuple[int, ...]
    tp_size: int

    def stamp(self, unix_s: float, line: Timed) -> str:
        """The line as it stands in the log."""
        if line.raw:
            return line.text
        rank = f" TP{line.rank}" if line.rank is not None and self.tp_size > 1 else ""
        return f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(unix_s))}{rank}] {line.text}"


def start_lines(
    preset: Preset,
    config: ServerConfig,
    options: EngineOptions,
    plan: MemoryPlan,
    times: StageTimes,
    wording: Wording,
) -> Iterator[Timed]:
    """The lines of a start up to "fired up", or up to the death of the plan and what follows it."""
    yield Timed(0.5, "Simulated by kvtune: no GPU is used and every number is computed.")
    yield Timed(times.distributed_s - 0.1, _server_args(preset, config, options, wording))
    yield from _weights(preset, options, plan, times, wording)
    if plan.death in (StartDeath.UNBALANCED, StartDeath.WEIGHTS_OOM, StartDeath.FRACTION_TOO_LOW):
        return
    yield from _pool(options, plan, times)
    if plan.death in (StartDeath.POOL_OOM, StartDeath.CUBLAS):
        return
    yield from _graphs(options, plan, times)
    if plan.death in (StartDeath.PREFILL_GRAPH_OOM, StartDeath.DECODE_GRAPH_OOM):
        return
    yield Timed(times.host_pool_s, summary_line(options, plan), 0)
    yield from _host_pool(options, plan, times, wording)
    if plan.death is not None:
        return
    yield Timed(times.http_s, _tree_cache_line(options), 0)
    yield from _serving(times)


def summary_line(options: EngineOptions, plan: MemoryPlan) -> str:
    """The line that tells most (identical in 0.5.6-0.5.23)."""
    return (
        f"max_total_num_tokens={plan.capacity_tokens}, chunked_prefill_size={options.chunked_prefill_size}, "
        f"max_prefill_tokens={options.max_prefill_tokens}, max_running_requests={plan.max_running_requests}, "
        f"context_len={options.context_len}, available_gpu_mem={plan.headroom_gib:.2f} GB"
    )


def runtime_line(record: LogRecord) -> str:
    """A line of the running server (0.5.12-0.5.23)."""
    match record:
        case PrefillLogged():
            return (
                f"Prefill batch, #new-seq: {record.new_requests}, #new-token: {record.new_tokens}, "
                f"#cached-token: {record.cached_tokens}, token usage: {record.token_usage:.2f}, "
                f"#running-req: {record.running}, #queue-req: {record.queued}, "
                f"#pending-token: {record.pending_tokens}, cuda graph: {record.graph}, "
                f"input throughput (token/s): {record.input_tokens_per_s:.2f}"
            )
        case DecodeLogged():
            return (
                f"Decode batch, #running-req: {record.running}, #token: {record.tokens}, "
                f"token usage: {record.token_usage:.2f}, cuda graph: {record.graph}, "
                f"gen throughput (token/s): {record.gen_tokens_per_s:.2f}, #queue-req: {record.queued}"
            )
        case RetractLogged():
            return (
                f"KV cache pool is full. Retract requests. #retracted_reqs: {record.retracted}, "
                f"#new_tokens_gained: {record.tokens_gained}, "
                f"#new_token_ratio: {record.ratio_before:.4f} -> {record.ratio_after:.4f}"
            )


def _server_args(preset: Preset, config: ServerConfig, options: EngineOptions, wording: Wording) -> str:
    shown: dict[str, object] = {
        "model_path": config.model_path,
        "mem_fraction_static": options.mem_fraction_static,
        "kv_cache_dtype": config.kv_cache_dtype or "auto",
        "tp_size": options.tp_size,
        "enable_hierarchical_cache": options.hicache_on,
        "hicache_size": options.hicache_gb,
        "chunked_prefill_size": options.chunked_prefill_size,
        "schedule_conservativeness": options.schedule_conservativeness,
        "simulated_preset": preset.name,
    }
    if wording.version >= (0, 5, 23):
        return f"server_args={shown!r}"
    return f"server_args=ServerArgs({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def _ranks(options: EngineOptions) -> range:
    return range(options.tp_size)


def _weights(
    preset: Preset, options: EngineOptions, plan: MemoryPlan, times: StageTimes, wording: Wording
) -> Iterator[Timed]:
    begin, end = times.distributed_s, times.weights_s
    took = end - begin
    newer = wording.version >= (0, 5, 21)
    for rank in _ranks(options):
        if newer:
            yield Timed(begin, "Init parallel begin.", rank)
            yield Timed(end, f"Init parallel ends. elapsed={took:.2f} s", rank)
            yield Timed(end, "Memory baseline taken. mem usage=0.09 GB", rank)
        else:
            yield Timed(begin, "Init torch distributed begin.", rank)
            yield Timed(end, f"Init torch distributed ends. elapsed={took:.2f} s, mem usage=0.09 GB", rank)
    if plan.death is StartDeath.UNBALANCED:
        return
    for rank in _ranks(options):
        yield Timed(end, f"Load weight begin. avail mem={plan.load_begin_gib:.2f} GB", rank)
    if plan.death is StartDeath.WEIGHTS_OOM:
        return
    for rank in _ranks(options):
        yield Timed(
            times.pool_s,
            f"Load weight end. elapsed={times.pool_s - end:.2f} s, type={preset.model.architecture}, "
            f"avail mem={plan.after_weights_gib:.2f} GB, mem usage={plan.weights_gib:.2f} GB.",
            rank,
        )
    if preset.model.attention == "mla" and options.kv_cache_dtype == "fp8_e4m3":
        yield Timed(
            times.pool_s,
            "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.",
            0,
        )


def _pool(options: EngineOptions, plan: MemoryPlan, times: StageTimes) -> Iterator[Timed]:
    if plan.death is StartDeath.POOL_OOM:
        return
    dtype = TORCH_DTYPES[options.kv_cache_dtype]
    for rank in _ranks(options):
        yield Timed(
            times.pool_s,
            f"KV Cache is allocated. dtype: {dtype}, #tokens: {plan.capacity_tokens}, {_sizes(plan)}",
            rank,
        )
    for rank in _ranks(options):
        yield Timed(times.pool_s, f"Memory pool end. avail mem={plan.after_pool_gib:.2f} GB", rank)


def _sizes(plan: MemoryPlan) -> str:
    if plan.split_kv:
        return f"K size: {plan.kv_gib / 2:.2f} GB, V size: {plan.kv_gib / 2:.2f} GB"
    return f"KV size: {plan.kv_gib:.2f} GB"


def _graphs(options: EngineOptions, plan: MemoryPlan, times: StageTimes) -> Iterator[Timed]:
    available = plan.after_pool_gib
    if options.prefill_graphs:
        yield Timed(
            times.prefill_graphs_s,
            f"Capture target prefill CUDA graph begin. backend=breakable, avail mem={available:.2f} GB",
            0,
        )
        if plan.death is StartDeath.PREFILL_GRAPH_OOM:
            return
        available -= plan.prefill_graphs_gib
        yield Timed(
            times.decode_graphs_s,
            "Capture target prefill CUDA graph end. "
            f"elapsed={times.decode_graphs_s - times.prefill_graphs_s:.2f} s, "
            f"mem usage={plan.prefill_graphs_gib:.2f} GB, avail mem={available:.2f} GB.",
            0,
        )
    if options.graph_max_batch == 0:
        return
    yield Timed(
        times.decode_graphs_s,
        f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
        f"bs={graph_batches(options.graph_max_batch)}, avail mem={available:.2f} GB",
        0,
    )
    if plan.death is StartDeath.DECODE_GRAPH_OOM:
        return
    yield Timed(
        times.host_pool_s,
        f"Capture target decode CUDA graph end. elapsed={times.host_pool_s - times.decode_graphs_s:.2f} s, "
        f"mem usage={plan.decode_graphs_gib:.2f} GB, avail mem={plan.headroom_gib:.2f} GB.",
        0,
    )


def graph_batches(largest: int) -> list[int]:
    """The decode batches with a graph: 1, 2, 4, 8, 12, then by 8, above 256 by 16 (0.5.17)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= largest]


def _host_pool(options: EngineOptions, plan: MemoryPlan, times: StageTimes, wording: Wording) -> Iterator[Timed]:
    if not options.hicache_on or plan.death in (StartDeath.HOST_TOO_SMALL, StartDeath.HOST_POOL_SMALLER):
        return
    if plan.host_tokens < plan.capacity_tokens:
        for rank in _ranks(options):
            yield Timed(
                times.host_pool_s,
                f"HiCache kv host pool ({plan.host_tokens} tokens) is smaller than the device pool "
                f"({plan.capacity_tokens} tokens);L2 cache effectiveness is reduced.Consider increasing "
                "--hicache-ratio (or --hicache-size) for higher L2 cache hit rate.",
                rank,
            )
    for rank in _ranks(options):
        text = f"Allocating {plan.host_gb:.2f} GB host memory for hierarchical KV cache."
        if wording.version >= (0, 5, 17):
            text = (
                f"Allocating kv hierarchical KV host pool: {plan.host_tokens} tokens, "
                f"{plan.host_gb:.2f} GB host memory."
            )
        yield Timed(times.host_pool_s, text, rank)


def _tree_cache_line(options: EngineOptions) -> str:
    kind = "HiRadixCache" if options.hicache_on else "ChunkCache" if options.disable_radix_cache else "RadixCache"
    return (
        f"Tree cache initialized: source=default impl={kind} hybrid_swa=False hybrid_ssm=False "
        f"hierarchical={options.hicache_on} streaming_wrapped=False"
    )


def _serving(times: StageTimes) -> Iterator[Timed]:
    yield Timed(times.http_s, "INFO:     Started server process (simulated)")
    yield Timed(times.http_s, "INFO:     Application startup complete.")
    yield Timed(times.ready_s, READY_LINE)


def start_death_lines(
    preset: Preset, options: EngineOptions, plan: MemoryPlan, at_s: float, host_free_gb: float
) -> Iterator[Timed]:
    """How a start that dies says so. 0.5.17-0.5.23 wording."""
    death = plan.death
    if death is None:
        return
    if death is StartDeath.HOST_OOM_KILLED:
        yield Timed(
            at_s,
            "Rank 3 scheduler died during initialization (exit code: -9). "
            "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
        )
        return
    yield Timed(
        at_s,
        "Scheduler hit an exception: " + _traceback(_start_error(preset, options, plan, host_free_gb)),
        0,
    )
    yield Timed(at_s, "", raw=True)
    yield Timed(at_s, "Received sigquit from a child process. It usually means the child failed.")
    yield Timed(at_s, "kill_process_tree called: parent_pid=1, include_parent=True, pid=1")


def _start_error(preset: Preset, options: EngineOptions, plan: MemoryPlan, host_free_gb: float) -> str:
    fraction = options.mem_fraction_static
    total = preset.box.gpu_memory_gib
    match plan.death:
        case StartDeath.UNBALANCED:
            return (
                "RuntimeError: The memory capacity is unbalanced. "
                "Some GPUs may be occupied by other processes. "
                f"pre_model_load_memory={plan.baseline_gib:.2f}"
            )
        case StartDeath.WEIGHTS_OOM:
            return _torch_oom(total, 0.5, max(0.0, plan.load_begin_gib % 0.5))
        case StartDeath.FRACTION_TOO_LOW:
            low = plan.minimum_mem_fraction
            return (
                "ValueError: Loaded weights leave no GPU memory for the KV cache under "
                f"--mem-fraction-static={fraction}. Raise --mem-fraction-static above {low + 0.001:.3f} "
                f"(minimum viable = 1 - available/pre = {low:.4f}). "
                "If using speculative decoding, draft weights are now counted."
            )
        case StartDeath.POOL_OOM:
            return _torch_oom(total, plan.kv_gib / preset.model.layers, max(0.0, plan.after_pool_gib % 0.2))
        case StartDeath.CUBLAS:
            return "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        case StartDeath.PREFILL_GRAPH_OOM | StartDeath.DECODE_GRAPH_OOM:
            phase = "prefill CUDA" if plan.death is StartDeath.PREFILL_GRAPH_OOM else "cuda"
            oom = _torch_oom(total, 0.25, 0.08).removeprefix("torch.OutOfMemoryError: ")
            return (
                f"Exception: Capture {phase} graph failed: {oom}\nPossible solutions:\n"
                "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
                "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
                "3. disable torch compile by not using --enable-torch-compile\n"
                "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)"
            )
        case StartDeath.HOST_POOL_SMALLER:
            return "AssertionError: The host memory should be larger than the device memory with the current protocol"
        case StartDeath.HOST_TOO_SMALL:
            return (
                "ValueError: Not enough host memory available. "
                f"Requesting {plan.host_gb:.2f} GB "
                f"but only have {max(0.0, host_free_gb - HOST_RESERVE_GB):.2f} GB free. "
                "Please reduce the size of the hierarchical cache."
            )
        case _:
            return "RuntimeError: cudaHostRegister failed (rc=2)"


def crash_under_load(preset: Preset, tried_gib: float, free_gib: float) -> str:
    """The log of a torch OOM in a forward pass, as at 0.98 on the H200."""
    return _crash(_torch_oom(preset.box.gpu_memory_gib, tried_gib, free_gib))


def cuda_crash_under_load() -> str:
    """The log of a CUDA error that is nobody's configuration."""
    return _crash(
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call."
    )


def _crash(error: str) -> str:
    return (
        "Scheduler hit an exception: " + _traceback(error, "self.run_batch(batch)") + "\n\n"
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
        "Sleeping 5 seconds before crash diagnostics to let GPU activity settle.\n"
        "kill_process_tree called: parent_pid=1, include_parent=True, pid=1"
    )


def _traceback(error: str, call: str = "scheduler = Scheduler(") -> str:
    frame = '  File "sglang/srt/managers/scheduler.py (simulated)", line 1, in run_scheduler_process'
    return f"Traceback (most recent call last):\n{frame}\n    {call}\n{error}"


def _torch_oom(total_gib: float, tried_gib: float, free_gib: float) -> str:
    used = total_gib - free_gib
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_size(tried_gib)}. "
        f"GPU 0 has a total capacity of {total_gib:.2f} GiB of which {_size(free_gib)} is free. "
        f"Including non-PyTorch memory, this process has {used:.2f} GiB memory in use. "
        f"Of the allocated memory {used - 1.1:.2f} GiB is allocated by PyTorch, and "
        "262.93 MiB is reserved by PyTorch but unallocated."
    )


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"
