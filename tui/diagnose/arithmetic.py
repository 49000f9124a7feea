"""Capacity is arithmetic: tokens = floor((f * B - W) * 2^30 / b), so one running server tells what others
would hold.

B: GiB free before the weights; W: weights GiB; b: KV bytes per token and rank. From a server's own figures:
B = (W + KV) / f and b = KV * 2^30 / tokens. SGLang 0.5.6 to 0.5.23 size the pool this way.
"""

from __future__ import annotations

from tui.snapshot import GpuView, ServerView

GIB = 2**30


def bytes_per_token(server: ServerView) -> float | None:
    """b, of one DP rank."""
    capacity = server.ranks[0].capacity_tokens if server.ranks else None
    if server.facts.kv_cache_gib is None or not capacity:
        return None
    return server.facts.kv_cache_gib * GIB / capacity


def gib_per_hundredth(server: ServerView) -> float | None:
    """GiB of each GPU that 0.01 more mem-fraction-static takes: 0.01 * B."""
    facts = server.facts
    if not facts.mem_fraction_static or facts.weights_gib is None or facts.kv_cache_gib is None:
        return None
    return 0.01 * (facts.weights_gib + facts.kv_cache_gib) / facts.mem_fraction_static


def tokens_per_hundredth(server: ServerView) -> float | None:
    """Tokens of the whole server that 0.01 more mem-fraction-static would add."""
    taken, each = gib_per_hundredth(server), bytes_per_token(server)
    if taken is None or each is None:
        return None
    return taken * GIB / each * max(1, len(server.ranks))


def headroom_gib(server: ServerView, gpus: tuple[GpuView, ...]) -> float | None:
    """What is free on its poorest GPU now; after start-up, where no GPU is in sight."""
    free = [f / GIB for gpu in gpus if (f := gpu.sample.memory_free_bytes) is not None]
    return min(free) if free else server.facts.headroom_gib
