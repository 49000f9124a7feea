"""/server_info as a ServerSample: what a server was started with, and what each DP rank's scheduler says of itself.

Up to 0.5.5 it is /get_server_info; 0.5.6-0.5.23 have both. `memory_usage` is of TP rank 0 of each DP rank, in GiB.
The answer holds API keys in clear text: nothing of it is kept but what is named here.
"""

from __future__ import annotations

from launcher.dtype import normalize_dtype
from launcher.errors import Unparsable, UsageError
from launcher.observe.payload import Payload, number, rows, section, text, whole
from launcher.observe.sample import RankSample, ServerFacts, ServerSample


def sample_from_server_info(answer: object) -> ServerSample:
    """From /server_info. Raises Unparsable where it is not what SGLang answers."""
    if not isinstance(answer, dict) or not ({"internal_states", "model_path", "version", "tp_size"} & set(answer)):
        raise Unparsable("/server_info does not answer with server arguments")
    states = rows(answer.get("internal_states"))
    return ServerSample(
        taken_s=0.0,
        url="",
        facts=_facts(answer, states[0] if states else {}),
        ranks=tuple(_rank(answer, state, place) for place, state in enumerate(states or [{}])),
        sources=("server_info",),
    )


def _facts(info: Payload, state: Payload) -> ServerFacts:
    memory = section(state, "memory_usage")
    return ServerFacts(
        sglang_version=text(info, "version"),
        model_name=text(info, "served_model_name", "model_path"),
        model_path=text(info, "model_path"),
        kv_cache_dtype=_dtype(text(state, "kv_cache_dtype")) or _dtype(text(info, "kv_cache_dtype")),
        kv_cache_dtype_asked=text(info, "kv_cache_dtype"),
        mem_fraction_static=number(info, "mem_fraction_static"),
        tp_size=whole(info, "tp_size"),
        dp_size=whole(info, "dp_size"),
        weights_gib=number(memory, "weight"),
        kv_cache_gib=number(memory, "kvcache"),
        graphs_gib=_graphs_gib(memory),
        headroom_gib=number(memory, "startup_available"),
        context_len=whole(info, "context_length"),
        chunked_prefill_size=whole(info, "chunked_prefill_size"),
        hicache_size_gb=whole(info, "hicache_size") if info.get("enable_hierarchical_cache") is True else None,
        engine_type=_engine_type(info),
        simulated=info.get("simulated") is True,
        graph_max_batch=_graph_max_batch(info),
        schedule_conservativeness=number(info, "schedule_conservativeness"),
        ranks_per_pool=_ranks_per_pool(info),
        clock_speed=number(info, "simulated_speed") or 1.0,
    )


def _rank(info: Payload, state: Payload, place: int) -> RankSample:
    memory = section(state, "memory_usage")
    capacity = whole(memory, "token_capacity")
    return RankSample(
        dp_rank=place,
        capacity_tokens=whole(info, "max_total_num_tokens") if capacity is None else capacity,
        gen_tokens_per_s=number(state, "last_gen_throughput"),
        max_running_requests=whole(state, "effective_max_running_requests_per_dp"),
    )


def _dtype(name: str | None) -> str | None:
    """A dtype that is named is in use; `auto` may have become anything."""
    try:
        return None if name is None else normalize_dtype(name)
    except UsageError:
        return None


def _graphs_gib(memory: Payload) -> float | None:
    """`cuda_graph` in 0.4.10, `graph` later, and from 0.5.17 a figure per phase."""
    phases = section(memory, "graph")
    found = [number(phases, phase) for phase in phases]
    if found:
        return sum(value for value in found if value is not None)
    return number(memory, "graph", "cuda_graph")


def _graph_max_batch(info: Payload) -> int | None:
    """0 where decode graphs are off. `cuda_graph_config` from 0.5.14, flags of their own before."""
    if info.get("disable_cuda_graph") is True:
        return 0
    decode = section(section(info, "cuda_graph_config"), "decode")
    if text(decode, "backend") == "disabled":
        return 0
    return whole(decode, "max_bs") or whole(info, "cuda_graph_max_bs_decode", "cuda_graph_max_bs")


def _engine_type(info: Payload) -> str | None:
    """`disaggregation_mode`: "null" is one server for prefill and decode."""
    mode = text(info, "disaggregation_mode")
    return "unified" if mode == "null" else mode


def _ranks_per_pool(info: Payload) -> int | None:
    tp_size, pp_size = whole(info, "tp_size"), whole(info, "pp_size") or 1
    if tp_size is None:
        return None
    dp_size = (whole(info, "dp_size") or 1) if info.get("enable_dp_attention") is True else 1
    return max(1, tp_size * pp_size // dp_size)
