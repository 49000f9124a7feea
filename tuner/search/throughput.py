"""The physical mean of the rate: decode steps that cost a + c * n, and a pool that bounds n.

    running  n = soft minimum of (concurrency, usable * tokens / tokens in flight each, max running requests)
    step     s = A + C * n * (1 + beta * n / 100), times an eager factor where n exceeds the largest decode graph
    rate     R = n / s
A and C are effective: the prefill that falls between decode steps is a cost per output token and adds to C. They, the
tokens in flight and the effects of dtype, HiCache and further flags are fitted to the measured levels, with priors
where the levels are silent (A / C near 140: 52 ms and 0.363 ms on 8 x RTX PRO 6000).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import expit

from tuner.search.points import Point
from tuner.space import ELEMENT_BYTES, Space
from tuner.trial import Setting

Array = NDArray[np.float64]

A_OVER_C = 140.0
A_OVER_C_LOG_SD = 0.8
SOFTNESS = 6.0
"""Exponent of the soft minimum: admission tightens a little before the pool is full."""
MISFIT_LOG_SD = 0.02
"""What the curve itself leaves out."""
SMALLER_DTYPE_LOG_COST = -0.08
SMALLER_DTYPE_LOG_SD = 0.12
"""A smaller KV element shortens the reading of the cache, but a decode step is more than that."""
EAGER_LOG_COST = 0.25
EAGER_LOG_SD = 0.2
"""A decode step without a graph takes longer; how much is the build's and the GPU's affair."""
EAGER_WIDTH = 0.04
"""Share of the largest graph batch over which running requests, which vary, pass from graph to eager."""
BEND_SD, BEND_UNIT = 0.15, 100.0
"""beta: how much dearer a request gets per hundred that run beside it. Straight is the rule, compute-bound not."""
FLAG_LOG_SD = 0.06
CACHE_ROOM, CACHE_ROOM_GAIN, ROOM_UNIT_TOKENS = "cache room", (0.05, 0.15), 200_000.0
"""Log gain per factor of e in capacity from a better prefix cache: mean and standard deviation."""
IN_FLIGHT_LOG_SD = 0.05
UNKNOWN_IN_FLIGHT = 2000.0
USABLE_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Effect:
    """One multiplicative effect on the rate: the log gain of a knob's value over the plain one, with its prior."""

    name: str
    value: object
    prior_mean: float
    prior_sd: float


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a rate is asked for, as columns of equal length."""

    concurrency: Array
    tokens: Array
    most_running: Array
    graph_batch: float
    """Above this many running requests there is no decode graph."""
    smaller: Array
    """1 - element bytes / 2: how much smaller than bfloat16 a KV element is."""
    effects: Array
    """One column per Effect: 0 or 1, or how much cache room there is."""


def effects_of(space: Space, hicache: tuple[float, float], *, reuse: bool) -> tuple[Effect, ...]:
    """The effects that a space can show. `hicache` is the prior mean and standard deviation of HiCache's gain.

    Where prompts share prefixes, a larger pool keeps more of them, whatever the number of running requests.
    """
    found = [Effect(CACHE_ROOM, None, *CACHE_ROOM_GAIN)] if reuse else []
    if any(size_gb > 0 for size_gb in space.hicache_sizes_gb) and len(space.hicache_sizes_gb) > 1:
        found.append(Effect("hicache-size", True, *hicache))
    for name, values in space.further.items():
        if name != "max-total-tokens":
            found += [Effect(name, value, 0.0, FLAG_LOG_SD) for value in values[1:]]
    return tuple(found)


def rows_of(
    asked: Sequence[tuple[Setting, int]],
    tokens: Sequence[float],
    effects: Sequence[Effect],
    graph_batch: int,
) -> Rows:
    """Columns for (setting, concurrency) pairs; `tokens` are the capacities that go with them."""
    return Rows(
        concurrency=np.array([float(concurrency) for _, concurrency in asked]),
        tokens=np.array(tokens, dtype=float),
        most_running=np.array([_most_running(setting) for setting, _ in asked]),
        graph_batch=float(graph_batch),
        smaller=np.array([1 - ELEMENT_BYTES[setting.kv_cache_dtype] / 2 for setting, _ in asked]),
        effects=np.array(
            [[_has(setting, one, held) for one in effects] for (setting, _), held in zip(asked, tokens, strict=True)]
        ).reshape(len(asked), len(effects)),
    )


def _most_running(setting: Setting) -> float:
    cap = setting.flags.get("max-running-requests")
    return float(cap) if isinstance(cap, int) else 4096.0


def _has(setting: Setting, effect: Effect, tokens: float) -> float:
    if effect.name == CACHE_ROOM:
        return math.log(max(tokens, 1.0) / ROOM_UNIT_TOKENS)
    if effect.name == "hicache-size":
        return float(setting.hicache_size_gb > 0)
    return float(setting.flags.get(effect.name) == effect.value)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The fitted curve. Parameters: log A, log C, log tokens in flight, dtype effect on C, then the effects."""

    parameters: Array
    covariance: Array

    @property
    def step_s(self) -> tuple[float, float]:
        """A in seconds, and C in seconds per running request."""
        return math.exp(float(self.parameters[0])), math.exp(float(self.parameters[1]))

    @property
    def tokens_in_flight(self) -> float:
        return math.exp(float(self.parameters[2]))

    def log_rate(self, rows: Rows) -> tuple[Array, Array]:
        """Mean and standard deviation of the log rate, from the parameters' doubt alone."""
        mean = _log_rate(self.parameters, rows)
        gradient = np.stack(
            [(_log_rate(self.parameters + step, rows) - mean) / 1e-4 for step in 1e-4 * np.eye(len(self.parameters))],
            axis=1,
        )
        variance = np.einsum("ij,jk,ik->i", gradient, self.covariance, gradient)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def running(self, rows: Rows) -> Array:
        return _running(self.parameters, rows)


def _running(parameters: Array, rows: Rows) -> Array:
    room = USABLE_SHARE * rows.tokens / np.exp(parameters[2])
    bounds = np.stack([rows.concurrency, np.maximum(room, 0.5), rows.most_running])
    return np.asarray(np.sum(bounds**-SOFTNESS, axis=0) ** (-1 / SOFTNESS))


def _log_rate(parameters: Array, rows: Rows) -> Array:
    running = _running(parameters, rows)
    per_request_s = np.exp(parameters[1] + parameters[3] * rows.smaller)
    eager = expit((running / rows.graph_batch - 1) / EAGER_WIDTH)
    bend = np.maximum(0.2, 1 + parameters[5] * running / BEND_UNIT)
    curve = np.log(running) - np.log(np.exp(parameters[0]) + per_request_s * bend * running)
    return np.asarray(curve - parameters[4] * eager + rows.effects @ parameters[6:])


def fit_throughput(
    points: Sequence[Point],
    tokens: Sequence[float],
    effects: Sequence[Effect],
    *,
    graph_batch: int,
    tokens_in_flight: float | None,
) -> Throughput:
    """Fit the curve to measured points whose capacities are `tokens`; with few points the priors speak."""
    rows = rows_of([(point.setting, point.concurrency) for point in points], tokens, effects, graph_batch)
    observed = np.array([point.log_rate for point in points])
    doubt = np.array([math.hypot(point.log_sd, MISFIT_LOG_SD) for point in points])
    prior_mean, prior_sd = _parameter_priors(points, observed, effects, tokens_in_flight)

    def residuals(parameters: Array) -> Array:
        from_data = (_log_rate(parameters, rows) - observed) / doubt
        ratio = (parameters[0] - parameters[1] - math.log(A_OVER_C)) / A_OVER_C_LOG_SD
        from_priors = (parameters - prior_mean) / prior_sd
        return np.concatenate([from_data, [ratio], from_priors])

    solved = least_squares(residuals, prior_mean, method="lm", max_nfev=400)
    precision = solved.jac.T @ solved.jac
    return Throughput(np.asarray(solved.x), np.linalg.inv(precision))


def _parameter_priors(
    points: Sequence[Point], observed: Array, effects: Sequence[Effect], tokens_in_flight: float | None
) -> tuple[Array, Array]:
    """Prior means and deviations; A and C start where the middle point puts them, and are free in scale."""
    in_flight, in_flight_sd = _in_flight(points, tokens_in_flight)
    middle = points[len(points) // 2]
    running = middle.level.running_requests or float(middle.concurrency)
    log_c = math.log(running / (A_OVER_C + running)) - float(observed[len(points) // 2])
    mean = [log_c + math.log(A_OVER_C), log_c, math.log(in_flight), SMALLER_DTYPE_LOG_COST, EAGER_LOG_COST, 0.0]
    sd = [3.0, 3.0, in_flight_sd, SMALLER_DTYPE_LOG_SD, EAGER_LOG_SD, BEND_SD]
    mean += [effect.prior_mean for effect in effects]
    sd += [effect.prior_sd for effect in effects]
    return np.array(mean), np.array(sd)


def _in_flight(points: Sequence[Point], prior: float | None) -> tuple[float, float]:
    """Tokens in flight per running request: as the fullest levels showed it, else as the workload says."""
    seen: Mapping[float, float] = {
        math.log(point.level.tokens_in_flight_each): (point.level.token_usage_share or 0.1) ** 2
        for point in points
        if point.level.tokens_in_flight_each
    }
    if seen and sum(seen.values()) > 0:
        mean = sum(value * weight for value, weight in seen.items()) / sum(seen.values())
        return math.exp(mean), IN_FLIGHT_LOG_SD
    return (prior, 0.3) if prior is not None else (UNKNOWN_IN_FLIGHT, 1.0)
