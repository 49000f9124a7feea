"""/metrics: the names and labels of SGLang 0.5.17 in Prometheus text format, and `sglang:simulated`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from launcher.simulated.events import Gauges
from launcher.simulated.server.state import Histogram, ServerState

Labels = Mapping[str, str]
_GRAPH_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
_ZERO_GAUGES = (
    "num_grammar_queue_reqs", "swa_token_usage", "mamba_usage", "swa_available_tokens",
    "swa_evictable_tokens",
    "swa_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens",
    "spec_accept_length",
    "spec_accept_rate", "spec_cap_length", "spec_block_accept_length", "spec_num_steps",
    "spec_num_draft_tokens",
    "num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs", "pending_prealloc_token_usage", "utilization", "cache_hit_rate",
)  # fmt: skip


class _Text:
    """Collects families; HELP says that the number is simulated."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, series: Iterable[tuple[Labels, float]]) -> None:
        """One metric family; `series` may be empty, which leaves the family out as prometheus_client does."""
        rows = [f"sglang:{name}{_labels(labels)} {float(value)!r}" for labels, value in series]
        if rows:
            self._head(name, kind)
            self._lines += rows

    def histogram(self, name: str, series: Iterable[tuple[Labels, Histogram]]) -> None:
        rows = [row for labels, histogram in series if histogram.count for row in _buckets(name, labels, histogram)]
        if rows:
            self._head(name, "histogram")
            self._lines += rows

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _head(self, name: str, kind: str) -> None:
        self._lines.append(f"# HELP sglang:{name} {name.replace('_', ' ')} (simulated)")
        self._lines.append(f"# TYPE sglang:{name} {kind}")


def metrics_text(state: ServerState, gauges: Gauges) -> str:
    """The whole scrape."""
    model = {"model_name": state.arguments.served_model_name}
    tokenizer = {"engine_type": "unified", **model}
    scheduler = {**tokenizer, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    text = _Text()
    text.family("simulated", "gauge", [({**tokenizer, "preset": state.preset.name}, 1.0)])
    _constants(text, state, scheduler)
    _scheduler_gauges(text, gauges, scheduler)
    _scheduler_counters(text, state, gauges, scheduler)
    _tokenizer_counters(text, state, gauges, tokenizer)
    _http(text, state)
    _start_up(text, state, tokenizer)
    return text.text()


def _constants(text: _Text, state: ServerState, labels: Labels) -> None:
    plan, options = state.boot.plan, state.boot.options
    values = {
        "max_total_num_tokens": plan.capacity_tokens,
        "weight_memory_usage_gb": plan.weights_gib,
        "kv_cache_memory_usage_gb": plan.kv_gib,
        "page_size": options.page_size,
        "num_pages": plan.capacity_tokens // options.page_size,
        "context_len": options.context_len,
        "startup_available_gpu_memory_gb": plan.headroom_gib,
    }
    for name, value in values.items():
        text.family(name, "gauge", [(labels, value)])
    graphs = {"prefill": plan.prefill_graphs_gib, "decode": plan.decode_graphs_gib}
    text.family(
        "graph_memory_usage_gb",
        "gauge",
        [({**labels, "phase": phase}, graphs.get(phase, 0.0)) for phase in _GRAPH_PHASES],
    )


def _scheduler_gauges(text: _Text, gauges: Gauges, labels: Labels) -> None:
    usage = gauges.token_usage_share
    values = {
        "num_running_reqs": gauges.running_requests,
        "num_queue_reqs": gauges.queued_requests,
        "gen_throughput": gauges.gen_tokens_per_s,
        "decode_sum_seq_lens": gauges.context_tokens,
        "token_usage": round(usage, 2),
        "full_token_usage": usage,
        "num_used_tokens": gauges.used_tokens,
        "kv_available_tokens": gauges.available_tokens,
        "kv_evictable_tokens": gauges.evictable_tokens,
        "kv_used_tokens": gauges.used_tokens,
        "new_token_ratio": gauges.new_token_ratio,
        "is_cuda_graph": float(gauges.counters.eager_decode_passes == 0 and gauges.running_requests > 0),
        "fwd_occupancy": float("nan"),
    }
    for name, value in values.items():
        text.family(name, "gauge", [(labels, value)])
    for name in _ZERO_GAUGES:
        text.family(name, "gauge", [(labels, 0.0)])
    with_pid = {**labels, "pid": str(os.getpid())}
    text.family("num_retracted_reqs", "gauge", [(with_pid, gauges.retracted_requests)])
    text.family("num_paused_reqs", "gauge", [(with_pid, 0.0)])
    if gauges.host_total_tokens:
        text.family("hicache_host_used_tokens", "gauge", [(labels, gauges.host_used_tokens)])
        text.family("hicache_host_total_tokens", "gauge", [(labels, gauges.host_total_tokens)])


def _scheduler_counters(text: _Text, state: ServerState, gauges: Gauges, labels: Labels) -> None:
    totals = gauges.counters
    passes = {
        "prefill_cuda_graph": totals.graph_prefill_passes,
        "prefill_none": totals.eager_prefill_passes,
        "decode_cuda_graph": totals.graph_decode_passes,
        "decode_none": totals.eager_decode_passes,
    }
    tokens = {
        "prefill_compute": totals.prefill_computed_tokens,
        "prefill_cache": totals.prefill_cached_tokens,
        "decode": totals.decoded_tokens,
    }
    text.family("cuda_graph_passes_total", "counter", _by(labels, "mode", passes))
    text.family("realtime_tokens_total", "counter", _by(labels, "mode", tokens))
    retracted = {
        "num_retracted_requests_total": totals.retracted_requests,
        "num_retracted_input_tokens_total": totals.retracted_input_tokens,
        "num_retracted_output_tokens_total": totals.retracted_output_tokens,
    }
    for name, value in retracted.items():
        text.family(name, "counter", [(labels, value)] if value else [])
    cache = {"cache_type": "HiRadixCache" if gauges.host_total_tokens else "RadixCache"}
    text.family("evicted_tokens_total", "counter", [(cache, gauges.evicted_tokens)] if gauges.evicted_tokens else [])
    text.family(
        "load_back_tokens_total",
        "counter",
        [(cache, gauges.load_back_tokens)] if gauges.load_back_tokens else [],
    )
    text.histogram("queue_time_seconds", [(labels, state.queue)])
    if state.boot.wording.version >= (0, 5, 18):
        text.family("prefill_effective_tokens_total", "counter", _by(labels, "mode", _effective(gauges)))


def _effective(gauges: Gauges) -> dict[str, float]:
    """Prompt tokens by where they came from, retractions not counted again [>= 0.5.18]."""
    totals = gauges.counters
    cached = totals.cached_device_tokens + totals.cached_host_tokens
    return {
        "input": totals.finished_prompt_tokens - cached,
        "device_hit": totals.cached_device_tokens,
        "host_hit": totals.cached_host_tokens,
    }


def _tokenizer_counters(text: _Text, state: ServerState, gauges: Gauges, labels: Labels) -> None:
    by_stream = [
        ({**labels, "is_streaming": str(streamed).lower()}, totals)
        for streamed, totals in state.finished.items()
        if totals.requests
    ]
    text.family("prompt_tokens_total", "counter", [(key, totals.prompt_tokens) for key, totals in by_stream])
    text.family("generation_tokens_total", "counter", [(key, totals.generation_tokens) for key, totals in by_stream])
    text.family("num_requests_total", "counter", [(key, totals.requests) for key, totals in by_stream])
    aborted = gauges.counters.aborted_requests
    text.family("num_aborted_requests_total", "counter", [(labels, aborted)] if aborted else [])
    cached = {"device": gauges.counters.cached_device_tokens, "host": gauges.counters.cached_host_tokens}
    text.family("cached_tokens_total", "counter", _by(labels, "cache_source", cached))
    text.histogram("time_to_first_token_seconds", [(key, totals.ttft) for key, totals in by_stream])
    text.histogram("e2e_request_latency_seconds", [(key, totals.e2e) for key, totals in by_stream])
    text.histogram("inter_token_latency_seconds", [(labels, state.itl)])
    text.histogram("prompt_tokens_histogram", [(labels, state.prompt_lengths)])
    text.histogram("generation_tokens_histogram", [(labels, state.answer_lengths)])


def _http(text: _Text, state: ServerState) -> None:
    requests = [({"endpoint": path, "method": method}, n) for (path, method), n in state.http_requests.items()]
    active = [({"endpoint": path, "method": method}, n) for (path, method), n in state.http_active.items()]
    responses = [
        ({"endpoint": path, "method": method, "status_code": str(status)}, n)
        for (path, method, status), n in state.http_responses.items()
    ]
    text.family("http_requests_total", "counter", requests)
    text.family("http_responses_total", "counter", responses)
    text.family("http_requests_active", "gauge", active)


def _start_up(text: _Text, state: ServerState, labels: Labels) -> None:
    times = state.boot.times
    phases = {
        "load_weight": times.pool_s - times.weights_s,
        "kv_cache_allocation": times.prefill_graphs_s - times.pool_s,
        "scheduler_e2e": times.http_s - times.distributed_s,
        "tokenizer_e2e": times.http_s,
    }
    graphs = {
        "prefill": times.decode_graphs_s - times.prefill_graphs_s,
        "decode": times.host_pool_s - times.decode_graphs_s,
    }
    text.family("startup_time_seconds", "gauge", [({**labels, "phase": key}, value) for key, value in phases.items()])
    text.family(
        "startup_cuda_graph_time_seconds",
        "gauge",
        [({**labels, "phase": phase}, graphs.get(phase, 0.0)) for phase in _GRAPH_PHASES],
    )


def _by(labels: Labels, key: str, values: Mapping[str, float]) -> Iterator[tuple[Labels, float]]:
    """One series per value that has ever been counted."""
    return (({**labels, key: name}, value) for name, value in values.items() if value)


def _buckets(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    bounds = [
        *(f"{bound:g}" if bound != int(bound) else f"{bound:.1f}" for bound in histogram.bounds),
        "+Inf",
    ]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield f"sglang:{name}_bucket{_labels({**labels, 'le': bound})} {count!r}"
    yield f"sglang:{name}_sum{_labels(labels)} {histogram.total!r}"
    yield f"sglang:{name}_count{_labels(labels)} {histogram.count!r}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
