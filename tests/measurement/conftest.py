"""A toy queue and a toy SGLang server, for what must not depend on the simulated engine."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.observe.sample import RankSample, ServerSample, Totals
from tuner.steady import LevelController, Moment, Response
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Request


class ToyQueue:
    """First come, first served; a decode step takes a + c n; prompts wait for room in the pool."""

    def __init__(self, capacity_tokens: int, *, a_s: float = 0.05, c_s: float = 0.0004) -> None:
        self.capacity_tokens, self.a_s, self.c_s = capacity_tokens, a_s, c_s
        self.now_s, self.generated, self.used_tokens = 0.0, 0, 0
        self.queue: deque[tuple[Request, float]] = deque()
        self._step = 0
        self._running: list[tuple[int, int, Request, float]] = []

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, request: Request) -> None:
        self.queue.append((request, self.now_s))

    def step(self) -> list[Response]:
        """One decode step; what finished in it."""
        prefilled = self._admit()
        if not self._running:
            self.now_s += 1.0
            return []
        self.now_s += self.a_s + self.c_s * self.running + prefilled / 20_000
        self._step += 1
        self.generated += self.running
        self.used_tokens += self.running
        done: list[Response] = []
        while self._running and self._running[0][0] <= self._step:
            _, _, request, submitted_s = heapq.heappop(self._running)
            self.used_tokens -= request.prompt_tokens + request.age_tokens + request.tokens_to_generate
            done.append(self._response(request, submitted_s))
        return done

    def _admit(self) -> int:
        """Lets in what fits, 5% of the pool kept free for growth; returns the tokens to prefill."""
        prefilled = 0
        while self.queue:
            request, submitted_s = self.queue[0]
            prompt = request.prompt_tokens + request.age_tokens
            if self.running and self.used_tokens + prompt > 0.95 * self.capacity_tokens:
                break
            self.queue.popleft()
            self.used_tokens += prompt
            prefilled += prompt
            place = (self._step + request.tokens_to_generate, id(request), request, submitted_s)
            heapq.heappush(self._running, place)
        return prefilled

    def _response(self, request: Request, submitted_s: float) -> Response:
        tokens = request.tokens_to_generate
        return Response(request, "length", tokens, request.prompt_tokens, submitted_s, self.now_s)

    def moment(self) -> Moment:
        rank = RankSample(
            running_requests=self.running,
            queued_requests=len(self.queue),
            used_tokens=self.used_tokens,
            capacity_tokens=self.capacity_tokens,
        )
        server = ServerSample(self.now_s, "toy", ranks=(rank,), totals=Totals())
        return Moment(self.now_s, float(self.generated), server)


def drive(controller: LevelController, toy: ToyQueue, *, every_s: float = 2.0) -> LevelResult:
    """Run a level on the toy to its end."""
    for request in controller.first_wave():
        toy.submit(request)
    end: LevelEnd | None = None
    due_s = toy.now_s + every_s
    while end is None:
        for response in toy.step():
            for following in controller.on_finish(response):
                toy.submit(following)
        if toy.now_s >= due_s:
            due_s += every_s
            controller.on_moment(toy.moment())
            end = controller.verdict(toy.now_s)
    return controller.result(end, toy.now_s)


@pytest.fixture
def drive_toy() -> object:
    return drive


@pytest.fixture
def toy_queue() -> type[ToyQueue]:
    return ToyQueue


@dataclass
class ToyServer:
    """Answers like SGLang's /generate and /v1/completions, a token every `token_wall_s`."""

    token_wall_s: float = 0.001
    fail_with: int | None = None
    abort_first: int = 0
    running: int = 0
    decoded_tokens: int = 0
    bodies: list[dict[str, object]] = field(default_factory=list)
    flushes: int = 0
    url: str = ""
    caps: list[int] = field(default_factory=lambda: [64])
    """Of each DP rank."""
    takes_caps: bool = True
    held_caps: list[int] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._completions)
        app.router.add_post("/abort_request", self._nothing)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/set_internal_state", self._set_cap)
        app.router.add_get("/server_info", self._info)
        return app

    async def aread(self) -> ServerSample:
        rank = RankSample(running_requests=self.running, queued_requests=0, used_tokens=100 * self.running)
        return ServerSample(0.0, self.url, ranks=(rank,), totals=Totals(decoded_tokens=self.decoded_tokens))

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _set_cap(self, http: web.Request) -> web.Response:
        """Builds up to 0.5.10 say `updated` whatever they did."""
        cap = (await http.json())["server_args"]["pp_max_micro_batch_size"]
        if self.takes_caps:
            self.caps = [cap] * len(self.caps)
            self.held_caps.append(cap)
        return web.json_response([{"updated": True}])

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"internal_states": [{"pp_max_micro_batch_size": cap} for cap in self.caps]})

    async def _flush(self, _: web.Request) -> web.Response:
        self.flushes += 1
        return web.Response()

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        if self.fail_with is not None:
            return web.Response(status=self.fail_with)
        total = body["sampling_params"]["max_new_tokens"]
        reason = {"type": "abort" if self.abort_first > 0 else "length"}
        self.abort_first -= 1
        if not body["stream"]:
            async for _ in self._tokens(total):
                pass
            return web.json_response(self._native(total, reason))
        response = web.StreamResponse()
        await response.prepare(http)
        async for count in self._tokens(total):
            last = reason if count == total else None
            await response.write(b"data: " + json.dumps(self._native(count, last)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        total = body["max_tokens"]
        response = web.StreamResponse()
        await response.prepare(http)
        async for count in self._tokens(total):
            choice = {"index": 0, "text": " w", "finish_reason": "length" if count == total else None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": 9, "completion_tokens": total, "prompt_tokens_details": {"cached_tokens": 4}}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _tokens(self, total: int) -> AsyncIterator[int]:
        self.running += 1
        try:
            for count in range(1, total + 1):
                await asyncio.sleep(self.token_wall_s)
                self.decoded_tokens += count > 1
                yield count
        finally:
            self.running -= 1

    def _native(self, tokens: int, reason: dict[str, str] | None) -> dict[str, object]:
        meta = {"finish_reason": reason, "prompt_tokens": 9, "completion_tokens": tokens, "cached_tokens": 3}
        details = {"device": 1, "host": 2}
        return {"text": "w" * tokens, "meta_info": {**meta, "cached_tokens_details": details, "num_retractions": 1}}


@pytest.fixture
async def toy_server() -> AsyncIterator[ToyServer]:
    toy = ToyServer()
    async with TestServer(toy.app()) as server:
        toy.url = str(server.make_url(""))
        yield toy
