"""Time as a parameter, so that two hours can pass in a second.

All durations in kvtune are *study seconds*. On a real server they are wall seconds; on the simulated engine at
speed 60 one wall second is sixty of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What every part that waits or measures is given."""

    speed: float

    def now_s(self) -> float:
        """Study seconds since an arbitrary, fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of study time pass."""
        ...


class WallClock:
    """Real time, or real time scaled by `speed` (> 1 only for the simulated engine)."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed

    def now_s(self) -> float:
        return time.monotonic() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)


class ManualClock:
    """Time that passes only when somebody sleeps: for tests and for virtual time."""

    speed = float("inf")

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self._now_s += max(0.0, seconds)
        await asyncio.sleep(0)
