"""The clients of a level: which request each sends first, and which next. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle

from tuner.steady.equilibrium import Room, aged_sessions, arriving_tokens_per_s, running_slots
from tuner.workload import Lane, Request, Session

NEVER_S = float("inf")
_FEW_SHARE = 0.05
"""Of what is in flight already: so few more are not worth another round."""


class Clients:
    """Closed loops: after every response the session's next turn, or the lane's next session.

    An open lane sends a session when it arrives instead, or as soon as one of its slots is free after that.
    """

    def __init__(self, lanes: Sequence[Lane], room: Room, *, began_s: float, seed: int, first_play: int) -> None:
        self._lanes = lanes
        self._room = room
        self._seed = seed
        self._play = first_play
        self._decks = [self._deal(lane) for lane in lanes]
        self._arrivals = [accumulate(cycle(lane.gaps_s), initial=began_s) for lane in lanes]
        self._next_s = [
            next(times) if lane.gaps_s else NEVER_S for lane, times in zip(lanes, self._arrivals, strict=True)
        ]
        self._rest: dict[str, tuple[int, Session]] = {}
        """What follows each request that is out: its lane, and the further turns of its session."""
        self._sessions_out = [0] * len(lanes)

    def first_wave(self) -> tuple[Request, ...]:
        """One request for every client: those in mid-life that would be running, then the waiting."""
        counts = [round(count) for count in running_slots(self._lanes, self._room)]
        closed = [(at, lane, counts[at]) for at, lane in enumerate(self._lanes) if not lane.gaps_s]
        aged = [
            [self._send(at, self._again(session)) for session in aged_sessions(lane, count, self._seed + at)]
            for at, lane, count in closed
            if count
        ]
        fresh = [
            [self._send(at, next(self._decks[at])) for _ in range(lane.slots - count)] for at, lane, count in closed
        ]
        return (*_spread(aged), *_spread(fresh))

    def arriving(self, now_s: float) -> tuple[Request, ...]:
        """What open lanes send by now."""
        sent: list[Request] = []
        for at, lane in enumerate(self._lanes):
            while self._next_s[at] <= now_s and self._sessions_out[at] < lane.slots:
                sent.append(self._send(at, next(self._decks[at])))
                self._sessions_out[at] += 1
                self._next_s[at] = next(self._arrivals[at])
        return tuple(sent)

    def missing(self, pace_s: float) -> tuple[Request, ...]:
        """What open lanes would have in flight besides at so many seconds per token, in mid-life (Little's law)."""
        sent: list[Request] = []
        for at, lane in enumerate(self._lanes):
            count = min(lane.slots, round(arriving_tokens_per_s(lane) * pace_s)) - self._sessions_out[at]
            if count > max(1, _FEW_SHARE * self._sessions_out[at]):
                sent += [self._send(at, self._again(each)) for each in aged_sessions(lane, count, self._seed + at)]
                self._sessions_out[at] += count
        return tuple(sent)

    @property
    def next_arrival_s(self) -> float:
        """When an open lane with a free slot sends again; infinite when none does."""
        free = (out < lane.slots for out, lane in zip(self._sessions_out, self._lanes, strict=True))
        return min((at_s for at_s, has_room in zip(self._next_s, free, strict=True) if has_room), default=NEVER_S)

    def after(self, request: Request) -> tuple[Request, ...]:
        """What the client sends next whose request this was; nothing when an open lane's session has ended."""
        lane, rest = self._rest.pop(request.request_id)
        return (self._send(lane, rest),) if rest else self._new_session(lane)

    def instead(self, request: Request) -> tuple[Request, ...]:
        """What the client sends next whose request failed: its session ends there."""
        lane, _ = self._rest.pop(request.request_id)
        return self._new_session(lane)

    def _new_session(self, lane: int) -> tuple[Request, ...]:
        if self._lanes[lane].gaps_s:
            self._sessions_out[lane] -= 1
            return ()
        return (self._send(lane, next(self._decks[lane])),)

    def _send(self, lane: int, session: Session) -> Request:
        self._rest[session[0].request_id] = (lane, session[1:])
        return session[0]

    def _deal(self, lane: Lane) -> Iterator[Session]:
        while True:
            for session in lane.sessions:
                yield self._again(session)

    def _again(self, session: Session) -> Session:
        self._play += 1
        return tuple(request.played(self._play) for request in session)


def _spread(lanes: Sequence[Sequence[Request]]) -> list[Request]:
    """Every lane's requests spread evenly over the whole."""
    places = [((at + 0.5) / len(lane), which, at) for which, lane in enumerate(lanes) for at in range(len(lane))]
    return [lanes[which][at] for _, which, at in sorted(places)]
