"""One level over HTTP, on a real server or the simulated engine's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from launcher.clock import Clock
from launcher.errors import ObservationError
from launcher.failure import Failure
from launcher.gpus import GpuReader, GpuSample
from launcher.observe.sample import ServerSample
from tuner.load import Answer, Failed, LoadClient, Progress, call_for
from tuner.measure.cap import OUT_TO_CAP, admission_cap
from tuner.steady import LevelController, Moment, Response, Room, Slo
from tuner.testbed import SAMPLE_EVERY_S, LevelLimits
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Request, Synthetic, Workload

_SAMPLE_EVERY_WALL_S = 0.1
"""A scaled clock may not ask the server more often than this."""
_FASTEST_STREAMED_CLOCK = 4.0
"""Beyond this speed thousands of pieces a second would arrive: answers are then taken whole, and the server's
own counters and histograms tell how they went; but not where an SLO judges each answer by itself."""
_AFTER_ERROR_S = 1.0
_DRAIN_S = 60.0
_LAST_WORDS_S = 20.0
_LOOK_EVERY_S = 1.0
"""An open loop without a free slot looks again so often."""
_ABORT, _FLUSH = "/abort_request", "/flush_cache"


class Reader(Protocol):
    """Reads the server under test (launcher.observe)."""

    async def aread(self) -> ServerSample: ...


@dataclass(frozen=True, slots=True)
class ServerDied:
    """The server died of this level, or during it."""

    failure: Failure
    ran_s: float


async def measure_level(
    url: str,
    workload: Workload,
    concurrency: int,
    limits: LevelLimits,
    clock: Clock,
    *,
    gpus: GpuReader | None,
    reader: Reader,
    is_dead: Callable[[], Failure | None],
    api_key: str | None = None,
    slo: Slo | None = None,
    seed: int = 0,
    on_moment: Callable[[Moment], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> LevelResult | ServerDied:
    """Measure one level of `concurrency` clients, and leave the server idle.

    Where arrivals decide, the server is what runs at most so many, and the rest waits there, as it would in
    production: a live cap, taken back afterwards. On builds without one the clients hold back.
    All seconds are study seconds of `clock`. `is_dead` is asked before every sample; `on_moment` is told each
    one; `should_stop` ends the level as STOPPED. Errors of single requests are counted, never raised.
    """
    async with (
        LoadClient(url, clock, api_key=api_key) as client,
        admission_cap(client, concurrency if workload.is_open else None) as cap,
    ):
        first = await _read(reader)
        controller = LevelController(
            workload.lanes(concurrency, open_slots=cap and cap * OUT_TO_CAP),
            limits,
            began_s=clock.now_s(),
            room=_room(first),
            slo=slo,
            seed=seed,
            first_play=int(clock.now_s() * 1000),
            lengths=workload.lengths,
            total_output_tokens=workload.total_output_tokens,
        )
        streams = clock.speed <= _FASTEST_STREAMED_CLOCK or slo is not None
        every_s = limits.sample_every_s
        level = _Level(client, controller, clock, every_s, streams, gpus, reader, is_dead, on_moment, should_stop)
        result = await level.run(first)
    if isinstance(result, ServerDied) or cap is None:
        return result
    return replace(result, concurrency=concurrency, admission_cap=cap)


@dataclass(slots=True)
class _Level:
    client: LoadClient
    controller: LevelController
    clock: Clock
    every_s: float
    streams: bool
    gpus: GpuReader | None
    reader: Reader
    is_dead: Callable[[], Failure | None]
    on_moment: Callable[[Moment], None] | None
    should_stop: Callable[[], bool] | None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    progress: dict[str, Progress] = field(default_factory=dict)
    """Of the requests that are out."""
    left_tokens: dict[str, int] = field(default_factory=dict)
    """How far the requests had come that were out at the end."""
    finished_tokens: int = 0
    answers: int = 0
    known_texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Answers by the key of the segment in which the next turn repeats them."""

    async def run(self, first: ServerSample | None) -> LevelResult | ServerDied:
        began_s = self.clock.now_s()
        for request in self.controller.first_wave():
            self._start(request)
        self._keep(asyncio.create_task(self._arrivals()))
        try:
            end = await self._watch(first)
        finally:
            self.left_tokens = {name: progress.tokens for name, progress in self.progress.items()}
            tasks = tuple(self.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(end, Failure):
            return ServerDied(end, self.clock.now_s() - began_s)
        result = self.controller.result(end, self.clock.now_s())
        await self._drain()
        return result

    def _start(self, request: Request) -> None:
        self._keep(asyncio.create_task(self._client(request)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _arrivals(self) -> None:
        """Start what open loops send, when it arrives."""
        while True:
            for request in self.controller.arriving(self.clock.now_s()):
                self._start(request)
            await self.clock.sleep(min(_LOOK_EVERY_S, self.controller.next_arrival_s - self.clock.now_s()))

    async def _watch(self, first: ServerSample | None) -> LevelEnd | Failure:
        """Sample until the controller, the server or the user ends the level."""
        every_s = max(self.every_s, _SAMPLE_EVERY_WALL_S * self.clock.speed)
        while True:
            await self.clock.sleep(every_s)
            failure = self.is_dead()
            if failure is not None:
                return failure
            moment = await self._moment(first)
            self.controller.on_moment(moment)
            if self.on_moment is not None:
                self.on_moment(moment)
            end = self.controller.verdict(moment.now_s)
            if self.should_stop is not None and self.should_stop():
                return LevelEnd.STOPPED
            if end is LevelEnd.STALLED:
                return await self._stalled()
            if end is not None:
                return end

    async def _stalled(self) -> LevelEnd | Failure:
        """A server that has just died answers nothing either: give its process the time to be found dead."""
        deadline_s = self.clock.now_s() + _LAST_WORDS_S
        while (failure := self.is_dead()) is None and self.clock.now_s() < deadline_s:
            await self.clock.sleep(SAMPLE_EVERY_S)
        return failure or LevelEnd.STALLED

    async def _moment(self, first: ServerSample | None) -> Moment:
        """What was read in between belongs to the middle of the reading."""
        asked_s = self.clock.now_s()
        server, gpus = await asyncio.gather(_read(self.reader), self._read_gpus())
        return Moment((asked_s + self.clock.now_s()) / 2, self._generated(first, server), server, gpus)

    def _generated(self, first: ServerSample | None, now: ServerSample | None) -> float | None:
        """Tokens generated in this level: counted as they stream, else from the server's decode counter.

        That counter leaves out each answer's first token, which comes from its prefill.
        """
        if self.streams:
            return float(self.finished_tokens + sum(progress.tokens for progress in self.progress.values()))
        before = first.totals.decoded_tokens if first else None
        after = now.totals.decoded_tokens if now else None
        return None if before is None or after is None else after - before + self.answers

    async def _read_gpus(self) -> tuple[GpuSample, ...]:
        return () if self.gpus is None else await asyncio.to_thread(self.gpus.read)

    async def _client(self, request: Request) -> None:
        """One client: sends, waits, sends what follows, until nothing does or it is cancelled."""
        following: tuple[Request, ...] = (request,)
        while following:
            (request,) = following
            call = call_for(request, stream=self.streams, texts=self.known_texts)
            progress = self._begin(request)
            answer = await self.client.play(call, progress)
            del self.progress[request.request_id]
            if isinstance(answer, Failed):
                following = self.controller.on_error(request, answer.kind, generated_tokens=progress.tokens)
                self.finished_tokens += progress.tokens
                await self.clock.sleep(_AFTER_ERROR_S)
            else:
                following = self._finish(request, answer, progress)

    def _begin(self, request: Request) -> Progress:
        sent_s = self.clock.now_s()
        progress = Progress(sent_s, on_first_token=partial(self.controller.on_first_token, request, sent_s))
        self.progress[request.request_id] = progress
        return progress

    def _finish(self, request: Request, answer: Answer, progress: Progress) -> tuple[Request, ...]:
        self.finished_tokens += answer.completion_tokens
        self.answers += 1
        following = self.controller.on_finish(_response(request, answer, progress, self.clock.now_s()))
        self._remember(request, answer, following)
        return following

    def _remember(self, request: Request, answer: Answer, following: tuple[Request, ...]) -> None:
        """Let the next turn of a synthetic session repeat what was really answered, so that its KV can be
        found.
        """
        goes_on = any(each.session == request.session for each in following) and not request.age_tokens
        if goes_on and request.answer_key is not None and len(answer.output_ids) == request.output_tokens:
            self.known_texts[request.answer_key] = answer.output_ids

    async def _drain(self) -> None:
        """Take back what is out, wait until the server is idle, and let it forget texts that come again.

        Synthetic text is new in every play, and prefixes that are shared stay warm, as in a long run. The
        user's own prompts are the same on every level, whose second would find them all cached: they are
        flushed.
        """
        out = self.controller.out
        for request in out:
            self.controller.on_unfinished(request, self.left_tokens.get(request.request_id, 0))
        await asyncio.gather(*(self.client.post(_ABORT, {"rid": each.request_id}) for each in out))
        deadline_s = self.clock.now_s() + _DRAIN_S
        while not _idle(await _read(self.reader)) and self.clock.now_s() < deadline_s:
            await self.clock.sleep(SAMPLE_EVERY_S)
        if not all(isinstance(request.prompt, Synthetic) for request in out):
            await self.client.post(_FLUSH, {})


def _idle(sample: ServerSample | None) -> bool:
    """Whether nothing runs or waits; a server that cannot be read is not waited for."""
    ranks = sample.ranks if sample else ()
    return not any((rank.running_requests or 0) + (rank.queued_requests or 0) for rank in ranks)


async def _read(reader: Reader) -> ServerSample | None:
    """A sample, or None when the server could not be read just now (it may be busy with a long prefill)."""
    try:
        return await reader.aread()
    except ObservationError:
        return None


def _room(sample: ServerSample | None) -> Room:
    ranks = sample.ranks if sample else ()
    capacity = sum(rank.capacity_tokens or 0 for rank in ranks)
    most = sum(rank.max_running_requests or 0 for rank in ranks)
    return Room(capacity or None, most or None)


def _response(request: Request, answer: Answer, progress: Progress, now_s: float) -> Response:
    return Response(
        request=request,
        finish_reason=answer.finish_reason,
        completion_tokens=answer.completion_tokens,
        prompt_tokens=answer.prompt_tokens,
        submitted_s=progress.submitted_s,
        finished_s=now_s,
        first_token_s=progress.first_token_s,
        cached_tokens=answer.cached_tokens,
        cached_host_tokens=answer.cached_host_tokens,
        retractions=answer.retractions,
        itl_s=tuple(progress.itl_s),
    )
