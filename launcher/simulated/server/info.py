"""The JSON that describes the server: /server_info, /model_info, /v1/models, /v1/loads, /get_load."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from launcher.simulated.events import Gauges
from launcher.simulated.logtext import graph_batches
from launcher.simulated.options import EngineOptions
from launcher.simulated.server.state import ServerState

_UNUSED_GRAPHS = ("target_verify", "draft_prefill", "draft_decode", "draft_extend")


def server_info(state: ServerState, gauges: Gauges) -> dict[str, Any]:
    """Flat server args, scheduler info, internal states, version; API keys in clear, as SGLang does."""
    boot = state.boot
    shown = {**state.arguments.server_args, **_resolved(state)}
    return {
        **shown,
        "status": "ready" if state.ready else "starting",
        "max_total_num_tokens": boot.plan.capacity_tokens,
        "max_req_input_len": min(boot.options.context_len, boot.plan.capacity_tokens) - 6,
        "startup_time": _startup_time(state),
        "internal_states": [{**shown, **_internal_state(state, gauges)}],
        "version": state.arguments.version,
        "kv_events": None,
        "simulated": True,
        "simulated_preset": state.preset.name,
        "simulated_speed": state.arguments.speed,
    }


def model_info(state: ServerState) -> dict[str, Any]:
    arguments = state.arguments
    return {
        "model_path": arguments.config.model_path,
        "served_model_name": arguments.served_model_name,
        "tokenizer_path": arguments.config.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": arguments.server_args["load_format"],
        "reasoning_parser": None,
        "tool_call_parser": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": state.preset.model.model_type,
        "architectures": [state.preset.model.architecture],
        "simulated": True,
    }


def models(state: ServerState) -> dict[str, Any]:
    card = {
        "id": state.arguments.served_model_name,
        "object": "model",
        "created": int(state.started_unix_s),
        "owned_by": "sglang (simulated)",
        "root": state.arguments.served_model_name,
        "parent": None,
        "max_model_len": state.boot.options.context_len,
    }
    return {"object": "list", "data": [card]}


def loads(state: ServerState, gauges: Gauges) -> dict[str, Any]:
    """/v1/loads. As in SGLang, gen_throughput and queues.retracted are 0 unless metrics are on."""
    metrics = state.arguments.enable_metrics
    plan = state.boot.plan
    rank = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": gauges.running_requests,
        "num_waiting_reqs": gauges.queued_requests,
        "num_waiting_uncached_tokens": gauges.pending_tokens,
        "num_used_tokens": gauges.used_tokens,
        "num_total_tokens": gauges.used_tokens + gauges.pending_tokens,
        "num_active_tokens": gauges.used_tokens + gauges.pending_tokens,
        "max_total_num_tokens": plan.capacity_tokens,
        "max_running_requests": plan.max_running_requests,
        "token_usage": round(gauges.token_usage_share, 4),
        "gen_throughput": round(gauges.gen_tokens_per_s, 2) if metrics else 0.0,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": gauges.counters.prefill_computed_tokens,
        "total_prefill_busy_us": int(gauges.counters.prefill_busy_s * 1e6),
        "memory": {
            "weight_gb": round(plan.weights_gib, 3),
            "kv_cache_gb": round(plan.kv_gib, 3),
            "graph_gb": round(plan.decode_graphs_gib + plan.prefill_graphs_gib, 3),
            "token_capacity": plan.capacity_tokens,
        },
        "disaggregation": {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {
            "waiting": gauges.queued_requests,
            "grammar": 0,
            "paused": 0,
            "retracted": gauges.retracted_requests if metrics else 0,
            "prealloc_ready": 0,
        },
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": state.arguments.version,
        "accelerator": f"{state.preset.box.gpu_name} (simulated)",
        "num_accelerators": state.boot.options.tp_size,
        "loads": [rank],
        "simulated": True,
    }


def get_load(gauges: Gauges) -> list[dict[str, Any]]:
    """/get_load (<= 0.5.20)."""
    return [
        {
            "dp_rank": 0,
            "num_reqs": gauges.running_requests + gauges.queued_requests,
            "num_waiting_reqs": gauges.queued_requests,
            "num_tokens": gauges.used_tokens + gauges.pending_tokens,
            "num_pending_tokens": gauges.pending_tokens,
            "ts_tic": time.time(),
        }
    ]


def _resolved(state: ServerState) -> dict[str, Any]:
    """Arguments that SGLang fills in at start-up."""
    options, arguments = state.boot.options, state.arguments
    return {
        "tokenizer_path": arguments.config.model_path,
        "served_model_name": arguments.served_model_name,
        "mem_fraction_static": options.mem_fraction_static,
        "chunked_prefill_size": options.chunked_prefill_size,
        "page_size": options.page_size,
        "cuda_graph_config": _graph_config(options),
    }


def _graph_config(options: EngineOptions) -> dict[str, Any]:
    """The captured graphs by phase; a phase without graphs has the backend `disabled`."""
    decode = graph_batches(options.graph_max_batch)
    return {
        "decode": {
            "backend": "full" if decode else "disabled",
            "max_bs": options.graph_max_batch,
            "bs": decode,
            "tc_compiler": None,
        },
        "prefill": {
            "backend": "breakable" if options.prefill_graphs else "disabled",
            "max_bs": options.chunked_prefill_size if options.prefill_graphs else None,
            "bs": None,
            "tc_compiler": None,
        },
    }


def _startup_time(state: ServerState) -> dict[str, Any]:
    times = state.boot.times
    return {
        "load_weight": times.pool_s - times.weights_s,
        "kv_cache_allocation": times.prefill_graphs_s - times.pool_s,
        "scheduler_e2e": times.http_s - times.distributed_s,
        "cuda_graph": {
            "prefill": times.decode_graphs_s - times.prefill_graphs_s,
            "decode": times.host_pool_s - times.decode_graphs_s,
            **dict.fromkeys(_UNUSED_GRAPHS, 0.0),
        },
        "tokenizer_e2e": times.http_s,
    }


def _internal_state(state: ServerState, gauges: Gauges) -> dict[str, Any]:
    plan = state.boot.plan
    return {
        "pp_max_micro_batch_size": gauges.max_running_requests,
        "last_gen_throughput": gauges.gen_tokens_per_s,
        "memory_usage": {
            "weight": round(plan.weights_gib, 3),
            "kvcache": round(plan.kv_gib, 3),
            "startup_available": round(plan.headroom_gib, 3),
            "token_capacity": plan.capacity_tokens,
            "token_capacity_swa": None,
            "graph": {
                "prefill": round(plan.prefill_graphs_gib, 3),
                "decode": round(plan.decode_graphs_gib, 3),
                **dict.fromkeys(_UNUSED_GRAPHS, 0.0),
            },
        },
        "effective_max_running_requests_per_dp": plan.max_running_requests,
        "startup_time": _startup_time(state),
    }
