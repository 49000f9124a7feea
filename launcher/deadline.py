"""Deadlines in study seconds that leave real processes the wall time which no clock can speed up."""

from __future__ import annotations

import math
import time

from launcher.clock import Clock

# At speed 100 a limit of 60 study seconds is 0.6 wall seconds: too short for a Python to start or end in.
WALL_FLOOR_S = 6.0


class Deadline:
    """Passed when `limit_s` study seconds have passed and, on a clock that is sped up, a few wall seconds
    too."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self.limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        """Begin anew from now."""
        self._began_s = self._clock.now_s()
        self._wall_began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Study seconds since the beginning."""
        return self._clock.now_s() - self._began_s

    @property
    def passed(self) -> bool:
        floor_s = min(WALL_FLOOR_S, self.limit_s) if self._clock.speed > 1 else 0.0
        return self.elapsed_s >= self.limit_s and time.monotonic() - self._wall_began_s >= floor_s


def pause_s(clock: Clock) -> float:
    """Wall seconds between two looks at something real: rarely enough to cost nothing, often enough to be
    on time."""
    return 0.1 if math.isclose(clock.speed, 1.0) else 0.02
