"""How the figures of `expect` are called, beside the names that the product has for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from launcher.observe.sample import RankSample, ServerSample

MISSING = object()
"""No figure has that name: not the same as "not known", which is None."""

Look = Callable[[str], Any]


def is_sentence(value: Any) -> bool:
    """Words of a person, and not a figure or a name."""
    return isinstance(value, str) and (" " in value or value.startswith("--"))


def first_of(*looks: Look) -> Look:
    """Look a name up in one place after the other."""

    def look(name: str) -> Any:
        return next((found for place in looks if (found := place(name)) is not MISSING), MISSING)

    return look


def in_mapping(figures: Mapping[str, Any]) -> Look:
    return lambda name: figures.get(name, MISSING)


def in_object(*things: Any) -> Look:
    """Look a name up among the attributes of frozen samples."""
    return lambda name: next((getattr(thing, name) for thing in things if hasattr(thing, name)), MISSING)


def sample_figures(sample: ServerSample) -> dict[str, Any]:
    """A sample's figures by the cases' names: totals over DP ranks where that is right, the fullest rank's usage."""
    ranks, totals, facts = sample.ranks, sample.totals, sample.facts
    first = ranks[0] if ranks else RankSample()
    usages = _values(ranks, "token_usage_share")
    running, queued = _sum(ranks, "running_requests"), _sum(ranks, "queued_requests")
    used, capacity = _sum(ranks, "used_tokens"), _sum(ranks, "capacity_tokens")
    rate = _sum(ranks, "gen_tokens_per_s")
    return {
        "model": facts.model_name,
        "version": facts.sglang_version,
        "engine_type": facts.engine_type,
        "running": running,
        "running_total": running,
        "queued": queued,
        "queued_total": queued,
        "used_tokens": used,
        "used_tokens_total": used,
        "capacity": capacity,
        "capacity_total": capacity,
        "max_total_num_tokens": first.capacity_tokens,
        "max_running_requests": first.max_running_requests,
        "retracted_now_total": _sum(ranks, "retracted_requests"),
        "retracted_total": totals.retracted_requests,
        "token_usage": max(usages, default=None),
        "token_usage_max": max(usages, default=None),
        "token_usage_mean": sum(usages) / len(usages) if usages else None,
        "token_usage_min": min(usages, default=None),
        "pressure": max(usages, default=None),
        "gen_throughput": rate,
        "gen_throughput_total": rate,
        "gen_throughput_server": rate,
        "gen_throughput_shown": first.gen_tokens_per_s,
        "last_gen_throughput": first.gen_tokens_per_s,
        "dp_ranks": len(ranks),
        "dp_states": len(ranks),
        "workers": [rank.worker for rank in ranks if rank.worker is not None],
        "prefill_compute_tokens": totals.prefill_computed_tokens,
        "prefill_cache_tokens": totals.prefill_cached_tokens,
        "decode_tokens": totals.decoded_tokens,
        "full": first.full_usage_share,
        "swa": first.swa_usage_share,
        "mamba": first.mamba_usage_share,
        "binding_pool": first.binding_pool,
        "host_used_tokens": first.hicache_used_tokens,
        "host_total_tokens": first.hicache_total_tokens,
        "host_used_frac": _ratio(first.hicache_used_tokens, first.hicache_total_tokens),
        "weight_gb": facts.weights_gib,
        "weights_gb": facts.weights_gib,
        "kvcache_gb": facts.kv_cache_gib,
        "kv_cache_gb": facts.kv_cache_gib,
        "graph_gb": facts.graphs_gib,
        "startup_available_gb": facts.headroom_gib,
    }


def _values(ranks: tuple[RankSample, ...], field: str) -> list[float]:
    return [value for rank in ranks if (value := getattr(rank, field)) is not None]


def _sum(ranks: tuple[RankSample, ...], field: str) -> float | None:
    values = _values(ranks, field)
    return math.fsum(values) if values else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
