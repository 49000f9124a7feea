"""/v1/loads (0.5.9 and later) and /get_load (up to 0.5.20) as a ServerSample: what there is without metrics."""

from __future__ import annotations

from launcher.errors import Unparsable
from launcher.observe.payload import Payload, number, rows, section, text, whole
from launcher.observe.sample import RankSample, ServerFacts, ServerSample


def sample_from_loads(answer: object) -> ServerSample:
    """From /v1/loads: one entry per DP rank, live without metrics except for gen rate and retractions.

    Raises Unparsable where it is not what SGLang answers.
    """
    loads = rows(answer.get("loads")) if isinstance(answer, dict) else []
    if not isinstance(answer, dict) or not loads:
        raise Unparsable("/v1/loads does not answer with loads")
    memory = section(loads[0], "memory")
    return ServerSample(
        taken_s=0.0,
        url="",
        facts=ServerFacts(
            sglang_version=text(answer, "version"),
            weights_gib=number(memory, "weight_gb"),
            kv_cache_gib=number(memory, "kv_cache_gb"),
            graphs_gib=number(memory, "graph_gb"),
            simulated=answer.get("simulated") is True,
        ),
        ranks=tuple(_rank(load, place) for place, load in enumerate(loads)),
        sources=("loads",),
    )


def _rank(load: Payload, place: int) -> RankSample:
    running = whole(load, "num_running_reqs")
    return RankSample(
        dp_rank=_or(whole(load, "dp_rank"), place),
        running_requests=running,
        queued_requests=whole(load, "num_waiting_reqs"),
        retracted_requests=whole(section(load, "queues"), "retracted") or None,
        used_tokens=whole(load, "num_used_tokens"),
        capacity_tokens=whole(load, "max_total_num_tokens"),
        token_usage_share=number(load, "token_usage"),
        gen_tokens_per_s=_told(number(load, "gen_throughput"), running),
        max_running_requests=whole(load, "max_running_requests"),
    )


def _told(rate: float | None, running: int | None) -> float | None:
    """Statistics are filled only with --enable-metrics: 0 beside running requests means "not told", not 0."""
    return None if rate == 0 and running != 0 else rate


def sample_from_get_load(answer: object) -> ServerSample:
    """From /get_load: a list per DP rank, or 0.4.10's {"load": tokens}, which says next to nothing.

    Raises Unparsable where it is not what SGLang answers.
    """
    loads = rows(answer)
    if isinstance(answer, dict) and number(answer, "load") is not None:
        return ServerSample(taken_s=0.0, url="", ranks=(RankSample(),), sources=("get_load",))
    if not loads:
        raise Unparsable("/get_load does not answer with loads")
    ranks = tuple(_old_rank(load, place) for place, load in enumerate(loads))
    return ServerSample(taken_s=0.0, url="", ranks=ranks, sources=("get_load",))


def _old_rank(load: Payload, place: int) -> RankSample:
    """`num_reqs` counts the waiting ones too, and `num_tokens` theirs."""
    everything, queued = whole(load, "num_reqs"), whole(load, "num_waiting_reqs")
    tokens, pending = whole(load, "num_tokens"), whole(load, "num_pending_tokens")
    return RankSample(
        dp_rank=_or(whole(load, "dp_rank"), place),
        running_requests=None if everything is None or queued is None else everything - queued,
        queued_requests=queued,
        used_tokens=None if tokens is None or pending is None else tokens - pending,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
