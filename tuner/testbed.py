"""Where trials happen. The daemon and the search know nothing else of the world.

`tuner.live` runs a real server, or the simulated engine's process, through the launcher; tests run scripted ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from launcher.failure import Failure
from launcher.timeline import Timeline
from tuner.trial import LevelResult, Setting

if TYPE_CHECKING:
    from launcher.server import ServerRecord


SAMPLE_EVERY_S = 2.0
SAMPLES_PER_LEVEL = 120
"""An interval needs dozens of moments."""


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """How long and how well a level is to be measured."""

    budget_s: float
    """Hard limit for the whole level, ramp-up and drain inside."""
    target_share: float = 0.03
    """Stop when the interval's half width is below this share of the estimate."""
    incumbent_rate: float | None = None
    """The rate to beat: a level that clearly cannot is ended as BEATEN."""
    lower_level: LevelResult | None = None
    """The highest level already measured on this start: one that runs no more requests than it is QUEUE_ONLY."""

    @property
    def sample_every_s(self) -> float:
        """Study seconds between two looks at the server; a short level is sampled oftener."""
        return min(SAMPLE_EVERY_S, self.budget_s / SAMPLES_PER_LEVEL)


@dataclass(frozen=True, slots=True)
class Started:
    """How a start went: `failure` is None when the server is ready."""

    timeline: Timeline | None
    failure: Failure | None
    clean_slate_s: float
    start_s: float
    notes: tuple[str, ...] = ()
    """Sentences about a start that went well: flags that the server does not run with."""


class Testbed(Protocol):
    """One box that runs one server at a time."""

    async def start(self, setting: Setting, *, dummy_weights: bool = False, keep: bool = False) -> Started:
        """Prove the clean slate, start the server, wait until it serves. Never raises for a server's own failure.

        `keep`: it will be left running, so that it takes the port that the study pins, if it pins one.
        """
        ...

    async def measure(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        """Measure one level on the running server; a Failure when the server died of it."""
        ...

    async def stop(self) -> float:
        """End the server and prove that it is gone. Returns the seconds it took; safe to call twice."""
        ...


class Observer(Protocol):
    """Who is told what a testbed does while it does it: the journal and the screen. Given to its constructor.

    Both methods are called from the testbed's own task, write what they are told before they return, and may
    raise JournalError: then the testbed must not go on with the act.
    """

    def on_server(self, record: ServerRecord | None) -> None:
        """A process was launched (at once after the fork), its record grew (children), or None: proved gone."""
        ...

    def on_stage(self, name: str, detail: str = "", expected_s: float | None = None) -> None:
        """A new stage began ("clean slate", "starting: weights", "measuring", "stopping"); study seconds."""
        ...

    def on_sample(self, values: Mapping[str, float | int | None]) -> None:
        """Gauges of the running server, at most once per five study seconds; names carry their units."""
        ...
