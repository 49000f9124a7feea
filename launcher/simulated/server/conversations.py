"""Which texts stand at the head of a prompt: the turns before it, whose answers the radix cache holds.

The engine's radix tree knows runs of tokens by their keys and does not split them, whereas a client sends plain
text. So every prompt is remembered with the answer that it will get (the simulated model always says the same), and
a prompt that goes on from there is cut where the earlier turn was. Other prompts are cut into blocks of 64 tokens,
keyed by a hash of everything up to the block's end, so that common beginnings are found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from launcher.simulated.radix import Segment

BLOCK_TOKENS = 64
_STRIDE_BYTES = 512
_GENERATION = 8192
"""Turns that are remembered at least; twice as many at most."""

Segments = tuple[Segment, ...]
Turns = dict[tuple[bytes, int], dict[bytes, Segments]]
"""By hash of the text's whole strides and the length of what is left of it, then by that rest."""


@dataclass(slots=True)
class Conversations:
    """The turns that one server was asked for, the latest thousands."""

    _young: Turns = field(default_factory=dict)
    _old: Turns = field(default_factory=dict)
    _rests: dict[bytes, set[int]] = field(default_factory=dict)
    """How much is left after the strides of this hash, in any of the turns."""
    _count: int = 0

    def segments(self, text: bytes, tokens: int) -> Segments:
        """A prompt of `tokens` tokens as the radix tree knows it."""
        length, known = self._longest_turn(text)
        left = tokens - sum(size for _, size in known)
        if left < 1 or length == len(text):
            return tuple(_blocks(text, tokens, b""))
        return (*known, *_blocks(text[length:], left, str(known).encode() if known else b""))

    def remember(self, text: bytes, segments: Segments, answer: bytes, answer_tokens: int) -> int:
        """The next turn may begin with this prompt and its answer. Returns the answer's key."""
        whole = text + answer
        key = int.from_bytes(hashlib.blake2b(whole, digest_size=8).digest())
        *_, digest = _stride_hashes(whole)
        rest = whole[len(whole) // _STRIDE_BYTES * _STRIDE_BYTES :]
        self._young.setdefault((digest, len(rest)), {})[rest] = (*segments, (key, answer_tokens))
        self._rests.setdefault(digest, set()).add(len(rest))
        self._grow_old()
        return key

    def _longest_turn(self, text: bytes) -> tuple[int, Segments]:
        """The longest remembered text that this one begins with: its bytes and its segments."""
        for at, digest in reversed(list(enumerate(_stride_hashes(text)))):
            begin = at * _STRIDE_BYTES
            for size in sorted(self._rests.get(digest, ()), reverse=True):
                rest, place = text[begin : begin + size], (digest, size)
                found = self._young.get(place, {}).get(rest) or self._old.get(place, {}).get(rest)
                if found:
                    return begin + size, found
        return 0, ()

    def _grow_old(self) -> None:
        self._count += 1
        if self._count % _GENERATION == 0:
            self._old, self._young, self._rests = self._young, {}, {}
            for digest, size in self._old:
                self._rests.setdefault(digest, set()).add(size)


def _stride_hashes(text: bytes) -> Iterator[bytes]:
    """A hash of nothing, of the first stride, of the first two, ..."""
    chain = hashlib.blake2b(digest_size=8)
    yield chain.digest()
    for end in range(_STRIDE_BYTES, len(text) + 1, _STRIDE_BYTES):
        chain.update(text[end - _STRIDE_BYTES : end])
        yield chain.digest()


def _blocks(text: bytes, tokens: int, before: bytes) -> Iterator[Segment]:
    """Blocks whose keys chain over everything before them, then the last token, which is always computed."""
    last = len(text) // tokens
    body, left = text[: len(text) - last], tokens - 1
    step = max(1, len(body) * BLOCK_TOKENS // max(1, left))
    chain = hashlib.blake2b(before, digest_size=8)
    for place in range(0, len(body), step):
        size = left if place + step >= len(body) else min(BLOCK_TOKENS, left)
        if size <= 0:
            break
        chain.update(body[place : place + step])
        yield int.from_bytes(chain.digest()), size
        left -= size
    chain.update(text[len(text) - last :] or b"end")
    yield int.from_bytes(chain.digest()), 1 + left
