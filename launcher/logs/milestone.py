"""The milestones of a start-up, as SGLang logs them. Each says how far a rank has come, and most say what is free.

Wordings of 0.4.10-0.5.23; SGLang's "GB" is GiB here, except for the host pool, where it is 10^9 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from launcher.failure import Stage
from launcher.logs.line import LogLine, Rank


class Step(StrEnum):
    """What was reached, in the order of a start-up."""

    ARGUMENTS = "arguments"
    DISTRIBUTED = "distributed"
    WEIGHTS_BEGIN = "weights_begin"
    WEIGHTS_END = "weights_end"
    KV_CACHE = "kv_cache"
    POOL_END = "pool_end"
    GRAPHS_BEGIN = "graphs_begin"
    GRAPHS_END = "graphs_end"
    SUMMARY = "summary"
    HOST_POOL = "host_pool"
    CACHE_READY = "cache_ready"
    HTTP = "http"
    READY = "ready"
    STOPPING = "stopping"


FOLLOWED_BY = {
    Step.ARGUMENTS: Stage.LAUNCH,
    Step.DISTRIBUTED: Stage.LAUNCH,
    Step.WEIGHTS_BEGIN: Stage.WEIGHTS,
    Step.WEIGHTS_END: Stage.KV_POOL,
    Step.KV_CACHE: Stage.KV_POOL,
    Step.POOL_END: Stage.GRAPH_CAPTURE,
    Step.GRAPHS_BEGIN: Stage.GRAPH_CAPTURE,
    Step.GRAPHS_END: Stage.GRAPH_CAPTURE,
    Step.SUMMARY: Stage.WARM_UP,
    Step.HOST_POOL: Stage.HOST_POOL,
    Step.CACHE_READY: Stage.WARM_UP,
    Step.HTTP: Stage.WARM_UP,
    Step.READY: Stage.FIRST_PREFILL,
    Step.STOPPING: Stage.SHUTDOWN,
}
"""The stage that a server is in once it has reached a step."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """One step reached by one rank. `facts` hold the line's figures under their names here, units included."""

    step: Step
    rank: Rank
    stamp_s: float | None
    facts: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Form:
    step: Step
    pattern: re.Pattern[str]
    facts: Callable[[str], dict[str, float]]


_NUMBERS = {
    "available_gib": re.compile(r"(?:avail mem|available_(?:gpu|cpu|\w+)_mem)=\s*(-?[\d.]+)"),
    "used_gib": re.compile(r"mem usage=\s*(-?[\d.]+)"),
    "took_s": re.compile(r"(?:elapsed=|Time elapsed: )\s*([\d.]+)"),
    "tokens": re.compile(r"#tokens: (\d+)"),
    "capacity_tokens": re.compile(r"\bmax_total_num_tokens=(\d+)"),
    "chunked_prefill_size": re.compile(r"\bchunked_prefill_size=(-?\d+)"),
    "max_running_requests": re.compile(r"\bmax_running_requests=(\d+)"),
    "context_len": re.compile(r"\bcontext_len=(\d+)"),
    "host_gb": re.compile(r"([\d.]+) GB host memory"),
    "mem_fraction": re.compile(r"\bmem[-_]fraction[-_]static['\"]?\s*[=:]\s*([\d.]+)"),
}
_SIZE = re.compile(r"\b(?:K|V|KV|K/V)?\s?size: ([\d.]+) GB")
_DTYPE = re.compile(r"dtype: ?(torch\.\w+)")


def _numbers(*names: str) -> Callable[[str], dict[str, float]]:
    def read(text: str) -> dict[str, float]:
        found = {name: _NUMBERS[name].search(text) for name in names}
        return {name: float(match[1]) for name, match in found.items() if match is not None}

    return read


def _kv_cache(text: str) -> dict[str, float]:
    sizes = [float(size) for size in _SIZE.findall(text)]
    return _numbers("tokens")(text) | ({"kv_cache_gib": sum(sizes)} if sizes else {})


_FORMS = (
    _Form(Step.ARGUMENTS, re.compile(r"^server_args="), _numbers("mem_fraction")),
    _Form(Step.DISTRIBUTED, re.compile(r"^Init (?:torch distributed|parallel) begin"), _numbers()),
    _Form(Step.DISTRIBUTED, re.compile(r"^Init (?:torch distributed|parallel) ends"), _numbers("took_s", "used_gib")),
    _Form(Step.WEIGHTS_BEGIN, re.compile(r"^Load weight begin"), _numbers("available_gib")),
    _Form(Step.WEIGHTS_END, re.compile(r"^Load weight end"), _numbers("available_gib", "used_gib", "took_s")),
    _Form(Step.KV_CACHE, re.compile(r"KV Cache is allocated|^Using KV cache dtype"), _kv_cache),
    _Form(Step.POOL_END, re.compile(r"^Memory pool end"), _numbers("available_gib")),
    _Form(Step.GRAPHS_BEGIN, re.compile(r"^Capture .*graph begin", re.I), _numbers("available_gib")),
    _Form(Step.GRAPHS_END, re.compile(r"^Capture .*graph end", re.I), _numbers("available_gib", "used_gib", "took_s")),
    _Form(
        Step.SUMMARY,
        re.compile(r"\bmax_total_num_tokens=\d+, "),
        _numbers("capacity_tokens", "chunked_prefill_size", "max_running_requests", "context_len", "available_gib"),
    ),
    _Form(Step.HOST_POOL, re.compile(r"^Allocating .*host memory", re.I), _numbers("host_gb")),
    _Form(Step.CACHE_READY, re.compile(r"^Tree cache initialized"), _numbers()),
    _Form(Step.HTTP, re.compile(r"^INFO:\s+(?:Application startup complete|Uvicorn running)"), _numbers()),
    _Form(Step.READY, re.compile(r"The server is fired up and ready to roll"), _numbers()),
    _Form(Step.STOPPING, re.compile(r"^SIGTERM received|^Gracefully exiting"), _numbers()),
)
_HINT = re.compile(
    r"server_args|Init |Load weight|KV [Cc]ache|Memory pool|[Cc]apture|max_total_num_tokens=|Allocating|Tree cache"
    r"|INFO:|fired up|SIGTERM|Gracefully"
)


def read_milestone(line: LogLine) -> Milestone | None:
    """The milestone that this line is, or None."""
    if _HINT.search(line.text, 0, 200) is None:
        return None
    for form in _FORMS:
        if form.pattern.search(line.text):
            dtype = _DTYPE.search(line.text) if form.step is Step.KV_CACHE else None
            words = {"dtype": dtype[1]} if dtype else {}
            return Milestone(form.step, line.rank, line.stamp_s, form.facts(line.text), words)
    return None
