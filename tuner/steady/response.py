"""What a controller is told: how one response went, and how the server stood at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.gpus import GpuSample
from launcher.observe.sample import ServerSample
from tuner.workload import Request


@dataclass(frozen=True, slots=True)
class Response:
    """One finished request (`finish_reason` stop or length). Times in study seconds of the driver's clock."""

    request: Request
    finish_reason: str
    completion_tokens: int
    """Tokens generated here; an aged request's earlier tokens are not among them."""
    prompt_tokens: int
    submitted_s: float
    finished_s: float
    first_token_s: float | None = None
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    retractions: int = 0
    itl_s: tuple[float, ...] = ()
    """Times between tokens, or their mean alone where the tokens were not seen one by one."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The server at one moment of a level."""

    now_s: float
    generated_tokens: float | None = None
    """Tokens generated since the level began, finished or not; None when nobody counts them."""
    server: ServerSample | None = None
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits for a response, in seconds; None does not bind. At the 95th percentile they judge a level."""

    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    e2e_p95_s: float | None = None

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in (self.ttft_p95_s, self.itl_p95_s, self.e2e_p95_s))

    def met(self, ttft_s: float, itl_s: float, e2e_s: float) -> bool:
        """Whether one response keeps every limit (its inter-token time is its mean)."""
        pairs = ((ttft_s, self.ttft_p95_s), (itl_s, self.itl_p95_s), (e2e_s, self.e2e_p95_s))
        return all(limit is None or value <= limit for value, limit in pairs)
