"""The load: sends requests over one pool of connections and times what comes back.

aiohttp, because a generator must never be the bottleneck: `python -m bench.load` shows what it sends beside
httpx, a bare aiohttp loop and SGLang's own bench_serving. An answer is parsed once, at its end; while it
streams, only the last token count of each piece is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

from launcher.clock import Clock
from tuner.load.answer import Answer, BadAnswerError, parse_stream, parse_whole, tokens_so_far
from tuner.load.body import Call

_TAIL_BYTES = 1 << 20
_CONNECT_WALL_S = 30.0


@dataclass(slots=True)
class Progress:
    """One request on its way. Times in study seconds of the client's clock."""

    submitted_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    on_first_token: Callable[[float], None] | None = None
    tokens: int = 0
    itl_s: list[float] = field(default_factory=list)

    def reached(self, tokens: int, now_s: float) -> None:
        """So many tokens are there now; several that came in one piece share its time."""
        new = tokens - self.tokens
        if new <= 0:
            return
        if self.last_token_s is None:
            self.first_token_s = now_s
            if self.on_first_token is not None:
                self.on_first_token(now_s)
        else:
            self.itl_s.extend([(now_s - self.last_token_s) / new] * new)
        self.last_token_s, self.tokens = now_s, tokens


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that brought no finished response. `kind` is what the counts of errors are kept by."""

    kind: str


class LoadClient:
    """Plays calls against one server. Use as an async context manager."""

    def __init__(self, url: str, clock: Clock, *, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._clock = clock
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> LoadClient:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WALL_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def play(self, call: Call, progress: Progress) -> Answer | Failed:
        """Send one call and wait for its end; `progress` fills while the answer streams."""
        try:
            return await self._exchange(call, progress)
        except BadAnswerError as bad:
            return Failed(bad.kind)
        except TimeoutError:
            return Failed("timeout")
        except aiohttp.ClientPayloadError:
            return Failed("disconnected")
        except (aiohttp.ClientError, OSError):
            return Failed("connection")

    async def post(self, route: str, body: object) -> int | None:
        """POST something that is no load (a flush, an abort); the HTTP status, None if it did not arrive."""
        assert self._session is not None
        try:
            async with self._session.post(self._url + route, data=json.dumps(body)) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, OSError):
            return None

    async def ask(self, route: str, body: object | None = None) -> object | None:
        """POST a body, or GET without one; the JSON of the reply, None if there is none."""
        assert self._session is not None
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            async with self._session.request(method, self._url + route, data=data) as response:
                return json.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def _exchange(self, call: Call, progress: Progress) -> Answer:
        assert self._session is not None
        async with self._session.post(self._url + call.route, data=json.dumps(call.body)) as response:
            if response.status != 200:
                await response.read()
                raise BadAnswerError(f"http_{response.status}")
            if call.body.get("stream"):
                return await self._stream(response, progress)
            answer = parse_whole(await response.read())
            progress.tokens = answer.completion_tokens
            return answer

    async def _stream(self, response: aiohttp.ClientResponse, progress: Progress) -> Answer:
        tail = bytearray()
        async for piece in response.content.iter_any():
            progress.reached(tokens_so_far(piece, progress.tokens), self._clock.now_s())
            tail += piece
            if len(tail) > 2 * _TAIL_BYTES:
                del tail[:-_TAIL_BYTES]
        answer = parse_stream(bytes(tail))
        progress.tokens = answer.completion_tokens
        return answer
