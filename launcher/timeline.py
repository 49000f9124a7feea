"""A start-up as a timeline: what each stage took in seconds and left in GiB. Read from the log by `read_timeline`."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.failure import Stage


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One stage of a start-up. Seconds count from the launch; GiB are per rank, of the poorest rank."""

    stage: Stage
    begin_s: float
    end_s: float | None
    available_before_gib: float | None = None
    available_after_gib: float | None = None

    @property
    def took_s(self) -> float | None:
        return None if self.end_s is None else self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """What one start shows of memory: the B, W, b and overhead of the KV-cache arithmetic. Per rank, poorest rank.

    tokens = floor((mem_fraction * B - W) * 2^30 / b);  headroom = available after start-up.
    Sources: the log lines "Load weight begin/end", "KV Cache is allocated", "Memory pool end" and
    "max_total_num_tokens=... available_gpu_mem=..." (SGLang 0.5.6-0.5.23). SGLang's "GB" here is GiB.
    """

    before_weights_gib: float | None = None
    """B: free memory after NCCL start and before the weights."""
    weights_gib: float | None = None
    """W."""
    kv_cache_gib: float | None = None
    capacity_tokens: int | None = None
    """Tokens of one DP rank (max_total_num_tokens)."""
    kv_cache_dtype: str | None = None
    """The dtype in use, normalised; from the log line or from arithmetic."""
    graphs_gib: float | None = None
    headroom_gib: float | None = None
    """available_gpu_mem of the start-up line."""
    max_running_requests: int | None = None
    graph_max_batch: int | None = None
    """The largest decode batch with a captured graph, where the capture's line lists its sizes (`bs=[1, 2, ...]`)."""
    context_len: int | None = None
    chunked_prefill_size: int | None = None
    hicache_host_gb: float | None = None
    """Decimal GB of host memory per rank."""

    @property
    def bytes_per_token(self) -> float | None:
        """b: KV bytes per token and rank; None for a pool so small that the log rounds it to 0.00 GB."""
        if not self.kv_cache_gib or not self.capacity_tokens:
            return None
        return self.kv_cache_gib * 2**30 / self.capacity_tokens


@dataclass(frozen=True, slots=True)
class Timeline:
    """One start-up, whole or as far as it came."""

    spans: tuple[StageSpan, ...] = ()
    memory: MemorySeen = MemorySeen()
    sglang_version: str | None = None
    ready_s: float | None = None
    """Seconds from launch to "fired up"; None if it never was."""
