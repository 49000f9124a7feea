"""One request of a workload: what is sent, how much it asks for, and which length is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Text:
    """A plain prompt."""

    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages, as `/v1/chat/completions` takes them."""

    messages: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokenised already."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of synthetic tokens. The same key at the same place is the same text, so its KV can be shared."""

    key: int
    tokens: int
    shared: bool = False
    """Other sessions begin with it too; a private segment gets a new key each time its session is played."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A prompt of which only lengths and shared beginnings are given."""

    segments: tuple[Segment, ...]


Prompt = Text | Chat | TokenIds | Synthetic


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Tokens of a text or a chat are an estimate until the server has counted them."""

    request_id: str
    prompt: Prompt
    prompt_tokens: int
    max_tokens: int
    output_tokens: int | None
    """The length its answer will have; None when the model decides and no recorded run tells."""
    group: str = "all"
    ignore_eos: bool = False
    """Generate exactly `max_tokens`: for lengths that are prescribed rather than the model's own."""
    sampling: Mapping[str, object] = field(default_factory=dict)
    prefix_tokens: int = 0
    """Leading prompt tokens whose KV other running requests share."""
    arrival_s: float | None = None
    """Seconds after the start of a trace."""
    session: str = ""
    """Turns of one session follow one another; a request of its own is a session of one turn."""
    turn: int = 0
    answer_key: int | None = None
    """Of a synthetic session: the key of the segment in which the next turn repeats this answer."""
    age_tokens: int = 0
    """Answer tokens that a first-wave request carries as prompt, as if generated earlier."""

    @property
    def tokens_to_generate(self) -> int:
        """What it is expected to generate from now on: the whole answer, less its age."""
        return (self.output_tokens or self.max_tokens) - self.age_tokens

    def aged(self, age_tokens: int) -> Request:
        """The same request as it would be in mid-life, `age_tokens` of its answer generated already."""
        left = self.tokens_to_generate + self.age_tokens - age_tokens
        return replace(self, age_tokens=age_tokens, max_tokens=left, ignore_eos=True)

    def played(self, play: int) -> Request:
        """The same request with private text of its own, so that no earlier play left its KV in the cache."""
        named = replace(self, request_id=f"{self.request_id}#{play}", session=f"{self.session}#{play}")
        if not isinstance(self.prompt, Synthetic):
            return named
        segments = tuple(_private(segment, play) for segment in self.prompt.segments)
        answer_key = None if self.answer_key is None else _played_key(self.answer_key, play)
        return replace(named, prompt=Synthetic(segments), answer_key=answer_key)


def _private(segment: Segment, play: int) -> Segment:
    return segment if segment.shared else replace(segment, key=_played_key(segment.key, play))


def _played_key(key: int, play: int) -> int:
    return (key * 1_000_003 + play) % 2**61


Session = tuple[Request, ...]
"""Requests that follow one another; the prompt of each turn begins with the turn before and its answer."""
