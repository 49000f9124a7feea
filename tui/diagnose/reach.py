"""Servers that do not answer, and servers that answer but do not work."""

from __future__ import annotations

from tui import format as fmt
from tui.snapshot import Finding, GpuView, Reach, ServerView, Severity, Snapshot

HUNG_AFTER_S = 20.0
"""Running requests and no token for this long: one forward step takes seconds at the very most."""
FINISH_ONLY_FACTOR = 3.0
"""Where only finished tokens are counted (before 0.5.9), silence must exceed this many E2E latencies."""


def unreachable(server: ServerView) -> Finding | None:
    """Down, stale or locked; None while a first answer is awaited."""
    problem = server.problem or "no answer yet"
    if server.reach is Reach.LOCKED:
        tries = ("pass the server's own --api-key or set KVTOP_API_KEY",)
        return Finding("needs_key", Severity.CRITICAL, "locked by an API key", problem, tries, server.url)
    if server.reach is Reach.FOREIGN:
        tries = ("give the address of the SGLang server itself (behind a router: of each worker)",)
        return Finding("foreign", Severity.CRITICAL, "answers, but not as SGLang", problem, tries, server.url)
    if server.reach is Reach.STALE:
        evidence = f"{problem}; the figures are {fmt.span(server.age_s)} old"
        return Finding("stale", Severity.WARNING, "not answering", evidence, (), server.url)
    if server.reach is Reach.DOWN:
        last = "" if server.age_s is None else f"; last answer {fmt.span(server.age_s)} ago"
        tries = ("look at the end of its log; kvtop keeps trying",)
        return Finding("down", Severity.CRITICAL, "down", problem + last, tries, server.url)
    return None


def no_server(snapshot: Snapshot) -> str:
    """Why there is no server to be seen, in a sentence."""
    study = snapshot.study
    if study is None:
        return "no SGLang server found on this machine; name one with --url"
    if study.state.value == "running":
        stage = f" ({study.stage.name})" if study.stage is not None else ""
        return f"the study is between starts{stage}: no server serves now"
    return f"the study is {study.state.value}: it runs no server"


def hung(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """It still answers (/health may say 200), but no token moves."""
    del gpus
    stalled_s = server.rates.stalled_s
    if stalled_s is None or server.reach is not Reach.UP or stalled_s < _patience_s(server):
        return None
    running = fmt.count(server.pool.running)
    evidence = f"{running} requests are running, but not one token for {fmt.span(stalled_s)}, though it answers"
    tries = ("read its log for NCCL or watchdog lines, then restart it; /health alone does not prove life",)
    return Finding("hung", Severity.CRITICAL, "hung", evidence, tries, server.url)


def _patience_s(server: ServerView) -> float:
    if server.totals.decoded_tokens is not None:
        return HUNG_AFTER_S
    e2e = server.rates.e2e
    slow_s = e2e and (e2e.p99_s or e2e.p90_s or e2e.p50_s)
    return max(60.0, FINISH_ONLY_FACTOR * slow_s) if slow_s else 300.0
