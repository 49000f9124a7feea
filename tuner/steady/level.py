"""One level, measured: told what happens, it says what to send, when to stop, and what came out. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from launcher.observe.sample import RankSample
from tuner.steady.clients import Clients
from tuner.steady.equilibrium import Room, arrival_variance, arriving_tokens_per_s, mix_of, pool_of
from tuner.steady.estimate import ELASTICITY_SD, Estimate, Point, estimate, mean_of
from tuner.steady.filling import ROUNDS, is_full, pace_s
from tuner.steady.response import Moment, Response, Slo
from tuner.steady.summary import FEWEST_TURNED_SHARE, FirstToken, Observed, level_result
from tuner.testbed import LevelLimits
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Lane, LengthBook, Request

STALL_S = 180.0
"""No token and no finish for so long: the server answers, but nothing gets done."""
ENDLESS_ERRORS = 50
ERRORS_STALL_S = 60.0
"""So many errors in a row, and nothing else for so long: nothing will finish. (A server that has just died also
answers with errors; its process is gone a few seconds later, and then it is a crash and not a stall.)"""
HEAVY_SPREAD_SHARE = 0.1
"""From this spread of the mix on, one draw of it is no picture of the long run."""
QUEUE_SLACK = 0.03
"""Running requests within this share of a lower level's, both with a queue: the extra clients only wait."""


class LevelController:
    """Drives one level.

    All times are study seconds of one clock; the first call sets the level's beginning.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        limits: LevelLimits,
        *,
        began_s: float,
        room: Room | None = None,
        slo: Slo | None = None,
        seed: int = 0,
        first_play: int = 0,
        lengths: LengthBook | None = None,
        total_output_tokens: int | None = None,
    ) -> None:
        self._lanes = lanes
        self._limits = limits
        self._began_s = began_s
        self._room = room or Room()
        self._slo = slo or Slo()
        self._lengths = lengths or LengthBook()
        self._total_output_tokens = total_output_tokens
        self._clients = Clients(lanes, self._room, began_s=began_s, seed=seed, first_play=first_play)
        self._first_wave: dict[str, int] = {}
        self._out: dict[str, Request] = {}
        self._responses: list[Response] = []
        self._first_tokens: list[FirstToken] = []
        self._moments: list[Moment] = []
        self._points: list[Point] = []
        self._counted = False
        """Whether the points count generated tokens, not credited ones."""
        self._errors: Counter[str] = Counter()
        self._errors_in_a_row = 0
        self._lost_tokens = 0.0
        self._progress_s = began_s
        self._pool = pool_of(lanes, self._room)
        self._mix = mix_of(lanes, self._room) if self._pool is not None else None
        self._joining: tuple[Request, ...] = ()
        self._filling_rounds = ROUNDS if any(arriving_tokens_per_s(lane) for lane in lanes) else 0
        """How often open loops may still be filled up to their middle."""
        self._in_the_middle = self._pool is not None

    def first_wave(self) -> tuple[Request, ...]:
        """What to send at once, in this order."""
        wave = self._clients.first_wave()
        self._out.update((request.request_id, request) for request in wave)
        self._first_wave = {request.request_id: place for place, request in enumerate(wave)}
        return wave

    def arriving(self, now_s: float) -> tuple[Request, ...]:
        """What open loops send by now; to be asked at `next_arrival_s`, and after every moment."""
        sent = (*self._joining, *self._clients.arriving(now_s))
        self._joining = ()
        self._out.update((request.request_id, request) for request in sent)
        return sent

    @property
    def next_arrival_s(self) -> float:
        """When an open loop sends next; infinite without one."""
        return self._clients.next_arrival_s

    def on_first_token(self, request: Request, submitted_s: float, now_s: float) -> None:
        """A request that began here has its first token; of an aged one it would mean nothing."""
        if request.age_tokens:
            return
        place = self._first_wave.get(request.request_id)
        ahead = None if place is None else len(self._first_wave) - 1 - place
        self._first_tokens.append(FirstToken(now_s - submitted_s, ahead))

    def on_finish(self, response: Response) -> tuple[Request, ...]:
        """A response is complete. Returns what its client sends next."""
        self._responses.append(response)
        self._errors_in_a_row = 0
        self._progress_s = max(self._progress_s, response.finished_s)
        self._lengths.learn(response.request, response.completion_tokens, finished=True)
        return self._replace(response.request, self._clients.after(response.request))

    def on_error(self, request: Request, kind: str, *, generated_tokens: float = 0.0) -> tuple[Request, ...]:
        """A request failed, with `generated_tokens` of its answer lost.

        Returns what its client sends next.
        """
        self._errors[kind] += 1
        self._errors_in_a_row += 1
        self._lost_tokens += generated_tokens
        return self._replace(request, self._clients.instead(request))

    def on_moment(self, moment: Moment) -> None:
        """The server at one moment; to be told every second or two."""
        self._moments.append(moment)
        counted = moment.generated_tokens is not None
        if self._counted and not counted:
            return  # the server could not be read just now; what was credited does not continue its count
        if counted and not self._counted:
            self._points.clear()
        self._counted = counted
        generated = self._credited() if moment.generated_tokens is None else moment.generated_tokens
        if self._points and generated > self._points[-1].generated_tokens:
            self._progress_s = moment.now_s
        self._points.append(_point(moment, generated))
        if self._filling_rounds:
            self._fill()

    def on_unfinished(self, request: Request, generated_tokens: int) -> None:
        """How far a request had come when the level ended; the length book learns from it."""
        self._lengths.learn(request, generated_tokens, finished=False)

    @property
    def out(self) -> tuple[Request, ...]:
        """The requests that are out and unanswered."""
        return tuple(self._out.values())

    def verdict(self, now_s: float) -> LevelEnd | None:
        """Why to stop now; None to go on."""
        patience_s = ERRORS_STALL_S if self._errors_in_a_row >= ENDLESS_ERRORS else STALL_S
        idle_s = now_s - self._progress_s
        if idle_s >= patience_s:
            return LevelEnd.STALLED
        if now_s - self._began_s >= self._limits.budget_s:
            # A short level ends before the patience does: no progress in half of it is no measurement either.
            return LevelEnd.STALLED if idle_s >= self._limits.budget_s / 2 else LevelEnd.TIME
        found = self._estimate()
        if found is None or not found.steady or found.rate <= 0 or self._turned_share() < FEWEST_TURNED_SHARE:
            return None
        return self._judge(found)

    def result(self, end: LevelEnd, now_s: float) -> LevelResult:
        """All that was learned of the level."""
        return level_result(
            Observed(
                concurrency=sum(lane.slots for lane in self._lanes),
                end=end,
                began_s=self._began_s,
                ended_s=now_s,
                estimate=self._estimate(),
                responses=tuple(self._responses),
                moments=tuple(self._moments),
                requests=tuple(request for lane in self._lanes for session in lane.sessions for request in session),
                first_tokens=tuple(self._first_tokens),
                unfinished_requests=len(self._out),
                errors_by_kind=dict(self._errors),
                kept_share=self._kept_share(),
                generated_tokens=self._points[-1].generated_tokens if self._points else self._credited(),
                slo=self._slo,
                total_output_tokens=self._total_output_tokens,
                turned_share=self._turned_share(),
                same_few=self._same_few(),
                began_empty=not self._in_the_middle,
                arrival_variance=arrival_variance(self._lanes),
            )
        )

    def _fill(self) -> None:
        """Add what an open loop would have in flight at the pace seen; what was read before is not its steady time."""
        pace = pace_s(self._points)
        if pace is None:
            return
        self._joining = () if is_full(self._points) else self._clients.missing(pace)
        self._filling_rounds = self._filling_rounds - 1 if self._joining else 0
        self._in_the_middle = not self._filling_rounds
        if self._joining:
            del self._points[:-1]

    def _judge(self, found: Estimate) -> LevelEnd | None:
        """Judged by what the server does: the arrivals of an open loop are the same in every trial."""
        half, incumbent = found.half_width(), self._limits.incumbent_rate
        if half <= self._limits.target_share * found.rate:
            return LevelEnd.NARROW
        if incumbent is not None and found.rate + half < incumbent:
            return LevelEnd.BEATEN
        return LevelEnd.QUEUE_ONLY if self._queue_only() else None

    def _queue_only(self) -> bool:
        """A lower level of this start had a queue already, and this one runs no more requests than it did."""
        lower = self._limits.lower_level
        running, queued = _recent(self._points, "running"), _recent(self._points, "queued")
        if lower is None or not lower.running_requests or not lower.queued_requests or not running or not queued:
            return False
        return min(lower.queued_requests, queued) >= 1 and running <= lower.running_requests * (1 + QUEUE_SLACK)

    def _estimate(self) -> Estimate | None:
        found = estimate(self._points, self._pool)
        young = bool(self._first_wave.keys() & self._out.keys()) or len(self._responses) < len(self._out)
        if found and self._pool is None and young:
            # Lengths are unknown, or arrivals decide, whose ups and downs last as long as an answer does.
            return found.not_steady()
        return found and found.widened(ELASTICITY_SD * self._spread_share() / (1 + self._renewals(found)) ** 0.5)

    def _spread_share(self) -> float:
        """By how much another draw of the requests in flight would fill the pool more or less; an empty pool's rate
        hangs little on what is in it."""
        used, capacity = mean_of(self._points, "used_tokens"), self._room.capacity_tokens
        return self._mix.spread_share * min(1.0, used / capacity) if self._mix and used and capacity else 0.0

    def _renewals(self, found: Estimate) -> float:
        """How often the requests in flight have become others in the window."""
        pace = pace_s(self._points)
        return (found.end_s - found.begin_s) / (pace * self._mix.memory_tokens) if self._mix and pace else 0.0

    def _same_few(self) -> bool:
        """Whether a few long answers hold much of what is in flight, and were the same ones all the time."""
        found = self._estimate()
        return found is not None and self._spread_share() >= HEAVY_SPREAD_SHARE and self._renewals(found) < 1

    def _turned_share(self) -> float:
        """Finished responses over the requests that run at once."""
        running = mean_of(self._points, "running")
        at_once = sum(lane.slots for lane in self._lanes) if running is None else running
        return len(self._responses) / max(1.0, at_once)

    def _kept_share(self) -> float:
        """The share of generated tokens that belong to answers that did not fail."""
        generated = self._points[-1].generated_tokens if self._points else 0.0
        return max(0.0, 1 - self._lost_tokens / generated) if generated else 1.0

    def _credited(self) -> float:
        """Tokens of finished answers, an aged request's earlier ones included, as in mid-life."""
        return float(sum(each.completion_tokens + each.request.age_tokens for each in self._responses))

    def _replace(self, request: Request, following: tuple[Request, ...]) -> tuple[Request, ...]:
        del self._out[request.request_id]
        self._out.update((each.request_id, each) for each in following)
        return following


def _point(moment: Moment, generated_tokens: float) -> Point:
    ranks = moment.server.ranks if moment.server else ()
    return Point(
        now_s=moment.now_s,
        generated_tokens=generated_tokens,
        running=_total(ranks, lambda rank: rank.running_requests),
        queued=_total(ranks, lambda rank: rank.queued_requests),
        used_tokens=_total(ranks, lambda rank: rank.used_tokens),
    )


def _total(ranks: Sequence[RankSample], read: Callable[[RankSample], float | None]) -> float | None:
    """A gauge summed over the DP ranks that know it."""
    known = [value for rank in ranks if (value := read(rank)) is not None]
    return float(sum(known)) if known else None


def _recent(points: Sequence[Point], name: str) -> float | None:
    """A gauge's mean over the last ten points."""
    known = [value for point in points[-10:] if (value := getattr(point, name)) is not None]
    return sum(known) / len(known) if known else None
