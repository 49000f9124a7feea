"""One look, then gone: text for people, JSON for programs. Imports no Textual."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from tui import format as fmt
from tui.panels.binds import binds_in_full
from tui.panels.gpus import gpu_rows
from tui.panels.look import Look
from tui.panels.row import Row
from tui.panels.servers import FULL_HEIGHT, server_rows
from tui.snapshot import Finding, GpuView, ServerView, Snapshot

SCHEMA_VERSION = 1


def as_text(snapshot: Snapshot, width: int, look: Look) -> str:
    """The panels of the screen as plain lines."""
    rows: list[Row] = []
    rows += binds_in_full(snapshot, width, look, 1)
    rows += gpu_rows(snapshot, width, 1 + max(1, len(snapshot.gpus)), look, 2)
    rows += server_rows(snapshot.servers, width, 1 + FULL_HEIGHT * max(1, len(snapshot.servers)), look, 3)
    if snapshot.study is not None:
        from tui.panels.study import study_rows

        rows += study_rows(snapshot, width, 6 + len(snapshot.study.trials), look, 5)
    text = "\n".join(row.text.rstrip() for row in rows) + "\n"
    return fmt.ascii_only(text) if look.ascii else text


def as_json(snapshot: Snapshot) -> str:
    """One object; null is not known. Keys are snake_case and carry their units."""
    return json.dumps(document(snapshot), separators=(", ", ": "), allow_nan=False) + "\n"


def document(snapshot: Snapshot) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "taken_unix_s": round(snapshot.taken_unix_s, 3),
        "servers": [_server(server) for server in snapshot.servers],
        "gpus": [_gpu(gpu) for gpu in snapshot.gpus],
        "gpu_problem": snapshot.gpu_problem,
        "problems": list(snapshot.problems),
        "findings": [_finding(finding) for finding in snapshot.findings],
        "study": plain(snapshot.study) if snapshot.study is not None else None,
    }


def _server(server: ServerView) -> dict[str, object]:
    return {
        "url": server.url,
        "reach": server.reach.value,
        "age_s": server.age_s,
        "problem": server.problem,
        "facts": _facts(server),
        **_named_pool(server),
        "tokens_in_flight_each": server.pool.tokens_in_flight_each,
        "rates": plain(server.rates),
        "ranks": plain(server.ranks),
        "totals": plain(server.totals),
        "gpu_indices": list(server.gpu_indices),
        "power_w": server.power_w,
        "tokens_per_joule": server.tokens_per_joule,
        "sources": list(server.sources),
        "notes": list(server.notes),
    }


def _facts(server: ServerView) -> object:
    """All null while it has never answered: the defaults of ServerFacts are those of a server that did."""
    if server.age_s is None:
        return dict.fromkeys(field.name for field in dataclasses.fields(server.facts))
    return plain(server.facts)


def _named_pool(server: ServerView) -> dict[str, object]:
    pool = server.pool
    return {
        "running_requests": pool.running,
        "queued_requests": pool.queued,
        "retracted_requests_now": pool.retracted_now,
        "max_running_requests": pool.max_running,
        "kv_used_tokens": pool.used_tokens,
        "kv_evictable_tokens": pool.evictable_tokens,
        "kv_free_tokens": pool.free_tokens,
        "kv_capacity_tokens": pool.capacity_tokens,
        "kv_usage_share": pool.usage_share,
        "server_gen_tokens_per_s": pool.gen_tokens_per_s,
        "host_used_tokens": pool.host_used_tokens,
        "host_capacity_tokens": pool.host_total_tokens,
    }


def _gpu(gpu: GpuView) -> dict[str, object]:
    sample = gpu.sample
    parts = None if gpu.parts is None else plain(gpu.parts)
    named = {f"{name}_bytes": size for name, size in parts.items()} if isinstance(parts, dict) else None
    told = plain(sample)
    assert isinstance(told, dict)
    return {**told, "server_url": gpu.server_url, "memory_parts": named}


def _finding(finding: Finding) -> dict[str, object]:
    told = plain(finding)
    assert isinstance(told, dict)
    return told


def plain(value: object) -> object:
    """Dataclasses, enums, paths and mappings as JSON values; NaN and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, StrEnum | Path):
        return str(value)
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
