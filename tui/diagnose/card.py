"""The diagnosis as a card of plain text, to paste into a ticket or a chat."""

from __future__ import annotations

import textwrap
import time

from tui import format as fmt
from tui.diagnose.reach import no_server
from tui.snapshot import Finding, ServerView, Snapshot

WIDTH = 78


def card(snapshot: Snapshot, *, ascii_only: bool = False) -> str:
    """What binds on every server, with the figures it rests on."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.taken_unix_s))
    lines = [f"kvtop diagnosis, {stamp}"]
    for server in snapshot.servers:
        lines += ["", _headline(server), *_figures(server)]
        lines += [line for finding in snapshot.findings_of(server.url) for line in _finding(finding)]
    rest = [finding for finding in snapshot.findings if finding.url is None]
    lines += ["", *(line for finding in rest for line in _finding(finding))] if rest else []
    if not snapshot.servers:
        lines += ["", no_server(snapshot)]
    text = "\n".join(lines) + "\n"
    return fmt.ascii_only(text) if ascii_only else text


def _headline(server: ServerView) -> str:
    facts = server.facts
    parts = [server.url, facts.model_name, _version(server), _tp(server), _memory(server)]
    return " · ".join(part for part in parts if part)


def _version(server: ServerView) -> str | None:
    version = server.facts.sglang_version
    told = f"SGLang {version}" if version else None
    return f"{told or ''} (simulated)".strip() if server.facts.simulated else told


def _tp(server: ServerView) -> str | None:
    facts = server.facts
    sizes = [
        f"tp {facts.tp_size}" if facts.tp_size else "",
        f"dp {facts.dp_size}" if (facts.dp_size or 1) > 1 else "",
    ]
    return " ".join(size for size in sizes if size) or None


def _memory(server: ServerView) -> str | None:
    facts = server.facts
    parts = [
        f"mem-fraction {facts.mem_fraction_static:g}" if facts.mem_fraction_static else "",
        facts.kv_cache_dtype or facts.kv_cache_dtype_asked or "",
        f"HiCache {facts.hicache_size_gb} GB/rank" if facts.hicache_size_gb else "",
    ]
    return " ".join(part for part in parts if part) or None


def _figures(server: ServerView) -> list[str]:
    pool, rates = server.pool, server.rates
    gen = rates.gen_tokens_per_s if rates.gen_tokens_per_s is not None else pool.gen_tokens_per_s
    over = f" (over {fmt.span(rates.completion_window_s)})" if rates.completion_window_s else ""
    finished = f"{fmt.rate(rates.completion_tokens_per_s)} tok/s, {fmt.rate(rates.responses_per_s)} resp/s"
    requests = f"  running {fmt.count(pool.running)} · waiting {fmt.count(pool.queued)}"
    used, capacity = fmt.count(pool.used_tokens), fmt.count(pool.capacity_tokens)
    return [
        f"  finished {finished}{over} · decoding {fmt.rate(gen)} tok/s",
        f"{requests} · KV {used} of {capacity} tokens ({fmt.share(pool.usage_share)}),"
        f" {fmt.count(pool.evictable_tokens)} evictable",
    ]


def _finding(finding: Finding) -> list[str]:
    lines = textwrap.wrap(
        f"{finding.title}: {finding.evidence}",
        WIDTH,
        initial_indent=f"  [{finding.severity.value}] ",
        subsequent_indent="    ",
    )
    for attempt in finding.tries:
        lines += textwrap.wrap(attempt, WIDTH, initial_indent="    try: ", subsequent_indent="      ")
    return lines
