"""Reads what SGLang answers, streamed or whole, native or OpenAI-compatible, into one Answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_COUNT = b'"completion_tokens":'
_DATA = b"data: "
_DONE = b"[DONE]"
_LAST_EVENTS = 4
"""Native: the last event, then [DONE]. OpenAI: the finish reason, an empty choice, the usage, [DONE]."""
KEPT_REASONS = ("stop", "length")
"""Finish reasons that count as a finished response; `abort` does not."""


class BadAnswerError(Exception):
    """The server answered with something that is no answer; `kind` names it for the count of errors."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one response, as the server told it."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    retractions: int = 0
    output_ids: tuple[int, ...] = ()


def tokens_so_far(piece: bytes, before: int) -> int:
    """Tokens generated after a piece of a stream.

    Native events carry the count: the last one in the piece is read without parsing any (an event may hold
    the whole answer so far). OpenAI events carry one token each, but for the last two.
    """
    at = piece.rfind(_COUNT)
    if at < 0:
        return before + piece.count(b'"choices"')
    digits = piece[at + len(_COUNT) : at + len(_COUNT) + 12].lstrip()
    end = next((place for place, digit in enumerate(digits) if not 48 <= digit <= 57), 0)
    return int(digits[:end]) if end else before


def parse_whole(content: bytes) -> Answer:
    """An answer that came in one piece. Raises BadAnswerError."""
    return _answer([_object(content)])


def parse_stream(tail: bytes) -> Answer:
    """An answer from the last events of its stream; any before them are not parsed. Raises BadAnswerError."""
    lines = [line[len(_DATA) :].strip() for line in tail.split(b"\n") if line.startswith(_DATA)]
    events = [_object(line) for line in lines[-_LAST_EVENTS:] if line != _DONE]
    if not events:
        raise BadAnswerError("disconnected")
    return _answer(events)


def _object(content: bytes) -> Mapping[str, object]:
    try:
        parsed = json.loads(content)
    except ValueError:
        raise BadAnswerError("not_json") from None
    if not isinstance(parsed, Mapping):
        raise BadAnswerError("not_an_answer")
    if "error" in parsed:
        raise BadAnswerError("error_in_stream")
    return parsed


def _answer(events: list[Mapping[str, object]]) -> Answer:
    native = events[-1].get("meta_info")
    if isinstance(native, Mapping):
        return _native(native, events[-1])
    return _openai(events)


def _native(meta: Mapping[str, object], event: Mapping[str, object]) -> Answer:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, Mapping) else None
    details = meta.get("cached_tokens_details")
    ids = event.get("output_ids")
    return Answer(
        finish_reason=_kept(kind),
        prompt_tokens=_whole(meta.get("prompt_tokens")),
        completion_tokens=_whole(meta.get("completion_tokens")),
        cached_tokens=_whole(meta.get("cached_tokens")),
        cached_host_tokens=_whole(details.get("host")) if isinstance(details, Mapping) else 0,
        # total_retractions until 0.5.10, num_retractions from 0.5.12 on.
        retractions=_whole(meta.get("num_retractions", meta.get("total_retractions"))),
        output_ids=tuple(_whole(token) for token in ids) if isinstance(ids, list) else (),
    )


def _openai(events: list[Mapping[str, object]]) -> Answer:
    reasons = [choice.get("finish_reason") for event in events for choice in _choices(event)]
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    if not isinstance(usage, Mapping):
        raise BadAnswerError("no_usage")
    details = usage.get("prompt_tokens_details")
    return Answer(
        finish_reason=_kept(next((reason for reason in reversed(reasons) if reason), None)),
        prompt_tokens=_whole(usage.get("prompt_tokens")),
        completion_tokens=_whole(usage.get("completion_tokens")),
        cached_tokens=_whole(details.get("cached_tokens")) if isinstance(details, Mapping) else 0,
    )


def _choices(event: Mapping[str, object]) -> list[Mapping[str, object]]:
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, Mapping)] if isinstance(choices, list) else []


def _kept(reason: object) -> str:
    if reason is None:
        raise BadAnswerError("disconnected")
    if reason not in KEPT_REASONS:
        raise BadAnswerError(f"finish_{reason}")
    return str(reason)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
