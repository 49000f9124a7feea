"""A prompt as runs of tokens that may be shared, which is all that the simulated engine wants to know of
it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from tuner.workload import Chat, Request, Synthetic, Text, TokenIds

_BLOCK_CHARACTERS = 1024
_BLOCK_TOKENS = 256


def segments_of(request: Request) -> tuple[tuple[int, int], ...]:
    """(key, tokens) runs of the whole prompt, an aged request's earlier answer included."""
    age = ((_key("age", request.request_id), request.age_tokens),) if request.age_tokens else ()
    return (*_prompt_segments(request), *age)


def _prompt_segments(request: Request) -> tuple[tuple[int, int], ...]:
    prompt = request.prompt
    if isinstance(prompt, Synthetic):
        return tuple((segment.key, segment.tokens) for segment in prompt.segments)
    keys = [_key(block) for block in _blocks(prompt)]
    each, left = divmod(request.prompt_tokens, len(keys))
    return tuple((key, each + (at < left)) for at, key in enumerate(keys) if each + (at < left))


def _blocks(prompt: Text | Chat | TokenIds) -> Iterator[str]:
    """Pieces of a prompt; prompts that begin alike begin with the same pieces."""
    if isinstance(prompt, Chat):
        yield from (json.dumps(dict(message), sort_keys=True, default=str) for message in prompt.messages)
    elif isinstance(prompt, TokenIds):
        ids = prompt.token_ids
        yield from (str(ids[at : at + _BLOCK_TOKENS]) for at in range(0, len(ids), _BLOCK_TOKENS))
    else:
        text = prompt.text or " "
        yield from (text[at : at + _BLOCK_CHARACTERS] for at in range(0, len(text), _BLOCK_CHARACTERS))


def _key(*parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
