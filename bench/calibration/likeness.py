"""How alike two servers answer: the shapes of their JSON, metrics and log lines, key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SERIES = re.compile(r"^([\w:]+)(?:\{(.*)\})? ")
_LABEL = re.compile(r'(\w+)="')
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
LOG_LINES = (
    "Init torch distributed begin",
    "Init torch distributed ends",
    "Load weight begin",
    "Load weight end",
    "KV Cache is allocated",
    "Memory pool end",
    "max_total_num_tokens=",
    "Allocating kv hierarchical KV host pool",
    "Tree cache initialized",
    "The server is fired up",
    "Prefill batch",
    "Decode batch",
    "KV cache pool is full",
    "SIGTERM received",
    "Gracefully exiting",
)
"""How the lines begin that kvtune reads."""


def json_shape(value: Any, path: str = "") -> dict[str, str]:
    """Every path of a JSON value with its kind: string, number, bool, null; list elements count as one."""
    if isinstance(value, dict) and value:
        parts = [json_shape(item, f"{path}.{key}" if path else key) for key, item in value.items()]
        return {key: kind for part in parts for key, kind in part.items()}
    if isinstance(value, list) and value:
        return json_shape(value[0], f"{path}[]")
    return {path: _kind(value)}


def _kind(value: Any) -> str:
    if value is None or value in ({}, []):
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "string"


def clashes(real: dict[str, str], simulated: dict[str, str]) -> set[str]:
    """Paths that both have, with different kinds; null goes with everything."""
    shared = real.keys() & simulated.keys()
    return {path for path in shared if len({real[path], simulated[path]} - {"null"}) > 1}


def metric_shapes(text: str) -> set[str]:
    """Metric names with their sorted label names: `sglang:gen_throughput{engine_type,model_name}`."""
    found = (_SERIES.match(line) for line in text.splitlines() if not line.startswith("#"))
    return {f"{match[1]}{{{','.join(sorted(_LABEL.findall(match[2] or '')))}}}" for match in found if match}


def metric_types(text: str) -> dict[str, str]:
    """`# TYPE` by metric name."""
    words = (line.split() for line in text.splitlines() if line.startswith("# TYPE "))
    return {name: kind for _, _, name, kind in words}


def line_shapes(log: str) -> dict[str, set[str]]:
    """The known lines of a log with every number and list replaced, by how they begin."""
    shapes: dict[str, set[str]] = {}
    for line in log.splitlines():
        text = _STAMP.sub("", line)
        begin = next((begin for begin in LOG_LINES if text.startswith(begin)), None)
        if begin is not None and text != line:
            shapes.setdefault(begin, set()).add(_shape(text))
    return shapes


def _shape(text: str) -> str:
    text = re.sub(r"\[[^\]]*\]", "[]", text)
    text = re.sub(r"\b(?:torch\.\w+|True|False|\w+ForCausalLM|\w*Cache)\b", "X", text)
    return _NUMBER.sub("#", text)


def stream_events(text: str) -> Iterator[Any]:
    """The JSON of each event of a server-sent stream."""
    for line in text.splitlines():
        if line.startswith("data: ") and "[DONE]" not in line:
            yield json.loads(line.removeprefix("data: "))
