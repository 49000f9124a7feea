"""From frames to snapshots. The builder is the only thing that remembers; it does no I/O and asks for no
clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from launcher.gpus import GpuSample
from launcher.observe.sample import RankSample, ServerFacts, ServerSample
from tui.diagnose import diagnose
from tui.frame import Frame, ServerReading
from tui.history import STEP_S, History
from tui.memory import gpu_views
from tui.rates import RateTracker
from tui.snapshot import GpuView, Pool, Rates, Reach, ServerView, Snapshot

DOWN_AFTER_S = 10.0
"""A server that has not answered for this long is down; before that its last figures are stale."""
STOPPING = ("stopping", "clean slate")
"""Stages of a study in which its server is ended."""
ANSWERS = ("NotServed", "Unparsable")
"""Observation errors of something that does answer."""


@dataclass
class _Memory:
    """What is remembered of one server."""

    history: History
    tracker: RateTracker = field(default_factory=RateTracker)
    rates: Rates = field(default_factory=Rates)
    sample: ServerSample | None = None
    peak_running: int | None = None


class SnapshotBuilder:
    """Feed it every frame in order; each gives a snapshot."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._step_s = max(STEP_S, interval_s)
        self._servers: dict[str, _Memory] = {}
        self._study_ports: frozenset[str] = frozenset()

    def add(self, frame: Frame) -> Snapshot:
        frame = replace(frame, servers=self._without_stopped(frame))
        gpus = gpu_views(frame.gpus, frame.servers)
        servers = tuple(self._server(reading, frame, gpus) for reading in frame.servers)
        for url in self._servers.keys() - {reading.url for reading in frame.servers}:
            del self._servers[url]
        snapshot = Snapshot(frame.taken_unix_s, servers, gpus, frame.gpu_problem, frame.study, frame.problems)
        return replace(snapshot, findings=diagnose(snapshot))

    def _without_stopped(self, frame: Frame) -> tuple[ServerReading, ...]:
        """All but the servers that the study has stopped, or is about to: those are not down."""
        study = frame.study
        if study is None:
            return frame.servers
        ports = frozenset(map(str, study.server_ports))
        self._study_ports |= ports
        stopping = study.stage is not None and study.stage.name in STOPPING
        stopped = self._study_ports if stopping else self._study_ports - ports
        return tuple(
            reading
            for reading in frame.servers
            if reading.problem is None or reading.url.rpartition(":")[2] not in stopped
        )

    def _server(self, reading: ServerReading, frame: Frame, gpus: tuple[GpuView, ...]) -> ServerView:
        memory = self._servers.setdefault(reading.url, _Memory(History(self._step_s)))
        sample = reading.sample
        if sample is None:
            return ServerView(reading.url, _reach(reading, None), problem=reading.problem)
        pool = pool_of(sample.ranks, sample.facts.dp_size or 1)
        if sample is not memory.sample:
            memory.sample = sample
            memory.rates = memory.tracker.add(sample)
            memory.peak_running = _peak(memory.peak_running, pool.running)
        age_s = max(0.0, frame.taken_unix_s - (reading.sample_unix_s or frame.taken_unix_s))
        if reading.problem is None:
            memory.history.add(frame.taken_unix_s, pool, memory.rates)
        mine = [gpu for gpu in gpus if gpu.server_url == reading.url]
        power_w = total_power_w([gpu.sample for gpu in mine])
        return ServerView(
            url=reading.url,
            reach=_reach(reading, age_s),
            age_s=age_s,
            problem=reading.problem,
            facts=sample.facts,
            ranks=sample.ranks,
            totals=sample.totals,
            pool=pool,
            rates=memory.rates,
            series=memory.history.series(),
            gpu_indices=tuple(gpu.sample.index for gpu in mine),
            power_w=power_w,
            tokens_per_joule=_per_joule(memory.rates, sample.facts, len(mine), power_w),
            peak_running=memory.peak_running,
            sources=sample.sources,
            notes=sample.notes,
        )


def _reach(reading: ServerReading, age_s: float | None) -> Reach:
    if reading.problem is None:
        return Reach.CONNECTING if reading.sample is None else Reach.UP
    if reading.problem_kind == "Unauthorized":
        return Reach.LOCKED
    if reading.sample is None and reading.problem_kind in ANSWERS:
        return Reach.FOREIGN
    return Reach.DOWN if age_s is None or age_s > DOWN_AFTER_S else Reach.STALE


def pool_of(ranks: tuple[RankSample, ...], dp_size: int = 1) -> Pool:
    """The whole server: sums over DP ranks, and the fullest rank's usage.

    Figures of fewer ranks than the server has are nobody's total (builds whose series carry no rank label show
    whichever rank wrote last): everything is unknown then.
    """
    if len(ranks) < dp_size:
        return Pool()
    return Pool(
        running=_sum([rank.running_requests for rank in ranks]),
        queued=_sum([rank.queued_requests for rank in ranks]),
        retracted_now=_sum([rank.retracted_requests for rank in ranks]),
        used_tokens=_sum([rank.used_tokens for rank in ranks]),
        evictable_tokens=_sum([rank.evictable_tokens for rank in ranks]),
        free_tokens=_sum([rank.available_tokens for rank in ranks]),
        capacity_tokens=_sum([rank.capacity_tokens for rank in ranks]),
        usage_share=max((u for rank in ranks if (u := usage_of(rank)) is not None), default=None),
        gen_tokens_per_s=_sum_rate([rank.gen_tokens_per_s for rank in ranks]),
        max_running=_sum([rank.max_running_requests for rank in ranks]),
        host_used_tokens=_sum([rank.hicache_used_tokens for rank in ranks]),
        host_total_tokens=_sum([rank.hicache_total_tokens for rank in ranks]),
    )


def usage_of(rank: RankSample) -> float | None:
    """Share of the KV pool that running requests hold; the gauge (two decimals) where the tokens are not
    told.

    On hybrid models the gauge is that of the fullest pool and may exceed used / capacity: then it is the
    one that binds.
    """
    exact = rank.used_tokens / rank.capacity_tokens if rank.capacity_tokens and rank.used_tokens is not None else None
    gauge = rank.token_usage_share
    if exact is None or gauge is None:
        return exact if gauge is None else gauge
    return gauge if gauge > exact + 0.05 else exact


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _sum_rate(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def total_power_w(gpus: Sequence[GpuSample]) -> float | None:
    return _sum_rate([gpu.power_w for gpu in gpus])


def _per_joule(rates: Rates, facts: ServerFacts, gpus: int, power_w: float | None) -> float | None:
    """Completion tokens per joule; with a part of the server's GPUs in sight it would be too high, and is
    left out.
    """
    if rates.completion_tokens_per_s is None or not power_w or gpus < (facts.tp_size or 1):
        return None
    return rates.completion_tokens_per_s / power_w


def _peak(peak: int | None, running: int | None) -> int | None:
    if running is None:
        return peak
    return running if peak is None else max(peak, running)
