"""/generate, /v1/completions and /v1/chat/completions, streamed or not."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from launcher.simulated.events import Aborted, Finished, SimRequest
from launcher.simulated.server.conversations import Conversations
from launcher.simulated.server.driver import Driver, EngineDeadError, Ticket
from launcher.simulated.server.prompts import (
    WORD,
    BadRequestError,
    Prompt,
    Sampling,
    answer_ids,
    chat_prompt,
    ids_prompt,
    native_prompt,
    native_sampling,
    openai_sampling,
    request_of,
    text_prompt,
)
from launcher.simulated.server.state import ServerState

_DONE = b"data: [DONE]\n\n"


class RefusedError(Exception):
    """The request ended without an answer; becomes an HTTP error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Generator:
    """The three generating endpoints of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._conversations = Conversations()

    async def native(self, http: web.Request) -> web.StreamResponse:
        """POST /generate."""
        body = await _body(http)
        prompt = native_prompt(body)
        self._check_length(prompt.tokens)
        request = self._request(body, prompt, native_sampling(body))
        text = not self._state.arguments.server_args["skip_tokenizer_init"]
        if not body.get("stream"):
            ticket = await self._whole(request)
            return web.json_response(self._native_answer(ticket, text=text))
        return await self._stream(http, request, lambda ticket, _: self._native_answer(ticket, text=text))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body = await _body(http)
        return await self._openai(http, body, _openai_prompt(body.get("prompt")), chat=False)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await _body(http)
        return await self._openai(http, body, chat_prompt(body.get("messages")), chat=True)

    async def _openai(
        self, http: web.Request, body: dict[str, Any], prompt: Prompt, *, chat: bool
    ) -> web.StreamResponse:
        self._check_length(prompt.tokens)
        room = max(1, self._state.boot.options.context_len - prompt.tokens - 1)
        sampling = openai_sampling(body, default=room if chat else 16)
        request = self._request(body, prompt, sampling)
        model = str(body.get("model") or self._state.arguments.served_model_name)
        if not body.get("stream"):
            ticket = await self._whole(request)
            return web.json_response(_openai_answer(ticket, model, chat=chat))
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await self._stream(
            http,
            request,
            lambda ticket, new: _openai_chunk(ticket, model, new, chat=chat),
            last=(lambda ticket: _usage_chunk(ticket, model, chat=chat)) if usage else None,
        )

    def _request(self, body: dict[str, Any], prompt: Prompt, sampling: Sampling) -> SimRequest:
        return request_of(body, prompt, sampling, self._state.preset.answers, self._conversations)

    def _check_length(self, tokens: int) -> None:
        context = self._state.boot.options.context_len
        if tokens >= context:
            raise BadRequestError(
                f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
            )

    async def _whole(self, request: SimRequest) -> Ticket:
        """Wait for the answer; a client that goes away takes its request back."""
        driver = self._driver()
        ticket = driver.submit(request, streaming=False)
        await self._wait_end(driver, ticket)
        if isinstance(ticket.end, Aborted):
            raise RefusedError(ticket.end.status, ticket.end.message)
        return ticket

    async def _wait_end(self, driver: Driver, ticket: Ticket) -> None:
        try:
            while ticket.end is None:
                ticket.changed.clear()
                await ticket.changed.wait()
        except asyncio.CancelledError:
            driver.abort(ticket.request.request_id)
            raise

    async def _stream(
        self, http: web.Request, request: SimRequest, chunk: Any, last: Any | None = None
    ) -> web.StreamResponse:
        driver = self._driver()
        ticket = driver.submit(request, streaming=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            async for new in _increments(ticket):
                if not response.prepared:
                    if isinstance(ticket.end, Aborted) and ticket.end.completion_tokens == 0:
                        raise RefusedError(ticket.end.status, ticket.end.message)
                    await response.prepare(http)
                await response.write(_event(chunk(ticket, new)))
            if last is not None:
                await response.write(_event(last(ticket)))
            await response.write(_DONE)
        except (asyncio.CancelledError, ConnectionResetError):
            driver.abort(request.request_id)
            raise
        return response

    def _driver(self) -> Driver:
        driver = self._state.driver
        if driver is None or self._state.draining:
            raise RefusedError(
                503, "The server is shutting down." if self._state.draining else "The server is starting."
            )
        if driver.engine.dead is not None:
            raise EngineDeadError
        return driver

    def _native_answer(self, ticket: Ticket, *, text: bool) -> dict[str, Any]:
        answer: dict[str, Any] = {"text": WORD * ticket.generated} if text else {}
        answer["output_ids"] = answer_ids(ticket.generated)
        answer["meta_info"] = self._meta_info(ticket)
        return answer

    def _meta_info(self, ticket: Ticket) -> dict[str, Any]:
        request, end = ticket.request, ticket.end
        info: dict[str, Any] = {
            "id": request.request_id,
            "finish_reason": _native_reason(ticket),
            "prompt_tokens": request.prompt_tokens,
            "weight_version": "default",
            "num_retractions": end.retractions if isinstance(end, Finished) else 0,
            "reasoning_tokens": 0,
            "completion_tokens": ticket.generated,
            "cached_tokens": end.cached_tokens if isinstance(end, Finished) else 0,
            "dp_rank": None,
        }
        if isinstance(end, Finished):
            info["cached_tokens_details"] = _cached_details(end)
            # Latencies are in simulated seconds, like every duration that this server tells.
            info["e2e_latency"] = end.finish_s - end.submitted_s
            if self._state.arguments.enable_metrics:
                info |= _timestamps(ticket, end)
        return info


def _cached_details(end: Finished) -> dict[str, int] | None:
    """Null when nothing was cached, as SGLang 0.5.18 has it."""
    if end.cached_tokens == 0:
        return None
    return {"device": end.cached_tokens - end.cached_host_tokens, "host": end.cached_host_tokens}


def _timestamps(ticket: Ticket, end: Finished) -> dict[str, float]:
    """What SGLang adds with --enable-metrics; unix seconds, on the simulated time scale from the arrival."""
    at = ticket.arrived_unix_s - end.submitted_s
    decode_s = max(1e-9, end.finish_s - end.first_token_s)
    return {
        "request_received_ts": at + end.submitted_s,
        "api_server_dispatch_finish_ts": at + end.submitted_s,
        "forward_entry_time": at + end.started_s,
        "prefill_finished_time": at + end.first_token_s,
        "queue_time": end.started_s - end.submitted_s,
        "request_finished_ts": at + end.finish_s,
        "decode_throughput": (end.completion_tokens - 1) / decode_s,
        "response_sent_to_client_ts": at + end.finish_s,
    }


async def _increments(ticket: Ticket) -> AsyncIterator[int]:
    """The number of new tokens, each time there are some, and at the end."""
    sent = 0
    while True:
        if ticket.generated == sent and ticket.end is None:
            ticket.changed.clear()
            await ticket.changed.wait()
            continue
        new, sent = ticket.generated - sent, ticket.generated
        ended = ticket.end is not None
        yield new
        if ended:
            return


async def _body(http: web.Request) -> dict[str, Any]:
    try:
        body = await http.json()
    except ValueError:
        raise BadRequestError("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise BadRequestError("The body must be an object.")
    return body


def _openai_prompt(prompt: object) -> Prompt:
    if isinstance(prompt, str) and prompt:
        return text_prompt(prompt)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return text_prompt(prompt[0])
    return ids_prompt(prompt)


def _native_reason(ticket: Ticket) -> dict[str, Any] | None:
    match ticket.end:
        case Finished(stopped_at_limit=True):
            return {"type": "length", "length": ticket.generated}
        case Finished():
            return {"type": "stop", "matched": 2}
        case Aborted():
            return {"type": "abort", "message": ticket.end.message, "status_code": None, "err_type": None}
        case _:
            return None


def _openai_reason(ticket: Ticket) -> str | None:
    reason = _native_reason(ticket)
    return None if reason is None else str(reason["type"])


def _head(ticket: Ticket, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": ticket.request.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def _usage(ticket: Ticket) -> dict[str, Any]:
    prompt = ticket.request.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + ticket.generated,
        "completion_tokens": ticket.generated,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def _openai_answer(ticket: Ticket, model: str, *, chat: bool) -> dict[str, Any]:
    content = WORD * ticket.generated
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {
            "role": "assistant", "content": content, "reasoning_content": None, "tool_calls": None
        }  # fmt: skip
    else:
        choice["text"] = content
    choice |= {"logprobs": None, "finish_reason": _openai_reason(ticket), "matched_stop": None}
    head = _head(ticket, model, "chat.completion" if chat else "text_completion")
    return {**head, "choices": [choice], "usage": _usage(ticket), "metadata": {"weight_version": "default"}}


def _openai_chunk(ticket: Ticket, model: str, new: int, *, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["delta"] = {
            "role": "assistant",
            "content": WORD * new,
            "reasoning_content": None,
            "tool_calls": None,
        }
    else:
        choice["text"] = WORD * new
    choice |= {"logprobs": None, "finish_reason": _openai_reason(ticket), "matched_stop": None}
    head = _head(ticket, model, "chat.completion.chunk" if chat else "text_completion")
    return {**head, "choices": [choice], "usage": None}


def _usage_chunk(ticket: Ticket, model: str, *, chat: bool) -> dict[str, Any]:
    head = _head(ticket, model, "chat.completion.chunk" if chat else "text_completion")
    return {**head, "choices": [], "usage": _usage(ticket)}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
