"""Rules about who waits, what is computed, and what is lost."""

from __future__ import annotations

from tui import format as fmt
from tui.diagnose.capacity import FULL_SHARE
from tui.snapshot import Finding, GpuView, ServerView, Severity

QUEUE_SHARE = 0.05
"""Of what runs: a shorter queue is requests on their way in."""
EAGER_SHARE = 0.10
PREFILL_PER_DECODE = 8.0
"""Prompt tokens computed per decoded token; a prompt token is cheaper than a decode step's by about this
much.
"""
STORM_SHARE = 0.05
"""Retractions per finished response."""
ADMISSIBLE = 1.3
"""Too few clients: the pool would carry at least this many times what runs."""


def retraction_storm(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Requests are thrown out of the pool and computed again."""
    del gpus
    rates = server.rates
    per_s, finished = rates.retractions_per_s, rates.responses_per_s
    if not per_s or finished is None or per_s < STORM_SHARE * max(finished, 0.05):
        return None
    lost = "" if rates.retracted_tokens_per_s is None else f", {fmt.rate(rates.retracted_tokens_per_s)} tok/s lost"
    evidence = f"{fmt.rate(per_s * 60)} requests/min retracted for {fmt.rate(finished * 60)} finished{lost}"
    tries = ("fewer clients", "a higher --schedule-conservativeness", "more KV (mem-fraction-static)")
    return Finding("retraction_storm", Severity.WARNING, "retractions", evidence, tries, server.url)


def eager_decode(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Decode batches larger than the largest captured graph run eagerly."""
    del gpus
    eager, running = server.rates.eager_share, server.pool.running
    if eager is None or eager < EAGER_SHARE:
        return None
    largest = server.facts.graph_max_batch
    beyond = "" if largest is None else f"; the largest captured batch is {largest}"
    evidence = f"{fmt.share(eager)} of decode steps ran without a CUDA graph at {running} running{beyond}"
    tries = (f"--cuda-graph-max-bs {running} (0.5.20 and later: --cuda-graph-max-bs-decode); it takes memory",)
    return Finding("eager_decode", Severity.WARNING, "eager decode", evidence, tries, server.url)


def request_cap(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """--max-running-requests binds before the pool does."""
    del gpus
    pool = server.pool
    if not pool.queued or not pool.max_running or pool.running is None or pool.running < pool.max_running:
        return None
    evidence = f"{pool.running} running of at most {pool.max_running}, {pool.queued} wait, pool {_used(server)} used"
    tries = ("raise --max-running-requests",)
    return Finding("request_cap", Severity.WARNING, "request cap", evidence, tries, server.url)


def prefill_bound(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """The GPUs spend their time on prompts; decoding waits for it."""
    del gpus
    pool, rates = server.pool, server.rates
    computed, decoded = rates.prefill_tokens_per_s, _gen(server)
    if not pool.queued or pool.usage_share is None or pool.usage_share >= FULL_SHARE:
        return None
    if not computed or decoded is None or computed < PREFILL_PER_DECODE * max(decoded, 1.0):
        return None
    evidence = (
        f"{fmt.rate(computed)} prompt tok/s computed for {fmt.rate(decoded)} decoded, "
        f"{pool.queued} wait while the pool is {_used(server)} used"
    )
    tries = (
        f"reuse prefixes (cache hits {fmt.share(rates.hit_share)}), HiCache if they are many",
        "a larger --chunked-prefill-size, or prefill/decode disaggregation",
    )
    return Finding("prefill_bound", Severity.WARNING, "prefill-bound", evidence, tries, server.url)


def conservative_admission(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Requests wait although the pool has room: admission keeps it for outputs that are still to come."""
    del gpus
    pool = server.pool
    if not _waits(server) or pool.usage_share is None or pool.usage_share >= FULL_SHARE or not pool.running:
        return None
    if prefill_bound(server, ()) or request_cap(server, ()):
        return None
    now = server.facts.schedule_conservativeness
    setting = "" if now is None else f" (now {now:g})"
    evidence = (
        f"{pool.queued} wait while the pool is {_used(server)} used with {pool.running} running; "
        "the rest is kept for outputs to come"
    )
    tries = (
        f"if it stays so, lower --schedule-conservativeness{setting} and watch the retractions",
        "set max_tokens near what your answers need: it is what admission reckons with",
    )
    return Finding("conservative_admission", Severity.WARNING, "cautious admission", evidence, tries, server.url)


def _waits(server: ServerView) -> bool:
    pool = server.pool
    return pool.queued is not None and pool.queued > max(1.0, QUEUE_SHARE * (pool.running or 0))


def too_few_clients(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Nobody waits and the pool would carry more: the clients are the limit."""
    del gpus
    pool = server.pool
    each = pool.tokens_in_flight_each
    if pool.queued is None or pool.queued > 0 or not pool.running or not each or not pool.capacity_tokens:
        return None
    fit = 0.9 * pool.capacity_tokens / each
    if pool.max_running:
        fit = min(fit, pool.max_running)
    if fit < ADMISSIBLE * pool.running:
        return None
    evidence = f"nobody waits; at {fmt.count(each)} in flight per request about {fit:.0f} fit, {pool.running} run"
    tries = (f"more concurrent clients, up to about {fit:.0f}, as long as ITL suits you",)
    return Finding("too_few_clients", Severity.HINT, "too few clients", evidence, tries, server.url)


def idle(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Nothing runs and nothing waits."""
    del gpus
    if server.pool.running != 0 or server.pool.queued:
        return None
    return Finding("idle", Severity.FINE, "idle", "no request is running or waiting", (), server.url)


def keeps_up(server: ServerView) -> Finding:
    """No rule speaks: either it keeps up, or it does not tell enough to say."""
    pool = server.pool
    if pool.running is None or pool.queued is None:
        evidence = "it tells neither running nor waiting requests"
        return Finding("unknown", Severity.HINT, "not known", evidence, _more_sources(server), server.url)
    evidence = f"{pool.running} running, {pool.queued} wait, pool {_used(server)} used"
    return Finding("keeps_up", Severity.FINE, "no limit in sight", evidence, (), server.url)


def _more_sources(server: ServerView) -> tuple[str, ...]:
    return () if "metrics" in server.sources else ("start it with --enable-metrics",)


def _used(server: ServerView) -> str:
    return fmt.share(server.pool.usage_share)


def _gen(server: ServerView) -> float | None:
    gen = server.rates.gen_tokens_per_s
    return gen if gen is not None else server.pool.gen_tokens_per_s
