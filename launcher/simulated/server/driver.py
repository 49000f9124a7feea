"""Runs an Engine in scaled wall time and hands its events to the requests that wait for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.simulated.engine import Engine
from launcher.simulated.events import Aborted, Crashed, Finished, FirstToken, LogRecord, SimRequest

_TICK_WALL_S = 0.004


@dataclass(slots=True, eq=False)
class Ticket:
    """One request as its HTTP handler sees it."""

    request: SimRequest
    streaming: bool
    arrived_unix_s: float
    generated: int = 0
    end: Finished | Aborted | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class EngineDeadError(Exception):
    """The scheduler has died; every connection is about to be cut."""


class Driver:
    """Keeps the engine's clock at `speed` times the wall's since it became ready."""

    def __init__(
        self,
        engine: Engine,
        speed: float,
        *,
        on_log: Callable[[LogRecord], None],
        on_finished: Callable[[Ticket, Finished], None],
        on_first_token: Callable[[Ticket, float], None],
        on_crash: Callable[[Crashed], None],
    ) -> None:
        self.engine, self.speed = engine, speed
        self._on_log, self._on_finished = on_log, on_finished
        self._on_first_token, self._on_crash = on_first_token, on_crash
        self._tickets: dict[str, Ticket] = {}
        self._streams: dict[str, Ticket] = {}
        self._ready_wall_s = time.monotonic()
        self._wake = asyncio.Event()

    @property
    def pending(self) -> int:
        """Requests that are not answered yet."""
        return len(self._tickets)

    @property
    def pending_ids(self) -> list[str]:
        return list(self._tickets)

    def now_s(self) -> float:
        return (time.monotonic() - self._ready_wall_s) * self.speed

    def submit(self, request: SimRequest, *, streaming: bool) -> Ticket:
        """A request arrives now."""
        if self.engine.dead is not None:
            raise EngineDeadError
        self.pump()
        ticket = Ticket(request, streaming, time.time())
        self._tickets[request.request_id] = ticket
        if streaming:
            self._streams[request.request_id] = ticket
        self.engine.submit(request)
        self._wake.set()
        return ticket

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._wake.set()

    def abort_all(self) -> None:
        for request_id in list(self._tickets):
            self.abort(request_id)

    async def run(self) -> None:
        """Until cancelled or the engine is dead. Sleeps while nothing is pending."""
        while self.engine.dead is None:
            if not self._tickets:
                self._wake.clear()
                await self._wake.wait()
            self.pump()
            await asyncio.sleep(_TICK_WALL_S)

    def pump(self) -> None:
        """Bring the engine to the present and hand out what happened."""
        now = self.now_s()
        while self.engine.now_s < now and self.engine.dead is None:
            for event in self.engine.advance(now):
                self._hand_out(event)
        for record in self.engine.take_log():
            self._on_log(record)
        for ticket in self._streams.values():
            self._note_progress(ticket)

    def _hand_out(self, event: FirstToken | Finished | Aborted | Crashed) -> None:
        if isinstance(event, Crashed):
            self._on_crash(event)
            return
        ticket = self._tickets.get(event.request_id)
        if ticket is None:
            return
        if isinstance(event, FirstToken):
            self._on_first_token(ticket, event.at_s)
            return
        if isinstance(event, Finished):
            self._on_finished(ticket, event)
        del self._tickets[event.request_id]
        self._streams.pop(event.request_id, None)
        ticket.end = event
        ticket.generated = event.completion_tokens
        ticket.changed.set()

    def _note_progress(self, ticket: Ticket) -> None:
        generated = self.engine.progress(ticket.request.request_id) or 0
        if generated > ticket.generated:
            ticket.generated = generated
            ticket.changed.set()
