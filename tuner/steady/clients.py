"""The clients of a level: which request each sends first, and which next. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.steady.equilibrium import Room, aged_sessions, running_slots
from tuner.workload import Lane, Request, Session


class Clients:
    """Closed loops: after every response the session's next turn, or the lane's next session."""

    def __init__(self, lanes: Sequence[Lane], room: Room, *, seed: int, first_play: int) -> None:
        self._lanes = lanes
        self._room = room
        self._seed = seed
        self._play = first_play
        self._decks = [self._deal(lane) for lane in lanes]
        self._rest: dict[str, tuple[int, Session]] = {}
        """What follows each request that is out: its lane, and the further turns of its session."""

    def first_wave(self) -> tuple[Request, ...]:
        """One request for every client: those in mid-life that would be running, then the waiting."""
        counts = [round(count) for count in running_slots(self._lanes, self._room)]
        aged = [
            [self._send(at, self._again(session)) for session in aged_sessions(lane, count, self._seed + at)]
            for at, (lane, count) in enumerate(zip(self._lanes, counts, strict=True))
            if count
        ]
        fresh = [
            [self._send(at, next(self._decks[at])) for _ in range(lane.slots - count)]
            for at, (lane, count) in enumerate(zip(self._lanes, counts, strict=True))
        ]
        return (*_spread(aged), *_spread(fresh))

    def after(self, request: Request) -> Request:
        """The next request of the client whose request this was."""
        lane, rest = self._rest.pop(request.request_id)
        return self._send(lane, rest or next(self._decks[lane]))

    def instead(self, request: Request) -> Request:
        """The next request of a client whose request failed: its session ends there."""
        lane, _ = self._rest.pop(request.request_id)
        return self._send(lane, next(self._decks[lane]))

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
