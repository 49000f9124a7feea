"""Rules about the KV pool on the GPU and the HiCache pool in host memory."""

from __future__ import annotations

from tui import format as fmt
from tui.diagnose.arithmetic import gib_per_hundredth, headroom_gib, tokens_per_hundredth
from tui.snapshot import Finding, GpuView, ServerView, Severity

FULL_SHARE = 0.88
"""Admission estimates keep some of the pool back: a pool fuller than this with a queue is the limit."""
PREFILL_RESERVE_GIB = 1.7
"""What a full prefill chunk of 16,384 tokens wanted on top, where servers died of it (32B dense, H200)."""
HOST_FULL_SHARE = 0.95
USELESS_HIT_SHARE = 0.02
HOT_SPREAD_SHARE = 0.30
WIDE_DTYPES = ("bfloat16", "float16")


def kv_ceiling(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Requests wait because the pool is full of the KV of those that run."""
    pool = server.pool
    each = pool.tokens_in_flight_each
    if not pool.queued or pool.usage_share is None or pool.usage_share < FULL_SHARE:
        return None
    evidence = f"pool {fmt.share(pool.usage_share)} used, {pool.running} running; {pool.queued} wait"
    if each and pool.capacity_tokens:
        fit = pool.capacity_tokens / each
        evidence = (
            f"{fmt.count(pool.capacity_tokens)} tokens ÷ {fmt.count(each)} in flight per request "
            f"≈ {fit:.0f} running; {pool.queued} wait"
        )
    if server.facts.hicache_size_gb or pool.host_total_tokens:
        evidence += "; HiCache cannot help decoding requests"
    return Finding("kv_ceiling", Severity.WARNING, "KV ceiling", evidence, _more_kv(server, gpus), server.url)


def _more_kv(server: ServerView, gpus: tuple[GpuView, ...]) -> tuple[str, ...]:
    tries = [_more_fraction(server, headroom_gib(server, gpus))]
    if server.facts.kv_cache_dtype in (*WIDE_DTYPES, None):
        tries.append("a smaller kv-cache-dtype, only if its quality is good enough for you")
    return tuple(tries)


def _more_fraction(server: ServerView, left_gib: float | None) -> str:
    """Whether there is room for more KV: a step must leave what a large prefill needs."""
    gained, taken_gib = tokens_per_hundredth(server), gib_per_hundredth(server)
    if gained is None or taken_gib is None:
        return "raise mem-fraction-static"
    if left_gib is not None and left_gib - taken_gib < PREFILL_RESERVE_GIB:
        return f"mem-fraction-static is at its end: {left_gib:.1f} GiB left, 0.01 more takes {taken_gib:.2f}"
    free = "" if left_gib is None else f", {left_gib:.1f} GiB left"
    return f"raise mem-fraction-static (+{fmt.count(gained)} tokens per 0.01{free})"


def dtype_not_asked(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """`auto` may pick FP8 from a checkpoint without a word; an explicit dtype may be replaced by a backend."""
    del gpus
    used, asked = server.facts.kv_cache_dtype, server.facts.kv_cache_dtype_asked
    if used is None or asked is None or used == asked:
        return None
    if asked == "auto" and used in WIDE_DTYPES:
        return None
    evidence = f"kv-cache-dtype {asked} was asked, {used} is in use"
    tries = ("pass --kv-cache-dtype explicitly and compare the answers' quality",)
    return Finding("dtype_not_asked", Severity.WARNING, "KV dtype", evidence, tries, server.url)


def partial_ranks(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Only some of the DP ranks can be seen."""
    del gpus
    seen, size = len(server.ranks), server.facts.dp_size or 1
    if not seen or seen >= size:
        return None
    rank = server.ranks[0]
    evidence = (
        f"its figures cover {seen} of {size} DP ranks ({fmt.rate(rank.gen_tokens_per_s)} tok/s decoding and "
        f"{fmt.count(rank.running_requests)} running there); the server's own total is not known"
    )
    tries = (
        "start it with --enable-metrics-for-all-schedulers",
        "where no series has a dp_rank label, SGLang is too old to tell",
    )
    return Finding("partial_ranks", Severity.WARNING, "part of the server", evidence, tries, server.url)


def hot_dp_rank(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """One DP rank is full while the mean looks easy."""
    del gpus
    usages = {rank.dp_rank: rank.token_usage_share for rank in server.ranks if rank.token_usage_share is not None}
    if len(usages) < 2:
        return None
    hot = max(usages, key=lambda rank: usages[rank])
    mean = sum(usages.values()) / len(usages)
    if usages[hot] < FULL_SHARE or usages[hot] - mean < HOT_SPREAD_SHARE:
        return None
    evidence = f"DP rank {hot} is {fmt.share(usages[hot])} full, the mean of {len(usages)} is {fmt.share(mean)}"
    tries = ("balance the load over DP ranks (--load-balance-method), or route without stickiness",)
    return Finding("hot_dp_rank", Severity.WARNING, "hot DP rank", evidence, tries, server.url)


def host_pool_thrash(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """The host pool is full and what comes back is evicted again."""
    del gpus
    used, total = server.pool.host_used_tokens, server.pool.host_total_tokens
    evicted, loaded = server.rates.evicted_tokens_per_s, server.rates.load_back_tokens_per_s
    if not total or used is None or used / total < HOST_FULL_SHARE or not evicted or not loaded:
        return None
    evidence = (
        f"host pool {fmt.share(used / total)} of {fmt.count(total)} tokens; "
        f"{fmt.rate(loaded)} tok/s loaded back while {fmt.rate(evicted)} tok/s are evicted"
    )
    tries = ("a larger hicache-size, if the host has the memory (and counts it once per rank)",)
    return Finding("host_pool_thrash", Severity.HINT, "host pool thrashes", evidence, tries, server.url)


def host_pool_idle(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """HiCache is on, tokens are evicted into it, and none come back: prompts share too little."""
    del gpus
    evicted, loaded = server.rates.evicted_tokens_per_s, server.rates.load_back_tokens_per_s
    host = server.rates.hit_share_by_source.get("host", 0.0)
    if not server.pool.host_total_tokens or not evicted or loaded is None or loaded > USELESS_HIT_SHARE * evicted:
        return None
    if host > USELESS_HIT_SHARE:
        return None
    evidence = f"{fmt.rate(evicted)} tok/s evicted to the host pool, {fmt.rate(loaded)} tok/s come back"
    tries = ("leave HiCache off for these prompts: it costs start-up time and PCIe traffic",)
    return Finding("host_pool_idle", Severity.HINT, "HiCache buys nothing", evidence, tries, server.url)
