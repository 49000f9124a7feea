"""The values that pass between search, measurement, journal and screens: proposal -> trial -> levels.

A *trial* is one start of the server with one Setting, and serves several concurrency *levels*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from launcher.config import FlagValue
from launcher.failure import Failure
from launcher.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Setting:
    """The outer, expensive choice: the searched launch flags of one start."""

    mem_fraction_static: float | None
    kv_cache_dtype: str
    """Normalised, never `auto`."""
    hicache_size_gb: int = 0
    """Decimal GB per rank; 0 is off."""
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Further searched flags by dashed name (`max-total-tokens`, `chunked-prefill-size`, ...)."""


class Purpose(StrEnum):
    """Why a trial was proposed."""

    FIRST = "first"
    EXPLORE = "explore"
    PROBE = "probe"
    """A start with dummy weights, for memory alone; its rate is never the answer."""
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One start to make, and the levels to climb in it, safest first."""

    setting: Setting
    concurrencies: tuple[int, ...]
    purpose: Purpose
    reason: str
    """For a person: "0.90: predicted 188 K tokens, 3.6 GiB headroom, 97% to survive; expected +9% +- 4%"."""
    expected_s: float
    """What the whole trial should take: clean slate, start, levels, stop."""
    predicted_tokens: float | None = None
    predicted_headroom_gib: float | None = None
    survival_probability: float | None = None
    expected_rate: float | None = None
    expected_rate_sd: float | None = None


WIDEST_SHARE = 0.5
"""An interval wider than +- this share of its value is no measurement."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval (95% unless said)."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def is_measurement(self) -> bool:
        return self.half_width <= WIDEST_SHARE * self.value


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of values that responses showed. Of few responses the highest ones are little more than the largest value."""

    p50: float
    p90: float
    p95: float
    p99: float
    responses: int | None = None
    """How many responses they rest on; None in journals from before this was counted."""


class LevelEnd(StrEnum):
    """Why the measurement of a level ended."""

    NARROW = "narrow"
    """The interval is narrow enough."""
    BEATEN = "beaten"
    """It cannot reach the incumbent."""
    QUEUE_ONLY = "queue_only"
    """More clients only make the queue longer."""
    TIME = "time"
    """Its time was up; the interval says how much is known."""
    CRASHED = "crashed"
    STALLED = "stalled"
    """The server answers, but nothing finishes."""
    STOPPED = "stopped"
    """The user or the budget ended it."""


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One concurrency level of one start, measured in steady state. Rates per study second; None is not known."""

    concurrency: int
    end: LevelEnd
    completion_rate: Interval
    """The effective completion rate: completion tokens of finished responses per second."""
    measured_s: float
    """The steady window that the estimate rests on."""
    spent_s: float
    """Everything, with ramp-up and drain."""
    responses_per_s: float
    finished_requests: int
    gen_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    running_requests: float | None = None
    queued_requests: float | None = None
    token_usage_share: float | None = None
    tokens_in_flight_each: float | None = None
    retracted_share: float | None = None
    wasted_prefill_share: float | None = None
    cache_hit_share: float | None = None
    cache_hit_host_share: float | None = None
    ttft_s: Percentiles | None = None
    """None, like the other two, when it would rest on fewer than 20 responses."""
    itl_s: Percentiles | None = None
    e2e_s: Percentiles | None = None
    goodput_tokens_per_s: float | None = None
    """Completion tokens per second of the responses that met every SLO; None when no SLO was set."""
    slo_attainment_share: float | None = None
    unfinished_requests: int = 0
    """Long tails that were still running when the level ended: counted, never hidden."""
    errors_by_kind: Mapping[str, int] = field(default_factory=dict)
    headroom_min_gib: Mapping[int, float] = field(default_factory=dict)
    """The least free memory of each GPU (by index) that the driver showed during this level."""
    power_w: float | None = None
    tokens_per_joule: float | None = None
    remaining_s: Interval | None = None
    """What the user's whole file would take at this rate."""
    steady: bool = True
    """False: steadiness was never shown; the estimate is the best there is. `doubt` says why."""
    doubt: str | None = None
    """Why the rate is not to be relied on, for a person; None when it is."""
    group_rates: Mapping[str, float] = field(default_factory=dict)
    admission_cap: int | None = None
    """The server's own cap on running requests, held live at an open loop's level; None: the clients alone held back,
    and what they held back is not in the TTFT."""


class TrialState(StrEnum):
    RUNNING = "running"
    MEASURED = "measured"
    """At least one level was measured."""
    FAILED = "failed"
    """The configuration failed before any level was measured."""
    INFRASTRUCTURE = "infrastructure"
    """Failed through no fault of the configuration: teaches nothing."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Minutes:
    """Where a trial's time went, in study seconds."""

    clean_slate_s: float = 0.0
    start_s: float = 0.0
    measure_s: float = 0.0
    stop_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.clean_slate_s + self.start_s + self.measure_s + self.stop_s


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One start and all that was learned from it. A trial may have measured levels *and* a failure (died later)."""

    trial_id: int
    proposal: Proposal
    state: TrialState
    timeline: Timeline | None
    levels: tuple[LevelResult, ...] = ()
    failure: Failure | None = None
    minutes: Minutes = Minutes()
    headroom_min_gib: float | None = None
    """The poorest GPU's least free memory over the whole trial, as the driver showed it."""

    @property
    def best_level(self) -> LevelResult | None:
        """The highest rate among those that are measurements; where there is none, the highest."""
        return max(
            self.levels,
            key=lambda level: (level.completion_rate.is_measurement, level.completion_rate.value),
            default=None,
        )
