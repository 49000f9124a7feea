"""A small sample that stands for the whole, and an order in which every stretch of it does too.

A level lasts minutes and sees a few hundred requests. Drawn at random, their mean length alone would differ
by several per cent from the file's. So the file is cut into ranges of similar answer length, each sorted by
prompt length, and the play order walks both with irrational steps (a Kronecker sequence), which spreads
every run of consecutive requests evenly over the whole: by the three-gap theorem for the golden ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GOLDEN = (5**0.5 - 1) / 2
SILVER = 2**0.5 - 1
_ROUNDS = 4
_BALANCE_SHARE = 0.002
"""By which the sample's means may differ from the whole's."""


def kronecker(count: int, step: float, shift: float) -> Floats:
    """`count` points in [0, 1); every run of neighbours is spread evenly for a golden `step`."""
    points: Floats = np.asarray((np.arange(count) * step + shift) % 1.0, dtype=np.float64)
    return points


def strata(output_tokens: Ints, prompt_tokens: Ints, count: int) -> list[list[int]]:
    """Indices in `count` strata of rising answer length, each in order of prompt length."""
    order = np.lexsort((prompt_tokens, output_tokens))
    parts = np.array_split(order, max(1, count))
    return [[int(index) for index in part[np.argsort(prompt_tokens[part], kind="stable")]] for part in parts]


def stratified(output_tokens: Ints, prompt_tokens: Ints, count: int, seed: int) -> Ints:
    """At most `count` distinct indices that represent all, in play order; the same for the same seed.

    One of each of `count` ranges of answer length, so that every length counts as often as in the whole. The mean
    lengths are the whole's, and so are the tokens that a running request holds: with heavy tails, a few of the longest
    answers decide that.
    """
    count = min(count, len(output_tokens))
    shifts = np.random.default_rng(seed).random(2)
    ranges = _ranges(output_tokens, prompt_tokens, count)
    played = np.argsort(np.argsort(kronecker(count, GOLDEN, shifts[0]), kind="stable"), kind="stable")
    by_prompt = kronecker(count, SILVER, shifts[1])
    taken = np.zeros(count, dtype=np.int64)
    for at, share in zip(played, by_prompt, strict=True):
        taken[at] = ranges[at][int(share * len(ranges[at]))]
    return np.asarray(_balanced(ranges, taken, _moments(output_tokens, prompt_tokens))[played], dtype=np.int64)


def _ranges(output_tokens: Ints, prompt_tokens: Ints, count: int) -> list[Ints]:
    """Indices in `count` ranges of rising answer length, larger and smaller ones mixed, each in order of prompt."""
    order = np.lexsort((prompt_tokens, output_tokens))
    edges = np.linspace(0, len(order), count + 1).round().astype(int)
    parts = (order[low:high] for low, high in pairwise(edges))
    return [part[np.argsort(prompt_tokens[part], kind="stable")] for part in parts]


def _balanced(ranges: Sequence[Ints], taken: Ints, moments: Floats) -> Ints:
    """`taken`, from the longest range down exchanged within a range until it has the whole's `moments`, by column."""
    shares = moments / np.maximum(moments.mean(axis=0), 1e-9)
    over = shares[taken].sum(axis=0) - len(taken)
    taken = taken.copy()
    for at in [*reversed(range(len(taken)))] * _ROUNDS:
        if np.abs(over).max() <= _BALANCE_SHARE * len(taken):
            break
        changed = over - shares[taken[at]] + shares[ranges[at]]
        best = int(np.argmin((changed**2).sum(axis=1)))
        taken[at], over = ranges[at][best], changed[best]
    return taken


def _moments(output_tokens: Ints, prompt_tokens: Ints) -> Floats:
    """What a rate hangs on, by row: lengths, and the tokens that a request holds times the steps it holds them."""
    output, prompt = output_tokens.astype(float), prompt_tokens.astype(float)
    return np.stack([output, output**2, prompt, prompt * output], axis=1)
