"""What binds: rules over one snapshot, each with its evidence and with what to try.

A rule is a pure function from a ServerView (and the GPUs under it) to a Finding or None. `RULES` is their
order among equals; the gravest finding of a server is the one that its line on the screen shows.
"""

from __future__ import annotations

from collections.abc import Callable

from tui.diagnose import capacity, load, machine, reach
from tui.snapshot import Finding, GpuView, Reach, ServerView, Severity, Snapshot

__all__ = ["RULES", "diagnose"]

Rule = Callable[[ServerView, tuple[GpuView, ...]], Finding | None]

RULES: tuple[Rule, ...] = (
    reach.hung,
    capacity.partial_ranks,
    capacity.dtype_not_asked,
    load.retraction_storm,
    load.eager_decode,
    capacity.hot_dp_rank,
    load.request_cap,
    load.prefill_bound,
    capacity.kv_ceiling,
    load.conservative_admission,
    capacity.host_pool_thrash,
    capacity.host_pool_idle,
    load.too_few_clients,
    load.idle,
)

GRAVITY = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.HINT: 2, Severity.FINE: 3}


def diagnose(snapshot: Snapshot) -> tuple[Finding, ...]:
    """All findings, gravest first; servers keep their order among equals."""
    found: list[Finding] = list(machine.lost_gpus(snapshot.gpus))
    for server in snapshot.servers:
        mine = tuple(gpu for gpu in snapshot.gpus if gpu.server_url == server.url)
        found.extend(_of_server(server, mine))
    return tuple(sorted(found, key=lambda finding: GRAVITY[finding.severity]))


def _of_server(server: ServerView, gpus: tuple[GpuView, ...]) -> list[Finding]:
    if not server.is_live:
        unreachable = reach.unreachable(server)
        return [unreachable] if unreachable else []
    found = [finding for rule in RULES if (finding := rule(server, gpus)) is not None]
    found.extend(machine.strangers(server, gpus))
    slow = machine.slow_gpu(server, gpus)
    if slow is not None:
        found.append(slow)
    if server.reach is Reach.STALE and (stale := reach.unreachable(server)) is not None:
        found.append(stale)
    return found or [load.keeps_up(server)]
