"""Reads a running server: which endpoints to ask, how often, and what to do about those that do not answer.

/metrics is asked every time. /server_info waits for the scheduler's loop (seconds in a long prefill), so it is asked
once, and again only when it is the sole source of the gen rate or the server may be another one. /v1/loads (from
0.5.14 a snapshot in shared memory) stands in where metrics are off, and for DP ranks that metrics do not tell apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING

from launcher.errors import NotServed, ObservationError, Unauthorized, Unparsable, Unreachable
from launcher.observe.effect import not_in_effect
from launcher.observe.http import HttpReader
from launcher.observe.in_use import with_dtype_in_use
from launcher.observe.loads import sample_from_get_load, sample_from_loads
from launcher.observe.merge import coverage_note, merge
from launcher.observe.metrics import sample_from_exposition
from launcher.observe.payload import read_json
from launcher.observe.prometheus import Parser
from launcher.observe.sample import ServerSample
from launcher.observe.server_info import sample_from_server_info

if TYPE_CHECKING:
    from launcher.clock import Clock
    from launcher.config import ServerConfig

INFO_EVERY_S = 60.0
INFO_FOR_RATE_EVERY_S = 10.0
INFO_RETRY_S = 5.0
"""It failed: a server that is still starting answers 503, one in a long prefill is slow."""
ASK_AGAIN_S = 60.0
"""An endpoint that is not served is left alone for so long."""


@dataclass(slots=True)
class _Endpoint:
    """One kind of answer, the paths that have it (newest first), and how it went."""

    paths: tuple[str, ...]
    read: Callable[[str, str], ServerSample]
    """(body, path) -> sample."""
    problem: ObservationError | None = None
    ask_again_s: float = field(default=0.0)


class ServerReader:
    """Reads one server again and again. `read` may be called from any one thread at a time."""

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = 5.0, clock: Clock | None = None
    ) -> None:
        self._http = HttpReader(url, api_key, timeout_s)
        self._now_s = time.monotonic if clock is None else clock.now_s
        self._parser = Parser()
        self._lock = threading.Lock()
        self._info: ServerSample | None = None
        self._info_due_s = float("-inf")
        self._metrics = _Endpoint(("/metrics",), self._parse_metrics)
        self._server_info = _Endpoint(("/server_info", "/get_server_info"), _parse(sample_from_server_info))
        self._loads = _Endpoint(("/v1/loads",), _parse(sample_from_loads))
        self._get_load = _Endpoint(("/get_load",), _parse(sample_from_get_load))

    @property
    def url(self) -> str:
        """The base address."""
        return self._http.url

    def read(self) -> ServerSample:
        """One sample from whichever sources answer; `notes` say what could not be read and why.

        Raises Unreachable, Unauthorized, NotServed or Unparsable when none does.
        """
        with self._lock:
            return self._read()

    def not_in_effect(self, config: ServerConfig) -> tuple[str, ...]:
        """A sentence for each flag of `config` that the server does not run with; none where it does not tell."""
        with self._lock:
            try:
                answer = read_json(self._http.get("/server_info"), "/server_info")
            except ObservationError:
                return ()
        return not_in_effect(config, answer) if isinstance(answer, dict) else ()

    async def aread(self) -> ServerSample:
        """The same without blocking the event loop."""
        # Late: who reads once and leaves (kvtop --once) need not pay for the event loop's import.
        import asyncio

        return await asyncio.to_thread(self.read)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> ServerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> ServerSample:
        taken_s = self._now_s()
        metrics = self._ask(self._metrics)
        info = self._facts(metrics)
        parts = [part for part in (metrics, *self._loads_if_needed(metrics, info), info) if part is not None]
        if not parts:
            raise self._nothing()
        sample = merge(*parts)
        return replace(sample, taken_s=taken_s, url=self.url, notes=(*sample.notes, *self._notes(metrics)))

    def _ask(self, endpoint: _Endpoint) -> ServerSample | None:
        """What an endpoint tells, or None with its `problem` set. Unreachable is the whole server's."""
        if endpoint.problem is not None and self._now_s() < endpoint.ask_again_s:
            return None
        for path in endpoint.paths:
            try:
                sample = endpoint.read(self._http.get(path), path)
            except Unreachable as error:
                self._forget(endpoint, error)
            except ObservationError as error:
                endpoint.problem = error
                if isinstance(error, NotServed):
                    continue
                return None
            else:
                endpoint.problem = None
                return sample
        if isinstance(endpoint.problem, NotServed):
            endpoint.ask_again_s = self._now_s() + ASK_AGAIN_S
        return None

    def _forget(self, endpoint: _Endpoint, error: Unreachable) -> None:
        """A server that is away may come back as another one. A slow /server_info is only slow."""
        endpoint.problem = error
        if endpoint is self._metrics or self._metrics.problem is not None:
            self._info, self._info_due_s = None, float("-inf")
            raise error

    def _facts(self, metrics: ServerSample | None) -> ServerSample | None:
        """The last /server_info, asked again when it is due."""
        now_s = self._now_s()
        if now_s < self._info_due_s and not self._changed(metrics):
            return self._info
        found = self._ask(self._server_info)
        if found is not None:
            self._info = with_dtype_in_use(found)
        fresh_s = INFO_EVERY_S if metrics is not None else INFO_FOR_RATE_EVERY_S
        self._info_due_s = now_s + (fresh_s if found is not None else INFO_RETRY_S)
        return self._info

    def _changed(self, metrics: ServerSample | None) -> bool:
        """The capacity is another one: the server was started anew between two reads."""
        if metrics is None or self._info is None or not metrics.ranks or not self._info.ranks:
            return False
        now, then = metrics.ranks[0].capacity_tokens, self._info.ranks[0].capacity_tokens
        return now is not None and then is not None and now != then

    def _loads_if_needed(
        self, metrics: ServerSample | None, info: ServerSample | None
    ) -> tuple[ServerSample | None, ...]:
        """/v1/loads, or /get_load in builds that have only that, where metrics are off or leave DP ranks out."""
        if metrics is not None and (info is None or coverage_note(merge(metrics, info)) is None):
            return ()
        loads = self._ask(self._loads)
        return (loads if loads is not None or metrics is not None else self._ask(self._get_load),)

    def _parse_metrics(self, body: str, path: str) -> ServerSample:
        del path
        facts = self._info.facts if self._info is not None else None
        ranks_per_pool = (facts.ranks_per_pool if facts else None) or 1
        return sample_from_exposition(self._parser.parse(body), ranks_per_pool=ranks_per_pool)

    def _notes(self, metrics: ServerSample | None) -> tuple[str, ...]:
        notes = []
        if metrics is None:
            notes.append(f"no metrics, so no rates of finished tokens and no latencies: {self._why_no_metrics()}")
        if self._server_info.problem is not None:
            notes.append(str(self._server_info.problem))
        return tuple(notes)

    def _why_no_metrics(self) -> str:
        problem = self._metrics.problem
        if isinstance(problem, NotServed):
            return "the server is up, but was started without --enable-metrics"
        return str(problem)

    def _nothing(self) -> ObservationError:
        """The one error that says most: a key is missing, metrics are off, or it is no SGLang."""
        problems = [
            endpoint.problem
            for endpoint in (self._metrics, self._server_info, self._loads, self._get_load)
            if endpoint.problem is not None
        ]
        refused = next((problem for problem in problems if isinstance(problem, Unauthorized)), None)
        if refused is not None:
            return Unauthorized(f"{self.url}: {refused}")
        odd = next((problem for problem in problems if isinstance(problem, Unparsable)), None) or self._identify()
        if odd is not None:
            return Unparsable(f"{self.url} is a router or an unsupported server: {odd}")
        return NotServed(
            f"{self.url} is up, but serves neither /metrics (start SGLang with --enable-metrics) nor /v1/loads nor "
            "/server_info"
        )

    def _identify(self) -> ObservationError | None:
        """What speaks against this being an SGLang server: its oldest endpoint of all answers in another way."""
        try:
            read_json(self._http.get("/get_model_info"), "/get_model_info")
        except NotServed as error:
            return error if "(HTTP 404" not in str(error) else None
        except ObservationError as error:
            return error
        return None


def _parse(read: Callable[[object], ServerSample]) -> Callable[[str, str], ServerSample]:
    return lambda body, path: read(read_json(body, path))
