"""A snapshot: one frame with all that follows from it and from the frames before. Panels only format
snapshots.

None is "not known" and is shown as a dash; it is never turned into zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from launcher.gpus import GpuSample
from launcher.observe.sample import RankSample, ServerFacts, Totals

if TYPE_CHECKING:
    from tuner.journal.view import StudyView


class Reach(StrEnum):
    """Whether a server answers."""

    CONNECTING = "connecting"
    UP = "up"
    STALE = "stale"
    """The newest read failed; the figures are of the last good one and have an age."""
    DOWN = "down"
    LOCKED = "locked"
    """It answers 401 or 403: an API key is needed."""
    FOREIGN = "foreign"
    """It answers, but not as SGLang does: a router, another program, or a server that is not ready."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, estimated from the differences of a histogram over a window: exact are the bucket that a quantile lies
    in and the mean over all buckets (see `tui.rates.quantile`). In the last bucket, which has no upper bound, a figure
    means "at least".
    """

    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    """None where there are too few observations to say: see `tui.rates.LEAST_OBSERVATIONS`."""
    count: int
    """Observations in the window."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Differences of counters. Tokens and requests per second of the server's clock."""

    window_s: float | None = None
    """The short window, for what changes with every step."""
    completion_window_s: float | None = None
    """The long window (several end-to-end latencies), for what is counted when a response finishes."""
    completion_tokens_per_s: float | None = None
    """The effective completion rate: completion tokens of finished responses per second."""
    responses_per_s: float | None = None
    finished_prompt_tokens_per_s: float | None = None
    gen_tokens_per_s: float | None = None
    """Tokens decoded per second, whether their responses finish or not."""
    prefill_tokens_per_s: float | None = None
    """Prompt tokens computed per second; retracted requests are computed again and count again."""
    hit_share: float | None = None
    """Prompt tokens served from any cache, over the completion window."""
    hit_share_by_source: Mapping[str, float] = field(default_factory=dict)
    retractions_per_s: float | None = None
    retracted_tokens_per_s: float | None = None
    aborted_per_s: float | None = None
    evicted_tokens_per_s: float | None = None
    load_back_tokens_per_s: float | None = None
    eager_share: float | None = None
    """Decode steps without a CUDA graph."""
    ttft: Quantiles | None = None
    itl: Quantiles | None = None
    e2e: Quantiles | None = None
    stalled_s: float | None = None
    """For how long requests have been running without a token of progress; None while there is progress."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of a whole server, summed over its DP ranks. A running sum of unknowns is unknown."""

    running: int | None = None
    queued: int | None = None
    retracted_now: int | None = None
    used_tokens: int | None = None
    evictable_tokens: int | None = None
    free_tokens: int | None = None
    capacity_tokens: int | None = None
    usage_share: float | None = None
    """The fullest DP rank's: that one admits nobody, whatever the mean says."""
    gen_tokens_per_s: float | None = None
    """The server's own figure."""
    max_running: int | None = None
    host_used_tokens: int | None = None
    host_total_tokens: int | None = None

    @property
    def tokens_in_flight_each(self) -> float | None:
        """Mean KV tokens that one running request holds."""
        if not self.running or self.used_tokens is None:
            return None
        return self.used_tokens / self.running


class Severity(StrEnum):
    """How soon an engineer should act."""

    CRITICAL = "critical"
    WARNING = "warning"
    HINT = "hint"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis: what binds, the evidence in one sentence, and what to try."""

    rule: str
    severity: Severity
    title: str
    evidence: str
    tries: tuple[str, ...] = ()
    url: str | None = None
    gpu_index: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Equidistant history, oldest first; NaN where nothing was known. Compared by identity: it is large."""

    completion_tokens_per_s: tuple[float, ...] = ()
    gen_tokens_per_s: tuple[float, ...] = ()
    running: tuple[float, ...] = ()
    queued: tuple[float, ...] = ()
    usage_share: tuple[float, ...] = ()
    hit_share: tuple[float, ...] = ()
    step_s: float = 1.0
    last_bucket: int = 0
    """Number of the newest bucket; graphs scroll when it passes an even one."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """One GPU's memory in bytes; the parts add up to the total that the driver names."""

    weights: int = 0
    kv_used: int = 0
    kv_evictable: int = 0
    kv_free: int = 0
    kv_unsplit: int = 0
    """KV pool of a server that does not tell how full it is."""
    graphs: int = 0
    other: int = 0
    """The server's remainder: CUDA context, workspaces, activations; the driver's reserve."""
    strangers: int = 0
    """Processes that belong to no server on this screen."""
    unattributed: int = 0
    """In use, and nobody says by whom."""
    free: int = 0


@dataclass(frozen=True, slots=True)
class GpuView:
    sample: GpuSample
    parts: MemoryParts | None = None
    """None where the driver does not tell the total or the used memory."""
    server_url: str | None = None
    strangers: tuple[tuple[int, int, str | None], ...] = ()
    """(pid, bytes, name) of processes that belong to no server on this screen."""


@dataclass(frozen=True, slots=True)
class ServerView:
    url: str
    reach: Reach
    age_s: float | None = None
    """Age of the figures."""
    problem: str | None = None
    facts: ServerFacts = field(default_factory=ServerFacts)
    ranks: tuple[RankSample, ...] = ()
    totals: Totals = field(default_factory=Totals)
    pool: Pool = Pool()
    rates: Rates = Rates()
    series: Series = Series()
    gpu_indices: tuple[int, ...] = ()
    power_w: float | None = None
    tokens_per_joule: float | None = None
    """Completion tokens per joule of the server's GPUs."""
    peak_running: int | None = None
    """The most seen running since kvtop started."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """host:port without the scheme; the port alone on this machine."""
        address = self.url.split("://", 1)[-1].rstrip("/")
        host, _, port = address.rpartition(":")
        return f":{port}" if host in ("127.0.0.1", "localhost", "[::1]") else address

    @property
    def is_live(self) -> bool:
        return self.reach in (Reach.UP, Reach.STALE)


@dataclass(frozen=True, slots=True)
class Snapshot:
    taken_unix_s: float
    servers: tuple[ServerView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    gpu_problem: str | None = None
    study: StudyView | None = None
    problems: tuple[str, ...] = ()
    """What else could not be read, a sentence each."""
    findings: tuple[Finding, ...] = ()
    """Gravest first."""

    def findings_of(self, url: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.url == url)
