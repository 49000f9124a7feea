"""A request as SGLang wants it: which route, and which JSON body.

Native `/generate` for texts and token ids: its answers tell cached tokens and retractions. Chats go to
`/v1/chat/completions`, where the server applies the model's chat template. (SGLang 0.5.6-0.5.23.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.workload import Chat, Request, Segment, Synthetic, TokenIds

NATIVE = "/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_FIRST_ID, _IDS = 100, 800
"""Synthetic token ids come from [100, 900), which every vocabulary has."""
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")
"""Words that are one token each with their leading space, for the earlier answer of an aged text."""

Texts = Mapping[int, Sequence[int]]
"""Token ids that are known for a segment: what the server really answered in an earlier turn."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call."""

    route: str
    body: dict[str, object]


def call_for(request: Request, *, stream: bool, openai: bool = False, texts: Texts | None = None) -> Call:
    """The call that plays a request; `openai` takes that route where the native one would do."""
    prompt = request.prompt
    if isinstance(prompt, Chat):
        return Call(CHAT, {**_openai_fields(request, stream), **_messages(request, prompt)})
    if isinstance(prompt, Synthetic | TokenIds):
        ids = [*_token_ids(prompt, texts or {}), *_age_ids(request)]
        return _call(request, stream, openai, ids=ids)
    return _call(request, stream, openai, text=prompt.text + _age_words(request))


def _call(
    request: Request, stream: bool, openai: bool, *, ids: list[int] | None = None, text: str | None = None
) -> Call:
    if openai:
        return Call(COMPLETIONS, {"prompt": text if ids is None else ids, **_openai_fields(request, stream)})
    sampling = {**request.sampling, "max_new_tokens": request.max_tokens, "ignore_eos": request.ignore_eos}
    prompt: dict[str, object] = {"text": text} if ids is None else {"input_ids": ids}
    return Call(NATIVE, {**prompt, "rid": request.request_id, "stream": stream, "sampling_params": sampling})


def _openai_fields(request: Request, stream: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        **request.sampling,
        "model": "default",
        "rid": request.request_id,
        "max_tokens": request.max_tokens,
        "ignore_eos": request.ignore_eos,
        "stream": stream,
    }
    return {**fields, "stream_options": {"include_usage": True}} if stream else fields


def _messages(request: Request, prompt: Chat) -> dict[str, object]:
    """An aged chat ends with the part of its answer that there is already, and asks for the rest of it."""
    if not request.age_tokens:
        return {"messages": list(prompt.messages)}
    begun = {"role": "assistant", "content": _age_words(request)}
    return {"messages": [*prompt.messages, begun], "continue_final_message": True}


def _token_ids(prompt: Synthetic | TokenIds, texts: Texts) -> Sequence[int]:
    if isinstance(prompt, TokenIds):
        return prompt.token_ids
    return [token for segment in prompt.segments for token in texts.get(segment.key) or _drawn(segment)]


def _drawn(segment: Segment) -> list[int]:
    """The same ids for the same key, whenever they are drawn."""
    draw: Callable[[], float] = random.Random(segment.key).random
    return [_FIRST_ID + int(draw() * _IDS) for _ in range(segment.tokens)]


def _age_ids(request: Request) -> list[int]:
    return _drawn(Segment(hash_of(request.request_id), request.age_tokens))


def _age_words(request: Request) -> str:
    choose = random.Random(hash_of(request.request_id))
    return "".join(f" {choose.choice(_WORDS)}" for _ in range(request.age_tokens))


def hash_of(text: str) -> int:
    """A number for a text that is the same in every process."""
    return int.from_bytes(random.Random(text).randbytes(7), "big")
