"""A small sample that stands for the whole, and an order in which every stretch of it does too.

A level lasts minutes and sees a few hundred requests. Drawn at random, their mean length alone would differ
by several per cent from the file's. So the file is cut into strata of similar answer length, each sorted by
prompt length, and the play order walks both with irrational steps (a Kronecker sequence), which spreads
every run of consecutive requests evenly over the whole: by the three-gap theorem for the golden ratio.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GOLDEN = (5**0.5 - 1) / 2
SILVER = 2**0.5 - 1


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
    """At most `count` distinct indices that represent all, in play order; the same for the same seed."""
    left = strata(output_tokens, prompt_tokens, round(len(output_tokens) ** 0.5))
    count = min(count, len(output_tokens))
    shifts = np.random.default_rng(seed).random(2)
    points = zip(kronecker(count, GOLDEN, shifts[0]), kronecker(count, SILVER, shifts[1]), strict=True)
    return np.asarray([_take(left, by_output, by_prompt) for by_output, by_prompt in points], dtype=np.int64)


def _take(left: list[list[int]], by_output: float, by_prompt: float) -> int:
    """Remove and return the index nearest to a point of the unit square; drop a used-up stratum."""
    at = int(by_output * len(left))
    taken = left[at].pop(int(by_prompt * len(left[at])))
    if not left[at]:
        del left[at]
    return taken
