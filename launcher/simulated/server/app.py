"""The HTTP application: SGLang's routes, its API-key rules, its errors, and its access log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from launcher.simulated.events import Gauges
from launcher.simulated.server.driver import EngineDeadError
from launcher.simulated.server.generate import Generator, RefusedError
from launcher.simulated.server.info import get_load, loads, model_info, models, server_info
from launcher.simulated.server.metrics import metrics_text
from launcher.simulated.server.prompts import BadRequestError
from launcher.simulated.server.state import ServerState

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OPEN_PREFIXES = ("/health", "/metrics", "/ready")
_ADMIN_PATHS = frozenset({"/flush_cache", "/set_internal_state", "/abort_request"})


def build_app(state: ServerState, access_log: Callable[[web.Request, int], None]) -> web.Application:
    """All routes of one server."""
    app = web.Application(middlewares=[_guard(state, access_log)], client_max_size=64 * 2**20)
    generator, control = Generator(state), _Control(state)
    app.router.add_post("/generate", generator.native)
    app.router.add_post("/v1/completions", generator.completions)
    app.router.add_post("/v1/chat/completions", generator.chat)
    for path in ("/health", "/health_generate"):
        app.router.add_get(path, control.health)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, control.server_info)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, control.model_info)
    app.router.add_get("/v1/models", control.models)
    app.router.add_get("/v1/loads", control.loads)
    if state.boot.wording.version < (0, 5, 21):
        app.router.add_get("/get_load", control.get_load)
    else:
        app.router.add_get("/ready", control.ready)
    if state.arguments.enable_metrics and not state.faults.metrics_off:
        app.router.add_get("/metrics", control.metrics)
    app.router.add_route("*", "/flush_cache", control.flush_cache)
    app.router.add_post("/abort_request", control.abort_request)
    app.router.add_post("/set_internal_state", control.set_internal_state)
    return app


class _Control:
    """Everything but generating."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def _gauges(self) -> Gauges:
        driver = self._state.driver
        if driver is None:
            raise RefusedError(503, "The server is starting.")
        driver.pump()
        return driver.engine.gauges()

    async def health(self, _: web.Request) -> web.Response:
        """200 once the scheduler can answer. A stuck scheduler answers too: that is the fault `stuck`."""
        state = self._state
        driver = state.driver
        serves = state.ready and not state.draining and driver is not None and driver.engine.dead is None
        return web.Response(status=200 if serves else 503)

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._state.ready and not self._state.draining else 503)

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response(server_info(self._state, self._gauges()))

    async def model_info(self, _: web.Request) -> web.Response:
        return web.json_response(model_info(self._state))

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response(models(self._state))

    async def loads(self, _: web.Request) -> web.Response:
        return web.json_response(loads(self._state, self._gauges()))

    async def get_load(self, _: web.Request) -> web.Response:
        return web.json_response(get_load(self._gauges()))

    async def metrics(self, _: web.Request) -> web.Response:
        text = metrics_text(self._state, self._gauges())
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def flush_cache(self, _: web.Request) -> web.Response:
        """400 while requests are pending."""
        self._gauges()
        driver = self._state.driver
        flushed = driver is not None and driver.engine.flush_cache()
        words = "Cache flushed." if flushed else "Cache not flushed because there are pending requests."
        return web.Response(text=words + "\n", status=200 if flushed else 400)

    async def abort_request(self, http: web.Request) -> web.Response:
        """`{"rid": ...}` or `{"abort_all": true}`."""
        body = await _object(http)
        driver = self._state.driver
        if driver is not None and body.get("abort_all"):
            driver.abort_all()
        elif driver is not None:
            driver.abort(str(body.get("rid", "")))
        return web.Response(status=200)

    async def set_internal_state(self, http: web.Request) -> web.Response:
        """Only pp_max_micro_batch_size can be changed. 0.5.17 says `updated` even when nothing was."""
        body = await _object(http)
        changes = body.get("server_args")
        driver = self._state.driver
        if not isinstance(changes, dict) or driver is None:
            raise BadRequestError("server_args must be an object.")
        done = set(changes) == {"pp_max_micro_batch_size"}
        done = done and driver.engine.limit_running(int(changes["pp_max_micro_batch_size"]))
        honest = self._state.boot.wording.version >= (0, 5, 23)
        shown = {
            **self._state.arguments.server_args,
            "pp_max_micro_batch_size": self._gauges().max_running_requests,
        }
        return web.json_response([{"updated": done if honest else True, "server_args": shown}])


async def _object(http: web.Request) -> dict[str, Any]:
    try:
        body = await http.json()
    except ValueError:
        raise BadRequestError("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise BadRequestError("The body must be an object.")
    return body


def _guard(state: ServerState, access_log: Callable[[web.Request, int], None]) -> Any:
    """Counts, checks the key, turns refusals into SGLang's error bodies, and writes the access log."""

    @web.middleware
    async def middleware(http: web.Request, handler: Handler) -> web.StreamResponse:
        key = (http.path, http.method)
        state.http_requests[key] = state.http_requests.get(key, 0) + 1
        state.http_active[key] = state.http_active.get(key, 0) + 1
        status = 500
        try:
            response = await _answer(state, http, handler)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            state.http_active[key] -= 1
            counted = (*key, status)
            state.http_responses[counted] = state.http_responses.get(counted, 0) + 1
            access_log(http, status)

    return middleware


async def _answer(state: ServerState, http: web.Request, handler: Handler) -> web.StreamResponse:
    if not _may(state, http):
        return web.json_response({"error": "Unauthorized"}, status=401)
    try:
        return await handler(http)
    except BadRequestError as error:
        return web.json_response({"error": {"message": str(error)}}, status=400)
    except RefusedError as error:
        return web.json_response({"error": {"message": str(error)}}, status=error.status)
    except EngineDeadError:
        # The process is about to kill itself; a real client sees its connection cut.
        if http.transport is not None:
            http.transport.abort()
        raise asyncio.CancelledError from None


def _may(state: ServerState, http: web.Request) -> bool:
    """SGLang's rules (>= 0.5.9): health and metrics are open; admin paths want the admin key if set."""
    if http.method == "OPTIONS" or http.path.startswith(_OPEN_PREFIXES):
        return True
    if state.faults.unauthorized:
        return False
    arguments = state.arguments
    wanted = arguments.api_key
    if http.path in _ADMIN_PATHS and arguments.admin_api_key is not None:
        wanted = arguments.admin_api_key
    return wanted is None or http.headers.get("Authorization") == f"Bearer {wanted}"
