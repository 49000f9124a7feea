"""The milestones of a start-up, as SGLang logs them. Each says how far a rank has come, and most say what is free.

Wordings of 0.4.10-0.5.23; SGLang's "GB" is GiB here, except for the host pool, where it is 10^9 bytes.
"""

from __future__ import annotations

import re
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
    """One step reached by one rank."""

    step: Step
    rank: Rank
    stamp_s: float | None
    facts: dict[str, float] = field(default_factory=dict)
    """The line's figures. Those that every version has are called `available_gib`, `used_gib`, `took_s`, `tokens`,
    `kv_cache_gib`, `host_gb`, `mem_fraction` and `capacity_tokens`; the others as the line has them, in snake case."""
    words: dict[str, str] = field(default_factory=dict)


_PAIR = re.compile(r"(?P<name>#?[A-Za-z][\w ]*?)\s?(?:=|: )\s?(?P<value>-?\d+(?:\.\d+)?)(?![\w.])")
_NAMES = {
    "avail_mem": "available_gib",
    "available_gpu_mem": "available_gib",
    "available_cpu_mem": "available_gib",
    "mem_usage": "used_gib",
    "elapsed": "took_s",
    "time_elapsed": "took_s",
    "max_total_num_tokens": "capacity_tokens",
}
"""Names of figures across versions and devices."""
_HOST_GB = re.compile(r"(\d+(?:\.\d+)?) GB host memory")
_HOST_TOKENS = re.compile(r"host pool: (\d+) tokens")
_MEM_FRACTION = re.compile(r"\bmem[-_]fraction[-_]static['\"]?\s*[=:]\s*(\d+(?:\.\d+)?)")
_SIZE = re.compile(r"\b(?:K|V|KV|K/V)?\s?size: (\d+(?:\.\d+)?) GB")
_GRAPH_SIZES = re.compile(r"decode.*\bbs=\[([\d, ]+)\]")
_DTYPE = re.compile(r"dtype: ?(torch\.\w+)")

_FORMS = (
    (Step.ARGUMENTS, re.compile(r"^server_args=")),
    (Step.DISTRIBUTED, re.compile(r"^Init (?:torch distributed|parallel) (?:begin|ends)")),
    (Step.WEIGHTS_BEGIN, re.compile(r"^Load weight begin")),
    (Step.WEIGHTS_END, re.compile(r"^Load weight end")),
    (Step.KV_CACHE, re.compile(r"KV Cache is allocated|^Using KV cache dtype")),
    (Step.POOL_END, re.compile(r"^Memory pool end")),
    (Step.GRAPHS_BEGIN, re.compile(r"^Capture .*graph begin", re.IGNORECASE)),
    (Step.GRAPHS_END, re.compile(r"^Capture .*graph end", re.IGNORECASE)),
    (Step.SUMMARY, re.compile(r"\bmax_total_num_tokens=\d+, ")),
    (Step.HOST_POOL, re.compile(r"^Allocating .*host memory", re.IGNORECASE)),
    (Step.CACHE_READY, re.compile(r"^Tree cache initialized")),
    (Step.HTTP, re.compile(r"^INFO:\s+(?:Application startup complete|Uvicorn running)")),
    (Step.READY, re.compile(r"The server is fired up and ready to roll")),
    (Step.STOPPING, re.compile(r"^SIGTERM received|^Gracefully exiting")),
)
_HINT = re.compile(
    r"server_args|Init |Load weight|KV [Cc]ache|Memory pool|[Cc]apture|max_total_num_tokens=|Allocating|Tree cache"
    r"|INFO:|fired up|SIGTERM|Gracefully"
)


def read_milestone(line: LogLine) -> Milestone | None:
    """The milestone that this line is, or None."""
    if _HINT.search(line.text, 0, 200) is None:
        return None
    for step, pattern in _FORMS:
        if pattern.search(line.text):
            dtype = _DTYPE.search(line.text) if step is Step.KV_CACHE else None
            return Milestone(
                step, line.rank, line.stamp_s, _facts(step, line.text), {"dtype": dtype[1]} if dtype else {}
            )
    return None


def _facts(step: Step, text: str) -> dict[str, float]:
    """The figures of a line by name; of the long list of arguments only the one that matters."""
    if step is Step.ARGUMENTS:
        fraction = _MEM_FRACTION.search(text)
        return {"mem_fraction": float(fraction[1])} if fraction else {}
    facts = {_name(pair["name"]): float(pair["value"]) for pair in _PAIR.finditer(text)}
    if step is Step.KV_CACHE and (sizes := _SIZE.findall(text)):
        facts["kv_cache_gib"] = sum(map(float, sizes))
    if sizes_of_graphs := _GRAPH_SIZES.search(text):
        facts["graph_max_batch"] = max(map(float, sizes_of_graphs[1].split(",")))
    if host := _HOST_GB.search(text):
        facts["host_gb"] = float(host[1])
    if host_tokens := _HOST_TOKENS.search(text):
        facts["host_tokens"] = float(host_tokens[1])
    return facts


def _name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower().lstrip("#")).strip("_")
    return _NAMES.get(plain, plain)
