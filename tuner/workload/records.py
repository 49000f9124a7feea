"""What one record of a workload file means, whichever of the known shapes it has.

    {"text": ...} or {"prompt": ...}            a plain prompt
    {"messages": [...]}                         a chat
    {"input_ids": [...]} or {"token_ids": ...}  tokens
    {"custom_id": ..., "body": {...}}           a line of an OpenAI batch file
    {"conversations": [...]}                    ShareGPT: every human turn asks, every answer gives a length
    {"timestamp": ms, "input_length": ...,
     "output_length": ..., "hash_ids": [...]}   a trace (Mooncake's form: one hash per 512 tokens of prompt)
    {"prompt_tokens": ..., "output_tokens": ..} lengths alone, from a recorded run

`max_tokens` (or `max_new_tokens`) and `sampling_params` may stand in any record. A recorded `output_tokens`
prescribes the length: the server is told to ignore the end of sequence and generate exactly that many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.workload.request import Chat, Prompt, Request, Segment, Session, Synthetic, Text, TokenIds
from tuner.workload.source import private_key

Record = Mapping[str, object]

DEFAULT_MAX_TOKENS = 1024
"""For a request that names no limit."""
CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English text; the server's own count replaces it as soon as it answers."""
_TRACE_BLOCK_TOKENS = 512
_RECORDED = ("output_tokens", "completion_tokens", "output_length", "output_len")
_INPUTS = ("prompt_tokens", "input_length", "input_len")


class RecordError(ValueError):
    """A record has none of the known shapes, or a value of the wrong kind.

    The text says what would be right.
    """


def session_of(record: Record, index: int) -> Session:
    """The requests of one record. Raises RecordError."""
    if "conversations" in record:
        return _sharegpt(record, index)
    body = record.get("body", record)
    if not isinstance(body, Mapping):
        raise RecordError("`body` must be an object")
    return (_single({**record, **body}, index),)


def _single(record: Record, index: int) -> Request:
    prompt = _prompt(record, index)
    sampling = record.get("sampling_params", {})
    if not isinstance(sampling, Mapping):
        raise RecordError("`sampling_params` must be an object")
    asked = _number({**sampling, **record}, ("max_tokens", "max_new_tokens", "max_completion_tokens"))
    recorded = _number(record, _RECORDED)
    ignore_eos = recorded is not None or bool(sampling.get("ignore_eos") or record.get("ignore_eos"))
    max_tokens = recorded or asked or DEFAULT_MAX_TOKENS
    return Request(
        request_id=str(index),
        prompt=prompt,
        prompt_tokens=_number(record, _INPUTS) or _prompt_tokens(prompt),
        max_tokens=max_tokens,
        output_tokens=max_tokens if ignore_eos else None,
        ignore_eos=ignore_eos,
        sampling={key: value for key, value in _sampling(record, sampling).items() if value is not None},
        arrival_s=_arrival_s(record),
        session=str(index),
    )


def _sampling(record: Record, sampling: Mapping[str, object]) -> dict[str, object]:
    named = {key: record.get(key) for key in ("temperature", "top_p", "top_k", "min_p", "stop", "seed")}
    kept = {key: value for key, value in sampling.items() if key not in ("max_new_tokens", "ignore_eos")}
    return {**named, **kept}


def _prompt(record: Record, index: int) -> Prompt:
    for key in ("text", "prompt"):
        if isinstance(record.get(key), str):
            return Text(str(record[key]))
    for key in ("input_ids", "token_ids", "prompt_token_ids", "prompt"):
        tokens = record.get(key)
        if isinstance(tokens, Sequence) and not isinstance(tokens, str):
            return TokenIds(_token_ids(key, tokens))
    messages = record.get("messages")
    if isinstance(messages, Sequence) and messages and all(isinstance(entry, Mapping) for entry in messages):
        return Chat(tuple(messages))
    length = _number(record, _INPUTS)
    if length is None:
        raise RecordError("a record needs `text`, `messages`, `input_ids`, `conversations` or `prompt_tokens`")
    return Synthetic(_segments(record, index, length))


def _token_ids(key: str, tokens: Sequence[object]) -> tuple[int, ...]:
    if not tokens or not all(isinstance(token, int) and token >= 0 for token in tokens):
        raise RecordError(f"`{key}` must be a list of token ids")
    return tuple(token for token in tokens if isinstance(token, int))


def _segments(record: Record, index: int, length: int) -> tuple[Segment, ...]:
    hashes = record.get("hash_ids")
    if not isinstance(hashes, Sequence) or not hashes:
        return (Segment(private_key(index), length),)
    left = [min(_TRACE_BLOCK_TOKENS, length - at * _TRACE_BLOCK_TOKENS) for at in range(len(hashes))]
    return tuple(
        Segment(private_key(int(str(name))), size, shared=True)
        for name, size in zip(hashes, left, strict=True)
        if size > 0
    )


def _sharegpt(record: Record, index: int) -> Session:
    entries = record["conversations"]
    if not isinstance(entries, Sequence):
        raise RecordError("`conversations` must be a list of {from, value}")
    messages: tuple[dict[str, object], ...] = ()
    requests: list[Request] = []
    for entry in entries:
        answers = str(entry.get("from")) in ("gpt", "assistant", "chatgpt", "bard")
        value = str(entry.get("value", ""))
        if answers and messages:
            base = _single({"messages": messages, "output_tokens": text_tokens(value)}, index)
            turn = len(requests)
            requests.append(replace(base, request_id=f"{index}.{turn}", turn=turn))
        messages = (*messages, {"role": "assistant" if answers else "user", "content": value})
    if not requests:
        raise RecordError("`conversations` needs a human turn and an answer")
    return tuple(requests)


def text_tokens(text: str) -> int:
    """A first estimate of a text's tokens."""
    return max(1, len(text) // CHARACTERS_PER_TOKEN)


def _prompt_tokens(prompt: Prompt) -> int:
    if isinstance(prompt, Text):
        return text_tokens(prompt.text)
    if isinstance(prompt, Chat):
        return sum(text_tokens(str(message.get("content", ""))) for message in prompt.messages)
    if isinstance(prompt, TokenIds):
        return len(prompt.token_ids)
    return sum(segment.tokens for segment in prompt.segments)


def _number(record: Record, names: Sequence[str]) -> int | None:
    for name in names:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RecordError(f"`{name}` must be a whole number of at least 1, not {value!r}")
        return value
    return None


def _arrival_s(record: Record) -> float | None:
    for name, scale in (("arrival_s", 1.0), ("timestamp", 1e-3)):
        value = record.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) * scale
    return None
