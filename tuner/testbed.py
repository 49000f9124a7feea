"""Where trials happen. The daemon and the search know nothing else of the world.

`tuner.live` runs a real server (or the simulated engine's process) through the launcher; `tuner.virtual` runs the
simulated engine in virtual time, in process, for the contest and the measurement bench.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from launcher.failure import Failure
from launcher.timeline import Timeline
from tuner.trial import LevelResult, Setting


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """How long and how well a level is to be measured."""

    budget_s: float
    """Hard limit for the whole level, ramp-up and drain inside."""
    target_share: float = 0.03
    """Stop when the interval's half width is below this share of the estimate."""
    incumbent_rate: float | None = None
    """The rate to beat: a level that clearly cannot is ended as BEATEN."""


@dataclass(frozen=True, slots=True)
class Started:
    """How a start went: `failure` is None when the server is ready."""

    timeline: Timeline | None
    failure: Failure | None
    clean_slate_s: float
    start_s: float


class Testbed(Protocol):
    """One box that runs one server at a time."""

    async def start(self, setting: Setting, *, dummy_weights: bool = False) -> Started:
        """Prove the clean slate, start the server, wait until it serves. Never raises for a server's own failure."""
        ...

    async def measure(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        """Measure one level on the running server; a Failure when the server died of it."""
        ...

    async def stop(self) -> float:
        """End the server and prove that it is gone. Returns the seconds it took; safe to call twice."""
        ...
