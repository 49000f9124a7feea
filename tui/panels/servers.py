"""Servers panel: what gets finished, who waits, how full the KV pool is."""

from __future__ import annotations

from tui import format as fmt
from tui.panels.graph import stacked
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, Span, clip, clip_end, title_row
from tui.snapshot import Quantiles, Reach, ServerView, Snapshot

FULL_HEIGHT = 5
HOST_BESIDE_BAR = 140
"""Columns from which the host pool stands beside the device's."""
BADGE_ROLE: dict[Reach, Role] = {
    Reach.UP: "good",
    Reach.STALE: "warn",
    Reach.DOWN: "bad",
    Reach.LOCKED: "bad",
    Reach.FOREIGN: "bad",
    Reach.CONNECTING: "dim",
}


def server_rows(
    servers: tuple[ServerView, ...],
    width: int,
    height: int,
    look: Look,
    number: int,
    selected: str | None = None,
) -> list[Row]:
    """The panel in at most `height` rows: five lines a server if they fit, else two, else one."""
    rows = [title_row(number, "servers", width, look, "enter: ranks and facts" if servers and look.keys else "")]
    if not servers:
        return [*rows, Pen(width).gap(2).put("none", "dim").row()][:height]
    lines = lines_each(len(servers), height - 1)
    for server in servers:
        rows += one_server(server, width, lines, look, server.url == selected and len(servers) > 1)
    return rows[:height]


def lines_each(servers: int, room: int) -> int:
    return next((lines for lines in (FULL_HEIGHT, 4, 3, 2) if servers * lines <= room), 1)


def one_server(server: ServerView, width: int, lines: int, look: Look, selected: bool) -> list[Row]:
    target = ("server", server.url)
    if not server.is_live:
        return [_head(server, width, look, selected), *_problem(server, width)][: max(1, lines)]
    if lines == 1:
        return [_compact(server, width, look, selected)]
    drawn = [
        _head(server, width, look, selected),
        _flow(server, width).row(target),
        _kv(server, width, look).row(target),
        _latency(server, width).row(target),
        _cache(server, width).row(target),
    ]
    if lines == 2:
        return [_compact(server, width, look, selected, with_pool=False), drawn[2]]
    return drawn[:lines]


def _problem(server: ServerView, width: int) -> list[Row]:
    text = server.problem or "waiting for its first answer"
    role = "dim" if server.reach is Reach.CONNECTING else "bad"
    return [Pen(width).gap(4).put(text, role).row(("server", server.url))]


def _badge(pen: Pen, server: ServerView, look: Look, selected: bool) -> None:
    pen.put(">" if selected else " ", "key").put(look.badge(server.reach.value), BADGE_ROLE[server.reach]).gap()
    pen.put(f"{clip(server.short_name, 24):<7}", "selected" if selected else "strong").gap()


def _head(server: ServerView, width: int, look: Look, selected: bool) -> Row:
    pen = Pen(width)
    _badge(pen, server, look, selected)
    if server.facts.model_name:
        pen.put(clip(server.facts.model_name, max(16, width // 4)), "text").gap(2)
    for fact in _facts(server):
        pen.whole((f"{fact}  ", "dim"))
    if server.reach is Reach.STALE:
        pen.put(clip_end(f"  stale {fmt.span(server.age_s)}: {server.problem or ''}", pen.left), "warn")
    return pen.row(("server", server.url))


def _facts(server: ServerView) -> list[str]:
    facts = server.facts
    told = [
        f"SGLang {facts.sglang_version}" if facts.sglang_version else "",
        "simulated" if facts.simulated else "",
        f"tp {facts.tp_size}" if facts.tp_size else "",
        f"dp {facts.dp_size}" if (facts.dp_size or 1) > 1 else "",
        f"mem-fraction {facts.mem_fraction_static:g}" if facts.mem_fraction_static else "",
        f"KV {facts.kv_cache_dtype or facts.kv_cache_dtype_asked}"
        if facts.kv_cache_dtype or facts.kv_cache_dtype_asked
        else "",
        f"HiCache {facts.hicache_size_gb} GB/rank" if facts.hicache_size_gb else "",
    ]
    return [part for part in told if part]


def _flow(server: ServerView, width: int) -> Pen:
    """Who waits first, then what gets finished: both are still there on the narrowest screen."""
    pool, rates = server.pool, server.rates
    waiting: Role = "waiting" if pool.queued else "text"
    per_minute = None if rates.retractions_per_s is None else rates.retractions_per_s * 60
    pen = Pen(width).gap(4)
    finished = fmt.rate(rates.completion_tokens_per_s)
    pen.whole(("waiting ", "dim"), (f"{_int(pool.queued):>4}", waiting))
    pen.whole(("  running ", "dim"), (f"{_int(pool.running):>4}", "running"))
    pen.whole(("  finished ", "dim"), (f"{finished:>6}", "finished"), (" tok/s", "dim"))
    pen.whole(("  decoding ", "dim"), (f"{fmt.rate(gen_of(server)):>6}", "text"), (" tok/s", "dim"))
    pen.whole((f"{fmt.rate(rates.responses_per_s):>7}", "text"), (" resp/s", "dim"))
    pen.whole(("  retracted ", "dim"), (fmt.rate(per_minute), "bad" if per_minute else "text"), ("/min", "dim"))
    if server.tokens_per_joule is not None:
        pen.whole(("  tokens/J ", "dim"), (fmt.rate(server.tokens_per_joule), "text"))
    if server.peak_running is not None:
        pen.whole((f"  peak running {server.peak_running}", "dim"))
    return pen


def _kv(server: ServerView, width: int, look: Look) -> Pen:
    """Figures of fixed width, then the bar, so that the bars of all servers begin in one column."""
    pool = server.pool
    pen = Pen(width).gap(4).whole(("KV ", "dim"), (f"{fmt.share(pool.usage_share):>4}", "strong"))
    pen.whole((f"{fmt.count(pool.used_tokens):>7}", "kv_used"), (" used", "dim"))
    pen.whole((f"{fmt.count(pool.evictable_tokens):>7}", "kv_evictable"), (" evictable", "dim"))
    pen.whole((" of", "dim"), (f"{fmt.count(pool.capacity_tokens):>7}", "text"))
    if width >= 110:
        pen.put("  each in flight", "dim").put(f"{fmt.count(pool.tokens_in_flight_each):>7}", "text").gap()
    host = _host(server) if width >= HOST_BESIDE_BAR else []
    room = pen.left - 2 - sum(len(text) for text, _ in host)
    return pen.gap().extend(kv_bar(server, room, look)).extend(host) if room >= 6 else pen


def kv_bar(server: ServerView, width: int, look: Look) -> list[Span]:
    """The pool in tokens: used, evictable, free."""
    pool = server.pool
    if not pool.capacity_tokens or pool.used_tokens is None:
        return [("?" * width if look.ascii else "░" * width, "faint")]
    evictable = pool.evictable_tokens or 0
    free = max(0, pool.capacity_tokens - pool.used_tokens - evictable)
    parts = [
        ("kv_used", float(pool.used_tokens)),
        ("kv_evictable", float(evictable)),
        ("kv_free", float(free)),
    ]
    return stacked(parts, sum(size for _, size in parts), width, look)


def _host(server: ServerView) -> list[Span]:
    pool = server.pool
    if not pool.host_total_tokens:
        return []
    used = None if pool.host_used_tokens is None else pool.host_used_tokens / pool.host_total_tokens
    return [
        ("  host ", "dim"),
        (fmt.share(used), "text"),
        (f" of {fmt.count(pool.host_total_tokens)}", "dim"),
    ]


def _latency(server: ServerView, width: int) -> Pen:
    rates = server.rates
    pen = Pen(width).gap(4)
    for name, told in (("TTFT", rates.ttft), ("ITL", rates.itl), ("E2E", rates.e2e)):
        pen.whole((f"{name} ", "dim"), *_quantiles(told, width))
    if rates.completion_window_s is not None:
        pen.whole((f"over {fmt.span(rates.completion_window_s)}", "dim"))
        pen.whole((f", {fmt.count(rates.e2e.count if rates.e2e else None)} responses", "dim"))
    return pen


def _quantiles(told: Quantiles | None, width: int) -> list[Span]:
    if told is None:
        return [(f"{fmt.UNKNOWN}   ", "dim")]
    shown = [("p50", told.p50_s), ("p90", told.p90_s), ("p99", told.p99_s)]
    if width < 130:
        del shown[2]
    return [span for name, value in shown for span in ((f"{name} ", "dim"), (f"{fmt.seconds(value):<7} ", "text"))]


def _cache(server: ServerView, width: int) -> Pen:
    rates = server.rates
    pen = Pen(width).gap(4)
    pen.whole(("cache hits ", "dim"), (fmt.share(rates.hit_share), "hits"))
    for source, part in sorted(rates.hit_share_by_source.items()):
        pen.whole((f" {source} ", "dim"), (fmt.share(part), "text"))
    if width < HOST_BESIDE_BAR:
        pen.whole(*_host(server))
    flows = [("prefill", rates.prefill_tokens_per_s), ("evicted", rates.evicted_tokens_per_s)]
    if server.pool.host_total_tokens:
        flows.append(("loaded back", rates.load_back_tokens_per_s))
    for name, value in flows:
        pen.whole((f"  {name} ", "dim"), (fmt.rate(value), "text"), (" tok/s", "dim"))
    if rates.eager_share:
        pen.whole(("  eager ", "dim"), (fmt.share(rates.eager_share), "warn"))
    note = _hot(server) or (server.notes[0] if server.notes else "")
    return pen.put(clip_end(f"  {note}", pen.left) if note else "", "dim")


def _hot(server: ServerView) -> str:
    """DP ranks apart: the spread of their usage."""
    usages = [rank.token_usage_share for rank in server.ranks if rank.token_usage_share is not None]
    if len(usages) < 2:
        return ""
    return f"{len(usages)} DP ranks {fmt.share(min(usages))}-{fmt.share(max(usages))} used"


def _compact(server: ServerView, width: int, look: Look, selected: bool, *, with_pool: bool = True) -> Row:
    """One line: everything that decides, nothing else. `with_pool` where no line for the pool follows."""
    pool, rates = server.pool, server.rates
    pen = Pen(width)
    _badge(pen, server, look, selected)
    pen.whole(("waiting ", "dim"), (f"{_int(pool.queued):<4}", "waiting" if pool.queued else "text"))
    pen.whole((" running ", "dim"), (f"{_int(pool.running):<4}", "running"))
    if with_pool:
        pen.whole((" KV ", "dim"), (f"{fmt.share(pool.usage_share):<4}", "strong"))
    pen.whole((" finished ", "dim"), (fmt.rate(rates.completion_tokens_per_s), "finished"))
    pen.whole((" tok/s", "dim")).whole(("  decoding ", "dim"), (fmt.rate(gen_of(server)), "text"))
    if with_pool:
        pen.whole((f"  of {fmt.count(pool.capacity_tokens)} tokens", "dim"))
    if server.reach is Reach.STALE:
        pen.whole((f"  stale {fmt.span(server.age_s)}", "warn"))
    elif rates.ttft is not None:
        pen.whole((" TTFT ", "dim"), (fmt.seconds(rates.ttft.p50_s), "text"))
    return pen.row(("server", server.url))


def gen_of(server: ServerView) -> float | None:
    """Tokens decoded per second: from the counter, else the server's own figure."""
    gen = server.rates.gen_tokens_per_s
    return gen if gen is not None else server.pool.gen_tokens_per_s


def _int(value: int | None) -> str:
    return fmt.UNKNOWN if value is None else str(value)


def filtered(snapshot: Snapshot, needle: str) -> tuple[ServerView, ...]:
    """Servers whose address or model contains `needle`."""
    wanted = needle.lower()
    return tuple(s for s in snapshot.servers if wanted in f"{s.url} {s.facts.model_name or ''}".lower())
