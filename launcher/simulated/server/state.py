"""What the endpoints of one simulated server share."""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field

from launcher.simulated.boot import Boot
from launcher.simulated.events import Finished
from launcher.simulated.faults import Faults
from launcher.simulated.presets import Preset
from launcher.simulated.server.arguments import Arguments
from launcher.simulated.server.driver import Driver, Ticket

TTFT_BOUNDS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E_BOUNDS = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
    10,
    20,
    40,
    60,
    80,
    100,
    200,
    400,
    600,
    1200,
    1800,
    2400,
)
ITL_BOUNDS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1,
    0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8,
)  # fmt: skip
LENGTH_BOUNDS = (100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10000, 20000, 40000)
QUEUE_BOUNDS = (
    0.0,
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    100,
    200,
    500,
    1000,
)


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram in the making; `counts` are not cumulative, the last is above every bound."""

    bounds: tuple[float, ...]
    counts: list[float] = field(default_factory=list)
    total: float = 0.0
    count: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0.0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: float = 1.0) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times


@dataclass(slots=True)
class FinishedTotals:
    """Of finished requests, by whether they were streamed."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS))


@dataclass(slots=True)
class ServerState:
    """One server. `driver` is None until it is ready to take requests."""

    arguments: Arguments
    preset: Preset
    faults: Faults
    boot: Boot
    driver: Driver | None = None
    ready: bool = False
    """After the warm-up: /health answers 200."""
    draining: bool = False
    finished: dict[bool, FinishedTotals] = field(
        default_factory=lambda: {False: FinishedTotals(), True: FinishedTotals()}
    )
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_BOUNDS))
    prompt_lengths: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    answer_lengths: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    http_requests: dict[tuple[str, str], int] = field(default_factory=dict)
    http_responses: dict[tuple[str, str, int], int] = field(default_factory=dict)
    http_active: dict[tuple[str, str], int] = field(default_factory=dict)
    started_unix_s: float = field(default_factory=time.time)
    micro_batch_size: int | None = None

    def note_first_token(self, ticket: Ticket, at_s: float) -> None:
        """TTFT is observed when the first token leaves, streamed or not."""
        del at_s  # the end event carries it exactly; only streamed chunks are noted as they come
        ticket.changed.set()

    def note_finished(self, ticket: Ticket, event: Finished) -> None:
        """Credit a finished request, as collect_metrics does."""
        totals = self.finished[ticket.streaming]
        totals.requests += 1
        totals.prompt_tokens += event.prompt_tokens
        totals.generation_tokens += event.completion_tokens
        totals.ttft.observe(event.first_token_s - event.submitted_s)
        totals.e2e.observe(event.finish_s - event.submitted_s)
        self.queue.observe(event.started_s - event.submitted_s)
        self.prompt_lengths.observe(event.prompt_tokens)
        self.answer_lengths.observe(event.completion_tokens)
        gaps = event.completion_tokens - 1
        if gaps > 0:
            self.itl.observe((event.finish_s - event.first_token_s) / gaps, gaps)
