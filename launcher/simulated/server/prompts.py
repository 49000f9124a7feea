"""From an HTTP body to a SimRequest: token counts, shared prefixes and the length of the answer.

There is no tokenizer: text counts one token per four UTF-8 bytes. Prefixes are recognised in blocks of 64
tokens, by a hash of everything up to the block's end.
"""

from __future__ import annotations

import hashlib
import math
import random
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launcher.simulated.events import SimRequest
from launcher.simulated.presets.schema import Answers
from launcher.simulated.radix import Segment

BLOCK_TOKENS = 64
_BYTES_PER_TOKEN = 4
_DEFAULT_MAX_NEW_TOKENS = 128


class BadRequestError(Exception):
    """The body is not what SGLang takes; the message goes into the 400."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that matter here."""

    max_new_tokens: int
    ignore_eos: bool


def request_of(body: dict[str, Any], prompt: bytes, tokens: int, sampling: Sampling, answers: Answers) -> SimRequest:
    """A request of `tokens` tokens. Without ignore_eos it ends at a length drawn from the preset."""
    request_id = str(body.get("rid") or uuid.uuid4().hex)
    output = sampling.max_new_tokens
    if not sampling.ignore_eos:
        output = max(1, min(output, round(_answer_tokens(prompt, request_id, answers))))
    return SimRequest(request_id, tuple(_segments(prompt, tokens)), output, sampling.max_new_tokens)


def _answer_tokens(prompt: bytes, request_id: str, answers: Answers) -> float:
    """A log-normal length; the same request id and prompt always get the same."""
    spread = math.sqrt(math.log1p(answers.sd_share**2))
    chance = random.Random(prompt[-256:] + request_id.encode())
    return chance.lognormvariate(math.log(answers.mean_tokens) - spread**2 / 2, spread)


def native_prompt(body: dict[str, Any]) -> tuple[bytes, int]:
    """The prompt of /generate: `input_ids` or `text`."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is not None:
        return ids_prompt(ids)
    if isinstance(text, str) and text:
        return text_prompt(text)
    raise BadRequestError("Either text, input_ids or input_embeds should be provided.")


def ids_prompt(ids: object) -> tuple[bytes, int]:
    """A list of token ids (the first of a batch of one)."""
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if not isinstance(ids, list) or not ids:
        raise BadRequestError("input_ids must be a list of token ids; the simulation takes one prompt per request.")
    try:
        return array("q", ids).tobytes(), len(ids)
    except (TypeError, OverflowError):
        raise BadRequestError("input_ids must be integers.") from None


def text_prompt(text: str) -> tuple[bytes, int]:
    raw = text.encode()
    return raw, max(1, round(len(raw) / _BYTES_PER_TOKEN))


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


def _segments(prompt: bytes, tokens: int) -> Iterator[Segment]:
    """Blocks whose keys chain over everything before them, then the last token, which is always computed."""
    last = len(prompt) // tokens
    body, left = prompt[: len(prompt) - last], tokens - 1
    step = max(1, len(body) * BLOCK_TOKENS // max(1, left))
    digest = hashlib.blake2b(digest_size=8)
    for place in range(0, len(body), step):
        size = left if place + step >= len(body) else min(BLOCK_TOKENS, left)
        if size <= 0:
            break
        digest.update(body[place : place + step])
        yield int.from_bytes(digest.copy().digest()), size
        left -= size
    digest.update(prompt[len(prompt) - last :] or b"end")
    yield int.from_bytes(digest.digest()), 1 + left
