"""From an HTTP body to a SimRequest: token counts, shared prefixes and the length of the answer.

There is no tokenizer: text counts one token per four UTF-8 bytes. What a prompt shares with others is found by
`conversations`.
"""

from __future__ import annotations

import math
import random
import uuid
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.simulated.events import SimRequest
from launcher.simulated.presets.schema import Answers
from launcher.simulated.server.conversations import Conversations

WORD = " word"
"""Every token of an answer, as text."""
_ID_PERIOD = 30_000
_BYTES_PER_TOKEN = 4
_DEFAULT_MAX_NEW_TOKENS = 128


class BadRequestError(Exception):
    """The body is not what SGLang takes; the message goes into the 400."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that matter here."""

    max_new_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as bytes, and how many tokens it counts."""

    text: bytes
    tokens: int
    answer: Callable[[int], bytes]
    """How an answer of so many tokens reads where the next turn's prompt repeats it."""


def request_of(
    body: dict[str, Any], prompt: Prompt, sampling: Sampling, answers: Answers, conversations: Conversations
) -> SimRequest:
    """A request. Without ignore_eos it ends at a length drawn from the preset."""
    request_id = str(body.get("rid") or uuid.uuid4().hex)
    output = sampling.max_new_tokens
    if not sampling.ignore_eos:
        output = max(1, min(output, round(_answer_tokens(prompt.text, request_id, answers))))
    segments = conversations.segments(prompt.text, prompt.tokens)
    answer_key = conversations.remember(prompt.text, segments, prompt.answer(output), output)
    return SimRequest(request_id, segments, output, sampling.max_new_tokens, answer_key)


def answer_ids(count: int) -> list[int]:
    """The token ids of an answer: always the same."""
    return [1000 + (index * 7919) % _ID_PERIOD for index in range(count)]


_ID_BYTES = array("q", answer_ids(_ID_PERIOD)).tobytes()


def _answer_in_ids(tokens: int) -> bytes:
    return (_ID_BYTES * (tokens // _ID_PERIOD + 1))[: tokens * array("q").itemsize]


def _answer_in_text(tokens: int) -> bytes:
    return WORD.encode() * tokens


def _answer_in_chat(tokens: int) -> bytes:
    return _turn("assistant", WORD * tokens)


def _answer_tokens(prompt: bytes, request_id: str, answers: Answers) -> float:
    """A log-normal length; the same request id and prompt always get the same."""
    spread = math.sqrt(math.log1p(answers.sd_share**2))
    chance = random.Random(prompt[-256:] + request_id.encode())
    return chance.lognormvariate(math.log(answers.mean_tokens) - spread**2 / 2, spread)


def native_prompt(body: dict[str, Any]) -> Prompt:
    """The prompt of /generate: `input_ids` or `text`."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        return ids_prompt(ids)
    if isinstance(text, str) and text:
        return text_prompt(text)
    raise BadRequestError("Either text, input_ids or input_embeds should be provided.")


def ids_prompt(ids: object) -> Prompt:
    """A list of token ids (the first of a batch of one)."""
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if not isinstance(ids, list) or not ids:
        raise BadRequestError("input_ids must be a list of token ids; the simulation takes one prompt per request.")
    try:
        return Prompt(array("q", ids).tobytes(), len(ids), _answer_in_ids)
    except (TypeError, OverflowError):
        raise BadRequestError("input_ids must be integers.") from None


def text_prompt(text: str) -> Prompt:
    """A plain text."""
    return Prompt(text.encode(), _tokens_of(text.encode()), _answer_in_text)


def chat_prompt(messages: object) -> Prompt:
    """Chat messages, with the role of each in front of it."""
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise BadRequestError("messages must be a list of at least one message.")
    text = b"".join(_turn(message.get("role"), message.get("content")) for message in messages)
    return Prompt(text, _tokens_of(text), _answer_in_chat)


def _turn(role: object, content: object) -> bytes:
    return f"<{role}>{content}".encode()


def _tokens_of(raw: bytes) -> int:
    return max(1, round(len(raw) / _BYTES_PER_TOKEN))


def native_sampling(body: dict[str, Any]) -> Sampling:
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise BadRequestError("sampling_params must be an object.")
    return Sampling(_positive(params.get("max_new_tokens", _DEFAULT_MAX_NEW_TOKENS)), bool(params.get("ignore_eos")))


def openai_sampling(body: dict[str, Any], default: int) -> Sampling:
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or default
    return Sampling(_positive(limit), bool(body.get("ignore_eos")))


def _positive(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequestError(f"max_new_tokens must be at least 1, got {value!r}.")
    return value
