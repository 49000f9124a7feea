"""Signals: Ctrl-C once finishes the level, twice stops now; SIGTERM is as once; pause and resume."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from launcher.clock import Clock

T = TypeVar("T")

PAUSE = signal.SIGUSR1
RESUME = signal.SIGUSR2


class StopNow(Exception):
    """The user does not want to wait for what is going on."""


class OutOfTime(Exception):
    """What was going on would have overdrawn the budget."""


class Interrupts:
    """What the user asked of a running daemon."""

    def __init__(self) -> None:
        self.stop_asked = False
        self.pause_asked = False
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._resumed = asyncio.Event()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to the process's signals for as long as the block runs."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self.interrupt, signal.SIGTERM: self.stop}
        # A terminal that closes must not kill the daemon and leave its server on the GPUs.
        handlers |= {signal.SIGHUP: self.stop}
        handlers |= {PAUSE: self.pause, RESUME: self.resume}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """Ctrl-C: the second one does not wait."""
        if self.stop_asked:
            self._now.set()
        self.stop()

    def stop(self) -> None:
        self.stop_asked = True
        self._stop.set()
        self._resumed.set()

    def pause(self) -> None:
        self.pause_asked = True
        self._resumed.clear()

    def resume(self) -> None:
        self.pause_asked = False
        self._resumed.set()

    async def wait_resumed(self) -> None:
        await self._resumed.wait()

    async def sleep(self, clock: Clock, seconds: float) -> None:
        """Study time passes, or the user asks to stop."""
        with contextlib.suppress(StopNow):
            await self.guard(clock.sleep(seconds), clock, math.inf, at_once=True)

    async def guard(self, doing: Coroutine[Any, Any, T], clock: Clock, limit_s: float, *, at_once: bool = False) -> T:
        """Await `doing`; cancel it when the user stops now (`at_once`: stops at all), or after `limit_s`.

        Raises StopNow or OutOfTime once the cancelled work has ended.
        """
        task = asyncio.ensure_future(doing)
        asked = asyncio.ensure_future((self._stop if at_once else self._now).wait())
        timed = math.isfinite(clock.speed) and math.isfinite(limit_s)
        wall_s = max(0.0, limit_s) / clock.speed if timed else None
        try:
            await asyncio.wait((task, asked), timeout=wall_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StopNow if asked.done() else OutOfTime
        finally:
            for one in (task, asked):
                one.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)
