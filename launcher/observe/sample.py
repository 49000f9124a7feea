"""One server at one moment. Every figure is a fact that the server told; what it did not tell is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative Prometheus histogram, merged over the series that may be merged. Bounds in seconds, last is inf."""

    upper_bounds_s: tuple[float, ...]
    cumulative_counts: tuple[float, ...]
    sum_s: float
    count: float


@dataclass(frozen=True, slots=True)
class RankSample:
    """One DP rank (the whole server when there is no DP attention). TP ranks are duplicates and are not summed."""

    dp_rank: int = 0
    running_requests: int | None = None
    queued_requests: int | None = None
    retracted_requests: int | None = None
    """Waiting again after a retraction, now."""
    used_tokens: int | None = None
    """KV tokens that running requests hold; radix-cached but unlocked KV is not among them."""
    evictable_tokens: int | None = None
    available_tokens: int | None = None
    capacity_tokens: int | None = None
    token_usage_share: float | None = None
    gen_tokens_per_s: float | None = None
    """The server's own figure: decode steps since its last decode log line. Stale when idle."""
    max_running_requests: int | None = None
    hicache_used_tokens: int | None = None
    hicache_total_tokens: int | None = None
    full_usage_share: float | None = None
    """Of a hybrid model's pools: full attention (unrounded), sliding window, Mamba states."""
    swa_usage_share: float | None = None
    mamba_usage_share: float | None = None
    worker: str | None = None
    """Which server this rank belongs to, where a gateway in front tells of several."""

    @property
    def binding_pool(self) -> str | None:
        """The pool that is fullest: "full", "swa" or "mamba"; None where pools are not told apart or all are empty."""
        pools = {"full": self.full_usage_share, "swa": self.swa_usage_share, "mamba": self.mamba_usage_share}
        known = {name: share for name, share in pools.items() if share}
        return max(known, key=lambda name: known[name]) if known else None


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters since the server's start, summed over DP ranks where that is right. Rates are differences of two."""

    generation_tokens: float | None = None
    """Credited when a request finishes: its difference over time is the effective completion rate."""
    prompt_tokens: float | None = None
    finished_requests: float | None = None
    aborted_requests: float | None = None
    decoded_tokens: float | None = None
    """realtime_tokens_total{mode=decode} [>= 0.5.9]: its difference over time is the gen rate."""
    prefill_computed_tokens: float | None = None
    prefill_cached_tokens: float | None = None
    cached_tokens_by_source: Mapping[str, float] = field(default_factory=dict)
    """device, host, storage, ... as the build names them."""
    retracted_requests: float | None = None
    retracted_input_tokens: float | None = None
    retracted_output_tokens: float | None = None
    evicted_tokens: float | None = None
    load_back_tokens: float | None = None
    graph_decode_passes: float | None = None
    eager_decode_passes: float | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What does not change while a server lives. GiB per rank."""

    sglang_version: str | None = None
    model_name: str | None = None
    kv_cache_dtype: str | None = None
    """The dtype in use where that is known beyond doubt, else None."""
    kv_cache_dtype_asked: str | None = None
    mem_fraction_static: float | None = None
    tp_size: int | None = None
    dp_size: int | None = None
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    graphs_gib: float | None = None
    headroom_gib: float | None = None
    """Free after start-up (startup_available)."""
    context_len: int | None = None
    chunked_prefill_size: int | None = None
    hicache_size_gb: int | None = None
    engine_type: str | None = None
    """unified, prefill or decode."""
    simulated: bool = False
    graph_max_batch: int | None = None
    """The largest decode batch with a captured graph."""
    schedule_conservativeness: float | None = None
    launcher_pid: int | None = None
    model_path: str | None = None
    ranks_per_pool: int | None = None
    """TP and PP ranks that hold the same KV pool: their counters are duplicates. tp_size (times pp_size), or
    tp_size / dp_size with DP attention."""
    clock_speed: float = 1.0
    """Seconds of the server's clock per wall second: above 1 only on the simulated engine (`simulated_speed` of
    its /server_info). Its counters grow per second of this clock."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One server at one moment, from whichever of its sources answered."""

    taken_s: float
    """Study seconds of the reader's clock."""
    url: str
    facts: ServerFacts = ServerFacts()
    ranks: tuple[RankSample, ...] = ()
    totals: Totals = Totals()
    ttft: Histogram | None = None
    itl: Histogram | None = None
    e2e: Histogram | None = None
    sources: tuple[str, ...] = ()
    """Which endpoints this came from: metrics, loads, server_info, get_load."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be read and why."""
