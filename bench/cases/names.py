"""How the figures of `expect` are called, beside the names that the product has for them.

A name may end in what is to be made of several DP ranks (`running_total`, `token_usage_max`) or in a unit; what is left
is one of the words below, a field of a sample, or a metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.observe.sample import RankSample, ServerSample

MISSING = object()
"""No figure has that name: not the same as "not known", which is None."""

Look = Callable[[str], Any]
Combine = Callable[[Sequence[float]], float] | None
"""What is made of several ranks; None is: the first rank's figure, known or not."""


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


_COMBINED: dict[str, Combine] = {
    "total": math.fsum,
    "sum": math.fsum,
    "server": math.fsum,
    "max": max,
    "min": min,
    "mean": mean,
    "avg": mean,
    "shown": None,
    "first": None,
}
_OF_RANKS: dict[str, tuple[str, Combine]] = {
    "running": ("running_requests", math.fsum),
    "running_req": ("running_requests", math.fsum),
    "running_reqs": ("running_requests", math.fsum),
    "num_running": ("running_requests", math.fsum),
    "queued": ("queued_requests", math.fsum),
    "queue": ("queued_requests", math.fsum),
    "queue_req": ("queued_requests", math.fsum),
    "waiting": ("queued_requests", math.fsum),
    "num_waiting": ("queued_requests", math.fsum),
    "retracted_now": ("retracted_requests", math.fsum),
    "used": ("used_tokens", math.fsum),
    "used_tokens": ("used_tokens", math.fsum),
    "evictable": ("evictable_tokens", math.fsum),
    "available": ("available_tokens", math.fsum),
    "free_tokens": ("available_tokens", math.fsum),
    "capacity": ("capacity_tokens", math.fsum),
    "token_capacity": ("capacity_tokens", None),
    "max_total_num_tokens": ("capacity_tokens", None),
    "token_usage": ("token_usage_share", max),
    "usage": ("token_usage_share", max),
    "pressure": ("token_usage_share", max),
    "gen_throughput": ("gen_tokens_per_s", math.fsum),
    "last_gen_throughput": ("gen_tokens_per_s", None),
    "max_running_requests": ("max_running_requests", None),
    "effective_max_running_requests_per_dp": ("max_running_requests", None),
    "full": ("full_usage_share", max),
    "full_token_usage": ("full_usage_share", max),
    "swa": ("swa_usage_share", max),
    "swa_token_usage": ("swa_usage_share", max),
    "mamba": ("mamba_usage_share", max),
    "mamba_usage": ("mamba_usage_share", max),
    "host_used_tokens": ("hicache_used_tokens", math.fsum),
    "host_total_tokens": ("hicache_total_tokens", math.fsum),
}
"""Word -> field of RankSample, and what is made of several ranks where the name does not say."""


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


def in_sample(sample: ServerSample) -> Look:
    """A sample's figures by the cases' names, then by its own."""
    first = sample.ranks[0] if sample.ranks else RankSample()
    return first_of(
        in_mapping(_of_server(sample)),
        lambda name: _combined(name, sample.ranks),
        in_object(sample.totals, sample.facts, first, sample),
    )


def _combined(name: str, ranks: Sequence[RankSample]) -> Any:
    """`running_total`, `token_usage_max`: a figure of the ranks, combined as the name says."""
    plain = re.sub(r"_(?:tokens|reqs|requests|share|now)?$", "", name)
    for word in (name, plain):
        if word in _OF_RANKS:
            field, combine = _OF_RANKS[word]
            return _made_of(ranks, field, combine)
        head, _, tail = word.rpartition("_")
        if tail in _COMBINED and head in _OF_RANKS:
            return _made_of(ranks, _OF_RANKS[head][0], _COMBINED[tail])
    return MISSING


def _made_of(ranks: Sequence[RankSample], field: str, combine: Combine) -> float | None:
    values = [getattr(rank, field) for rank in ranks]
    if combine is None:
        return values[0] if values else None
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def _of_server(sample: ServerSample) -> dict[str, Any]:
    ranks, totals, facts = sample.ranks, sample.totals, sample.facts
    first = ranks[0] if ranks else RankSample()
    return {
        "model": facts.model_name,
        "version": facts.sglang_version,
        "dp_ranks": len(ranks),
        "dp_states": len(ranks),
        "dp_rank_list": [rank.dp_rank for rank in ranks],
        "running_by_rank": [rank.running_requests for rank in ranks],
        "token_usage_by_rank": [rank.token_usage_share for rank in ranks],
        "workers": [rank.worker for rank in ranks if rank.worker is not None],
        "binding_pool": first.binding_pool,
        "host_used_frac": _ratio(first.hicache_used_tokens, first.hicache_total_tokens),
        "hicache_usage": _ratio(first.hicache_used_tokens, first.hicache_total_tokens),
        "retracted_total": totals.retracted_requests,
        "prefill_compute_tokens": totals.prefill_computed_tokens,
        "prefill_cache_tokens": totals.prefill_cached_tokens,
        "decode_tokens": totals.decoded_tokens,
        "generation_tokens_total": totals.generation_tokens,
        "prompt_tokens_total": totals.prompt_tokens,
        "cached_tokens": sum(totals.cached_tokens_by_source.values()) if totals.cached_tokens_by_source else None,
        "weight_gb": facts.weights_gib,
        "weights_gb": facts.weights_gib,
        "kvcache_gb": facts.kv_cache_gib,
        "kv_cache_gb": facts.kv_cache_gib,
        "graph_gb": facts.graphs_gib,
        "startup_available_gb": facts.headroom_gib,
        "available_gb": facts.headroom_gib,
        "ttft_mean_s": _mean_s(sample, "ttft"),
        "itl_mean_s": _mean_s(sample, "itl"),
        "e2e_mean_s": _mean_s(sample, "e2e"),
        "ttft_count": _count(sample, "ttft"),
        "e2e_count": _count(sample, "e2e"),
    }


def _mean_s(sample: ServerSample, name: str) -> float | None:
    histogram = getattr(sample, name)
    return None if histogram is None or not histogram.count else histogram.sum_s / histogram.count


def _count(sample: ServerSample, name: str) -> float | None:
    histogram = getattr(sample, name)
    return None if histogram is None else histogram.count


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
