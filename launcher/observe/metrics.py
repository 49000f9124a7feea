"""/metrics as a ServerSample: every version's names and labels, and what may be added up.

One KV pool belongs to one DP rank (to the server without DP attention). Its TP and PP ranks see the same tokens and
requests, so of them one speaks: the lowest PP, then TP rank. Pools are never added here; counters are added over pools.
Tokenizer metrics (per request) have no ranks and are added over all their series. Facts: names and labels of
0.4.4-0.5.23; a gateway writes `sglang_` for `sglang:` and a `worker_addr`; `--enable-priority-scheduling` adds a
`priority` label whose empty value is the total; gauges in mode "all" carry a `pid`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from launcher.errors import Unparsable
from launcher.observe.prometheus import Exposition, Labels, parse
from launcher.observe.sample import Histogram, RankSample, ServerFacts, ServerSample, Totals

PREFIXES = ("sglang:", "sglang_")


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    """Whose KV pool a series is about."""

    worker: str
    model: str
    engine: str
    dp_rank: int


_Found = list[tuple[Labels, float]]


class Metrics:
    """SGLang's metrics of one scrape, by their names without the prefix."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def series(self, *names: str) -> _Found:
        """The finite series of the first of these metrics that the build has; NaN is "not known"."""
        for name in names:
            for prefix in PREFIXES:
                if prefix + name in self._exposition:
                    return [
                        (labels, value) for labels, value in self._exposition.get(prefix + name) if math.isfinite(value)
                    ]
        return []

    def by_pool(self, *names: str, **wanted: str) -> dict[PoolKey, float]:
        """A metric's value for each pool, told by the rank that speaks for it. `wanted`: labels that must have this
        value."""
        speakers: dict[PoolKey, tuple[tuple[int, ...], float]] = {}
        for labels, value in self.series(*names):
            if all(labels.get(name) == word for name, word in wanted.items()):
                pool, order = _pool_of(labels), _order(labels)
                known = speakers.get(pool)
                if known is None or (order, -value) < (known[0], -known[1]):
                    speakers[pool] = (order, value)
        return {pool: value for pool, (_, value) in speakers.items()}

    def over_pools(self, *names: str, **wanted: str) -> float | None:
        """A scheduler's counter, added over pools; None where the build has no such metric."""
        found = self.by_pool(*names, **wanted)
        return sum(found.values()) if found else None

    def over_series(self, *names: str) -> float | None:
        """A tokenizer's counter, added over all its series (streaming or not, custom labels)."""
        found = self.series(*names)
        return sum(value for _, value in found) if found else None

    def one(self, *names: str) -> float | None:
        """A constant, of the first pool."""
        found = self.by_pool(*names)
        return found[min(found)] if found else None

    def label(self, name: str) -> str | None:
        """The first value that a label has on a gauge that every version writes."""
        found = self.series("num_running_reqs", "token_usage", "cache_hit_rate", "gen_throughput")
        return next((labels[name] for labels, _ in found if labels.get(name)), None)

    @property
    def recognised(self) -> bool:
        return any(name.startswith(PREFIXES) for name in self._exposition.names())


def sample_from_metrics(text: str, *, ranks_per_pool: int = 1) -> ServerSample:
    """A ServerSample from the text of /metrics; texts of several nodes of one server may be joined.

    `ranks_per_pool` is needed where counters of the radix cache carry no rank: then all ranks are added up in them.
    Raises Unparsable where the text is not Prometheus', or not SGLang's.
    """
    return sample_from_exposition(parse(text), ranks_per_pool=ranks_per_pool)


def sample_from_exposition(exposition: Exposition, *, ranks_per_pool: int = 1) -> ServerSample:
    """The same from a scrape that was parsed."""
    metrics = Metrics(exposition)
    if not metrics.recognised:
        raise Unparsable("/metrics is Prometheus text, but has no SGLang metric: another program answers there")
    return ServerSample(
        taken_s=0.0,
        url="",
        facts=_facts(metrics),
        ranks=_ranks(metrics),
        totals=_totals(metrics, ranks_per_pool),
        ttft=_histogram(metrics, "time_to_first_token_seconds"),
        itl=_histogram(metrics, "inter_token_latency_seconds", "time_per_output_token_seconds"),
        e2e=_histogram(metrics, "e2e_request_latency_seconds"),
        sources=("metrics",),
    )


def _pool_of(labels: Labels) -> PoolKey:
    dp_rank = labels.get("dp_rank", "")
    return PoolKey(
        labels.get("worker_addr", ""),
        labels.get("model_name", ""),
        labels.get("engine_type", ""),
        int(dp_rank) if dp_rank.isdigit() else 0,
    )


def _order(labels: Labels) -> tuple[int, ...]:
    """Smaller speaks. A total over priorities (an empty label) before its parts."""
    ranks = (labels.get(name, "") for name in ("pp_rank", "tp_rank", "moe_ep_rank"))
    return (int(bool(labels.get("priority"))), *(int(rank) if rank.isdigit() else 0 for rank in ranks))


def _whole(value: float) -> int:
    return round(value)


_RANK_GAUGES: tuple[tuple[str, tuple[str, ...], Callable[[float], float]], ...] = (
    ("running_requests", ("num_running_reqs",), _whole),
    ("queued_requests", ("num_queue_reqs", "num_waiting_reqs"), _whole),
    ("retracted_requests", ("num_retracted_reqs",), _whole),
    ("used_tokens", ("kv_used_tokens", "num_used_tokens"), _whole),
    ("evictable_tokens", ("kv_evictable_tokens",), _whole),
    ("available_tokens", ("kv_available_tokens",), _whole),
    ("capacity_tokens", ("max_total_num_tokens",), _whole),
    ("token_usage_share", ("token_usage",), float),
    ("gen_tokens_per_s", ("gen_throughput",), float),
    ("max_running_requests", ("max_running_requests",), _whole),
    ("hicache_used_tokens", ("hicache_host_used_tokens",), _whole),
    ("hicache_total_tokens", ("hicache_host_total_tokens",), _whole),
    ("full_usage_share", ("full_token_usage",), float),
    ("swa_usage_share", ("swa_token_usage",), float),
    ("mamba_usage_share", ("mamba_usage",), float),
)
"""Field of RankSample, names of the gauge (the first that the build has), and how it is written."""


def _ranks(metrics: Metrics) -> tuple[RankSample, ...]:
    fields: dict[PoolKey, dict[str, float]] = {pool: {} for pool in metrics.by_pool("cache_hit_rate")}
    for field, names, write in _RANK_GAUGES:
        for pool, value in metrics.by_pool(*names).items():
            fields.setdefault(pool, {})[field] = write(value)
    engines = len({(pool.worker, pool.model, pool.engine) for pool in fields})
    workers = len({pool.worker for pool in fields})
    return tuple(_rank(pool, fields[pool], several=engines > workers) for pool in sorted(fields))


def _rank(pool: PoolKey, values: Mapping[str, float], *, several: bool) -> RankSample:
    """One pool's gauges. The capacity where it has no gauge (before 0.5.6) is not guessed from rounded shares.

    `several`: engines share one address (a prefill and a decode server, two models) and need a name each.
    """
    gauges = dict(values)
    parts = [gauges.get(name) for name in ("used_tokens", "evictable_tokens", "available_tokens")]
    if "capacity_tokens" not in gauges and None not in parts:
        gauges["capacity_tokens"] = sum(part for part in parts if part is not None)
    worker = " ".join(filter(None, (pool.worker, pool.engine, pool.model))) if several else pool.worker
    return RankSample(dp_rank=pool.dp_rank, worker=worker or None, **gauges)  # type: ignore[arg-type]


def _totals(metrics: Metrics, ranks_per_pool: int) -> Totals:
    return Totals(
        generation_tokens=metrics.over_series("generation_tokens_total"),
        prompt_tokens=metrics.over_series("prompt_tokens_total"),
        finished_requests=metrics.over_series("num_requests_total"),
        aborted_requests=metrics.over_series("num_aborted_requests_total", "num_aborted_requests"),
        decoded_tokens=metrics.over_pools("realtime_tokens_total", mode="decode"),
        prefill_computed_tokens=metrics.over_pools("realtime_tokens_total", mode="prefill_compute"),
        prefill_cached_tokens=metrics.over_pools("realtime_tokens_total", mode="prefill_cache"),
        cached_tokens_by_source=_by_source(metrics),
        retracted_requests=metrics.over_pools("num_retracted_requests_total", "total_retracted_reqs"),
        retracted_input_tokens=metrics.over_pools("num_retracted_input_tokens_total"),
        retracted_output_tokens=metrics.over_pools("num_retracted_output_tokens_total"),
        evicted_tokens=_cache_counter(metrics, "evicted_tokens_total", ranks_per_pool),
        load_back_tokens=_cache_counter(metrics, "load_back_tokens_total", ranks_per_pool),
        graph_decode_passes=metrics.over_pools("cuda_graph_passes_total", mode="decode_cuda_graph"),
        eager_decode_passes=metrics.over_pools("cuda_graph_passes_total", mode="decode_none"),
    )


def _by_source(metrics: Metrics) -> dict[str, float]:
    """Cached prompt tokens by where they were found; "total" where the build or the request does not tell."""
    sources: dict[str, float] = {}
    for labels, value in metrics.series("cached_tokens_total"):
        source = labels.get("cache_source") or "total"
        sources[source] = sources.get(source, 0.0) + value
    return sources


def _cache_counter(metrics: Metrics, name: str, ranks_per_pool: int) -> float | None:
    """A counter of the radix cache. Builds that give it no rank label add all ranks up in one series, and they evict
    the same tokens."""
    found = metrics.series(name)
    if not found:
        return None
    if any("tp_rank" in labels for labels, _ in found):
        return metrics.over_pools(name)
    return max(value for _, value in found) / ranks_per_pool


def _facts(metrics: Metrics) -> ServerFacts:
    graphs = [value for labels, value in metrics.series("graph_memory_usage_gb") if _order(labels)[:3] == (0, 0, 0)]
    context = metrics.one("context_len")
    return ServerFacts(
        model_name=metrics.label("model_name"),
        engine_type=metrics.label("engine_type"),
        weights_gib=metrics.one("weight_memory_usage_gb"),
        kv_cache_gib=metrics.one("kv_cache_memory_usage_gb"),
        graphs_gib=sum(graphs) if graphs else None,
        headroom_gib=metrics.one("startup_available_gpu_memory_gb"),
        context_len=None if context is None else round(context),
        simulated=metrics.one("simulated") is not None,
    )


def _histogram(metrics: Metrics, *names: str) -> Histogram | None:
    """All series of a histogram added: requests are told apart by labels (is_streaming), never twice counted."""
    buckets: dict[float, float] = {}
    for labels, value in metrics.series(*(f"{name}_bucket" for name in names)):
        bound = float(labels.get("le", "nan"))
        buckets[bound] = buckets.get(bound, 0.0) + value
    if not buckets:
        return None
    bounds = tuple(sorted(buckets))
    return Histogram(
        upper_bounds_s=bounds,
        cumulative_counts=tuple(buckets[bound] for bound in bounds),
        sum_s=_sum(metrics.series(*(f"{name}_sum" for name in names))),
        count=_sum(metrics.series(*(f"{name}_count" for name in names))),
    )


def _sum(found: Iterable[tuple[Labels, float]]) -> float:
    return sum(value for _, value in found)
