"""Where sessions come from: a source knows all lengths, and makes a request only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import stats

from tuner.workload.request import Segment, Session
from tuner.workload.sample import Floats, Ints


class Source(Protocol):
    """A sequence of sessions, read or made one at a time."""

    @property
    def total_requests(self) -> int | None:
        """How many requests the user's whole job has; None when it is a distribution without an end."""
        ...

    @property
    def prompt_tokens(self) -> Ints:
        """New prompt tokens of each session, summed over its turns."""
        ...

    @property
    def output_tokens(self) -> Ints:
        """Answer tokens expected of each session, over its turns; the cap where that is unknown."""
        ...

    def session(self, index: int) -> Session:
        """The requests of one session, in turn order."""
        ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """A length distribution: log-normal with this mean and coefficient of variation; cv 0 is a constant."""

    mean: float
    cv: float = 0.0

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """`count` lengths of at least one token, in random order: the middles of `count` equally likely ranges.

        Drawn freely, a few of the longest answers would decide what thousands stand for: with heavy tails, two seeds
        would be two workloads.
        """
        if self.cv == 0:
            return np.full(count, max(1, round(self.mean)), dtype=np.int64)
        sigma = float(np.sqrt(np.log1p(self.cv**2)))
        places: Floats = np.asarray(stats.norm.ppf((rng.permutation(count) + 0.5) / count), dtype=np.float64)
        drawn: Floats = np.exp(np.log(self.mean) - sigma**2 / 2 + sigma * places)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)


def private_key(*parts: int) -> int:
    """A stable key for synthetic text, from the numbers that name it."""
    key = 0
    for part in parts:
        key = (key * 6_364_136_223_846_793_005 + part + 1_442_695_040_888_963_407) % 2**61
    return key


def shared_segment(tokens: int, *parts: int) -> Segment:
    return Segment(private_key(*parts), tokens, shared=True)
