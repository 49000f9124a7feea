"""Which part of a GPU's memory is what: the driver's figures crossed with what the server on it tells.

The parts always add up to the driver's total. SGLang tells weights, KV pool and graphs of TP rank 0 only
(GiB, per rank); ranks of one server are built alike, so the same figures are taken for each of its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.gpus import GpuSample
from launcher.observe.sample import RankSample, ServerFacts
from tui.frame import ServerReading
from tui.snapshot import GpuView, MemoryParts

GIB = 2**30
TOLERANCE_SHARE = 0.02
"""How far the server's own figures may exceed what the driver shows before they are disbelieved."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A server's claim on one GPU."""

    facts: ServerFacts
    rank: RankSample
    """The DP rank on this GPU, or the sum over all."""


def gpu_views(gpus: Sequence[GpuSample], servers: Sequence[ServerReading]) -> tuple[GpuView, ...]:
    """Every GPU with its parts, its server and its strangers."""
    owners = {gpu.index: _owner(gpu, servers) for gpu in gpus}
    if not any(owners.values()):
        owners = {gpu.index: _only_possible_owner(gpu, servers) for gpu in gpus}
    return tuple(_view(gpu, owners[gpu.index], _place(gpu, owners), servers) for gpu in gpus)


def _owner(gpu: GpuSample, servers: Sequence[ServerReading]) -> ServerReading | None:
    pids = _pids(gpu)
    return next((server for server in servers if pids & set(server.pids)), None)


def _pids(gpu: GpuSample) -> set[int]:
    return {process.pid for process in gpu.processes}


def _only_possible_owner(gpu: GpuSample, servers: Sequence[ServerReading]) -> ServerReading | None:
    """In a container the driver tells the host's pids, or none: they match no process that can be seen here.

    Then a GPU is the server's if there is but one on this machine and what it tells to hold fits into what is in use.
    """
    local = [server for server in servers if server.pids and server.sample is not None]
    if len(local) != 1 or any(process.name is not None for process in gpu.processes):
        return None
    sample, used = local[0].sample, gpu.memory_used_bytes
    claims = _claims(sample.facts) if sample is not None else None
    return local[0] if claims is not None and used is not None and used >= sum(claims) else None


def _place(gpu: GpuSample, owners: dict[int, ServerReading | None]) -> int:
    """This GPU's position among the GPUs of its server."""
    same = [index for index, owner in owners.items() if owner is owners[gpu.index]]
    return sorted(same).index(gpu.index)


def _view(gpu: GpuSample, owner: ServerReading | None, place: int, servers: Sequence[ServerReading]) -> GpuView:
    known = {pid for server in servers for pid in server.pids}
    strangers = tuple(
        (p.pid, p.used_bytes or 0, p.name)
        for p in gpu.processes
        if p.pid not in known and (owner is None or p.name is not None or known & _pids(gpu))
    )
    tenant = None
    if owner is not None and owner.sample is not None:
        tenant = Tenant(owner.sample.facts, _rank_on(owner.sample.ranks, place))
    parts = None if gpu.lost else parts_of(gpu, tenant, sum(used for _, used, _ in strangers))
    return GpuView(gpu, parts, owner.url if owner else None, strangers)


def _rank_on(ranks: tuple[RankSample, ...], place: int) -> RankSample:
    if not ranks:
        return RankSample()
    return ranks[place] if len(ranks) > 1 and place < len(ranks) else ranks[0]


def parts_of(gpu: GpuSample, tenant: Tenant | None, stranger_bytes: int) -> MemoryParts | None:
    """The stacked bar of one GPU in bytes; None where total or used is not told."""
    total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
    if total is None or used is None:
        return None
    strangers = min(stranger_bytes, used)
    mine = used - strangers
    free = max(0, total - used)
    if tenant is None:
        # Where no server is known nobody is a stranger.
        return MemoryParts(unattributed=used, free=free)
    claims = _claims(tenant.facts)
    if claims is None or sum(claims) > mine + TOLERANCE_SHARE * total:
        return MemoryParts(strangers=strangers, unattributed=mine, free=free)
    weights, pool, graphs = _fitted(claims, mine)
    split = _pool_split(pool, tenant.rank)
    return MemoryParts(weights, *split, graphs, mine - weights - pool - graphs, strangers, 0, free)


def _claims(facts: ServerFacts) -> tuple[int, int, int] | None:
    if facts.weights_gib is None or facts.kv_cache_gib is None:
        return None
    return int(facts.weights_gib * GIB), int(facts.kv_cache_gib * GIB), int((facts.graphs_gib or 0.0) * GIB)


def _fitted(claims: tuple[int, int, int], mine: int) -> tuple[int, int, int]:
    """Claims that exceed what is in use (a rounding apart, see TOLERANCE_SHARE) are shrunk to it."""
    claimed = sum(claims)
    if claimed <= mine:
        return claims
    weights, pool, graphs = (claim * mine // claimed for claim in claims)
    return weights, pool, graphs


def _pool_split(pool: int, rank: RankSample) -> tuple[int, int, int, int]:
    """(used, evictable, free, unsplit) bytes of the KV pool."""
    capacity = rank.capacity_tokens
    if not capacity or rank.used_tokens is None:
        return 0, 0, 0, pool
    used = min(pool, pool * rank.used_tokens // capacity)
    evictable = min(pool - used, pool * (rank.evictable_tokens or 0) // capacity)
    return used, evictable, pool - used - evictable, 0
