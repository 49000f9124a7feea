"""A rate with an honest interval, from a few minutes of a process whose memory is as long as an answer.

The quantity is the effective completion rate: tokens of *finished* responses per second. Counting finishes
is noisy: a few dozen long answers end in a window. But a finished answer's tokens were all generated at
some time, so

    credited at finish = generated in the window - growth of the stock of unfinished answers,

and in the steady state the stock does not grow on average. Adding the growth back is a control variate of
known mean zero and coefficient one. What remains is tokens generated per second of answers that finish: the
same in the long run, and far less noisy. (The caller takes out the tokens of requests that failed.)

A second known mean: when the KV pool is what limits, the running requests number n = used tokens / m, m
being the tokens in flight of each. In a window m is what its few dozen requests happen to hold; in the long
run it is known from the workload, E[(P + L/2) L] / E[L]. The rate is therefore read at n* = used / m*,
along rate ~ n^e. A decode step takes a + c n, so e = a / (a + c n): 0.8 to 0.5 at 35 to 150 running
requests in the field report. That is the prior of a regression on the window's own (n, rate) pairs.

- Where it begins: MSER, the truncation that minimises the squared standard error of what is left (White,
  1997).
- Whether it is steady: the means of the first third and the last half of what is left agree (Geweke, 1992).
- How sure: batch means whose variance is inflated for the lag-one correlation of the batches, the
  uncertainty of e times the distance to n*, and a floor for what a small sample of the workload leaves. The level
  adds what one draw of the requests in flight leaves (`equilibrium.Mix`), as long as they are the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy import stats

from tuner.workload.sample import Floats

ELASTICITY = 0.65
ELASTICITY_SD = 0.2
FLOOR_SHARE = 0.01
"""Standard error that no window goes below: the truth's own sample, and the pool's ups and downs."""
FARTHEST_SHARE = 0.25
"""A pool further than this from the equilibrium is not read as steady, whatever the correction says."""

SETTLING_STEPS = 600

_SOME_QUEUE = 0.5
_MOST_BINS = 24
_FEWEST_BINS = 8
_POINTS_PER_BIN = 3
_BATCHES = 12


@dataclass(frozen=True, slots=True)
class Point:
    """The pool at one moment. `generated_tokens` is cumulative; None is not known."""

    now_s: float
    generated_tokens: float
    running: float | None = None
    queued: float | None = None
    used_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """What is known beforehand of the pool in the long run."""

    tokens_each: float
    """KV tokens that a running request holds on average, shared prefixes apart."""
    shared_tokens: float = 0.0
    """KV tokens of the shared prefixes, each counted once."""
    max_running_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate in tokens per second, over [begin_s, end_s]."""

    rate: float
    standard_error: float
    degrees_of_freedom: float
    begin_s: float
    end_s: float
    steady: bool

    def not_steady(self) -> Estimate:
        """The same estimate, without the claim to be steady."""
        return replace(self, steady=False)

    def widened(self, share: float) -> Estimate:
        """The same estimate with a further standard error, as a share of the rate."""
        return replace(self, standard_error=float(np.hypot(self.standard_error, share * self.rate)))

    def half_width(self, confidence: float = 0.95) -> float:
        """Half width of the two-sided interval."""
        return float(self.standard_error * stats.t.ppf(0.5 + confidence / 2, self.degrees_of_freedom))


def estimate(points: Sequence[Point], pool: Pool | None) -> Estimate | None:
    """The long-run rate; None while there is too little to tell. Without `pool` nothing is corrected."""
    settled = points[settling(points) :]
    bins = min(_MOST_BINS, (len(settled) - 1) // _POINTS_PER_BIN)
    if bins >= _FEWEST_BINS:
        return _estimate(settled, bins, pool)
    bins = min(_MOST_BINS, (len(points) - 1) // _POINTS_PER_BIN)
    return _estimate(points, bins, pool).not_steady() if bins >= _FEWEST_BINS else None


def settling(points: Sequence[Point]) -> int:
    """How many leading points to leave out because the server still lets in fewer requests than it will.

    An idle SGLang reserves 70% of what its running requests may still generate, and lowers that over 600
    decode steps (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS). It matters only where requests wait for the pool. A step
    gives every running request one token, so steps are counted as tokens generated per running request.
    """
    if (mean_of(points[len(points) // 2 :], "queued") or 0.0) < _SOME_QUEUE:
        return 0
    steps = 0.0
    for at, (before, now) in enumerate(pairwise(points), start=1):
        steps += (now.generated_tokens - before.generated_tokens) / max(1.0, now.running or 1.0)
        if steps >= SETTLING_STEPS:
            return at
    return len(points)


def _estimate(points: Sequence[Point], bins: int, pool: Pool | None) -> Estimate:
    edges = np.linspace(0, len(points) - 1, bins + 1).round().astype(int)
    rates, running = _rates(points, edges), _means(points, edges, "running")
    level = running / running.mean() if running.all() else np.ones(bins)
    begin = truncation(rates / level**ELASTICITY)
    kept, level = rates[begin:], level[begin:]
    shift = _shift(points[edges[begin] :], pool) if running.all() else 0.0
    fitted = _read_at(kept, level, shift)
    return Estimate(
        rate=fitted.rate,
        standard_error=fitted.standard_error,
        degrees_of_freedom=fitted.degrees_of_freedom,
        begin_s=points[edges[begin]].now_s,
        end_s=points[-1].now_s,
        steady=begin < bins // 3 and not drifts(fitted.residuals) and abs(shift) <= FARTHEST_SHARE,
    )


@dataclass(frozen=True, slots=True)
class _Fitted:
    rate: float
    standard_error: float
    degrees_of_freedom: float
    residuals: Floats


def _read_at(rates: Floats, level: Floats, shift: float) -> _Fitted:
    """The rate at (1 + shift) times the window's mean of running requests."""
    mean = float(rates.mean())
    if mean <= 0:
        return _Fitted(0.0, 0.0, 1.0, rates)
    y, x = rates / mean - 1, level / level.mean() - 1
    noise = max(1e-6, float(((y - ELASTICITY * x) ** 2).sum()) / (len(x) - 1))
    precision = ELASTICITY_SD**-2 + float((x**2).sum()) / noise
    slope = (ELASTICITY * ELASTICITY_SD**-2 + float((x * y).sum()) / noise) / precision
    residuals = np.asarray(y - slope * x, dtype=np.float64)
    error, freedom = standard_error(residuals)
    rate = mean * (1 + shift) ** slope
    total = np.sqrt(error**2 + (shift**2) / precision + FLOOR_SHARE**2)
    return _Fitted(rate, float(rate * total), freedom, residuals)


def _shift(points: Sequence[Point], pool: Pool | None) -> float:
    """The long run's running requests over the window's, less 1; 0 unless the pool is the limit."""
    running = mean_of(points, "running")
    queued, used = mean_of(points, "queued"), mean_of(points, "used_tokens")
    if pool is None or not running or not queued or not used or queued < _SOME_QUEUE:
        return 0.0
    if pool.max_running_requests and running > 0.98 * pool.max_running_requests:
        return 0.0
    own = used - pool.shared_tokens
    return own / pool.tokens_each / running - 1 if own > 0 else 0.0


def truncation(values: Floats) -> int:
    """How many leading values to leave out (MSER), a third at most; a third: no steady part was found."""
    count = len(values)
    left = np.arange(count, 0, -1)
    sums, squares = np.cumsum(values[::-1])[::-1], np.cumsum(values[::-1] ** 2)[::-1]
    error = np.maximum(squares / left - (sums / left) ** 2, 0.0) / left
    return int(np.argmin(error[: max(1, count // 3 + 1)]))


def drifts(values: Floats) -> bool:
    """Whether the first third and the last half differ by more than chance allows (at the 1% level)."""
    first, last = values[: len(values) // 3], values[len(values) // 2 :]
    if len(first) < 2:
        return True
    error = np.hypot(first.std(ddof=1) / len(first) ** 0.5, last.std(ddof=1) / len(last) ** 0.5)
    limit = stats.t.ppf(0.995, len(first) + len(last) - 2)
    return bool(abs(first.mean() - last.mean()) > limit * np.hypot(error, FLOOR_SHARE))


def standard_error(values: Floats) -> tuple[float, float]:
    """Standard error of the mean and its degrees of freedom, by batch means.

    Batches that resemble their neighbours count for less: the variance is inflated by (1 + r) / (1 - r), r
    being their lag-one correlation if positive (an AR(1) process).
    """
    batches = min(_BATCHES, len(values))
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    centred = means - means.mean()
    spread = float((centred**2).sum())
    if spread == 0 or batches < 3:
        return 0.0, float(max(1, batches - 1))
    correlation = min(0.8, max(0.0, float((centred[1:] * centred[:-1]).sum()) / spread))
    inflation = (1 + correlation) / (1 - correlation)
    variance = spread / (batches - 1) / batches * inflation
    return float(variance**0.5), float(batches - 1)


def _rates(points: Sequence[Point], edges: Sequence[int] | np.ndarray) -> Floats:
    times = np.array([points[edge].now_s for edge in edges])
    tokens = np.array([points[edge].generated_tokens for edge in edges])
    return np.asarray(np.diff(tokens) / np.maximum(np.diff(times), 1e-9), dtype=np.float64)


def _means(points: Sequence[Point], edges: np.ndarray, name: str) -> Floats:
    spans = pairwise(edges)
    return np.array([mean_of(points[low + 1 : high + 1], name) or 0.0 for low, high in spans], dtype=np.float64)


def mean_of(points: Sequence[Point], name: str) -> float | None:
    """The mean of a gauge over the points that know it."""
    values = [value for point in points if (value := getattr(point, name)) is not None]
    return float(np.mean(values)) if values else None
