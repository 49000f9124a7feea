"""The rate model: a Gaussian process on what the mean leaves over.

With the physics the mean is the fitted throughput curve and the process works on a few percent; without it (black
box) the mean is a constant and the process has to find everything.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from skopt.learning import GaussianProcessRegressor
from threadpoolctl import threadpool_limits

from tuner.search.encoding import Asked, Encoding
from tuner.search.points import Point
from tuner.search.throughput import Effect, Rows, Throughput, rows_of

Array = NDArray[np.float64]

RESIDUAL_SD = 0.03
RESIDUAL_SD_BOUNDS = (0.01, 0.2)
BARE_SD = 0.4
BARE_SD_BOUNDS = (0.25, 1.5)
SLOPE_SD, LINE_NOISE = 1.0, 0.2
"""Black box: a knob may change the rate by a factor of e over its range; what the line leaves over is 20%."""
LENGTH = 0.8
LENGTH_BOUNDS = (0.25, 4.0)
POINTS_TO_LEARN_KERNEL = 8
"""With fewer points the kernel stays as it is: maximum likelihood on five points finds wonders."""


class RateModel:
    """Predicts log rates. Built anew from all points; deterministic. Needs at least one point."""

    def __init__(
        self,
        encoding: Encoding,
        points: Sequence[Point],
        tokens: Sequence[float],
        throughput: Throughput | None,
        effects: Sequence[Effect],
        graph_batch: int,
    ) -> None:
        self.throughput = throughput
        self._graph_batch = graph_batch
        self._encoding = encoding
        self._effects = tuple(effects)
        with threadpool_limits(1):
            self._trend = self._line(points, tokens)
            self._process = self._fit(points, tokens)

    def predict(self, asked: Asked, tokens: Sequence[float]) -> tuple[Array, Array]:
        """Mean and standard deviation of the log rate for each (setting, concurrency)."""
        mean, mean_sd = self._mean(asked, tokens)
        with threadpool_limits(1):
            over, over_sd = self._process.predict(self._encoding(asked, tokens), return_std=True)
        return mean + np.asarray(over), np.hypot(mean_sd, np.asarray(over_sd))

    def rows(self, asked: Asked, tokens: Sequence[float]) -> Rows:
        """The pairs as the throughput curve takes them."""
        return rows_of(asked, tokens, self._effects, self._graph_batch)

    def _fit(self, points: Sequence[Point], tokens: Sequence[float]) -> GaussianProcessRegressor:
        asked = [(point.setting, point.concurrency) for point in points]
        left_over = np.array([point.log_rate for point in points]) - self._mean(asked, tokens)[0]
        process = GaussianProcessRegressor(
            kernel=_kernel(self._encoding.size, bare=self.throughput is None),
            alpha=np.array([point.log_sd**2 for point in points]),
            optimizer="fmin_l_bfgs_b" if len(points) >= POINTS_TO_LEARN_KERNEL else None,
        )
        with warnings.catch_warnings():
            # A length at its bound is no news: many knobs have no effect at all.
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(self._encoding(asked, tokens), left_over)
        return process

    def _line(self, points: Sequence[Point], tokens: Sequence[float]) -> Array:
        """Ridge regression of the log rates on the coordinates: intercept first, slopes around zero."""
        asked = [(point.setting, point.concurrency) for point in points]
        columns = np.column_stack([np.ones(len(points)), self._encoding(asked, tokens)])
        penalty = np.diag([0.0, *np.full(self._encoding.size, (LINE_NOISE / SLOPE_SD) ** 2)])
        rates = np.array([point.log_rate for point in points])
        return np.linalg.solve(columns.T @ columns + penalty, columns.T @ rates)

    def _mean(self, asked: Asked, tokens: Sequence[float]) -> tuple[Array, Array]:
        if self.throughput is None:
            return self._encoding(asked, tokens) @ self._trend[1:] + self._trend[0], np.zeros(len(asked))
        return self.throughput.log_rate(self.rows(asked, tokens))


def _kernel(size: int, *, bare: bool) -> object:
    sd, (low, high) = (BARE_SD, BARE_SD_BOUNDS) if bare else (RESIDUAL_SD, RESIDUAL_SD_BOUNDS)
    amplitude = ConstantKernel(sd**2, (low**2, high**2))
    return amplitude * Matern(np.full(size, LENGTH), LENGTH_BOUNDS, nu=2.5)
