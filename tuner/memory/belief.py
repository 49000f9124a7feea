"""What is believed of one number: a normal for what starts show, a grid for the transient that they bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

Array = NDArray[np.float64]

GRID_GIB = np.linspace(0.02, 16.0, 800)
"""Where a transient may lie; a larger one would be seen on the first start."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal belief."""

    mean: float
    sd: float

    def above(self, floor: float) -> Belief:
        """This belief, once the number is known to lie above `floor` (the moments of the truncated normal)."""
        alpha = (floor - self.mean) / self.sd
        hazard = float(np.exp(norm.logpdf(alpha) - norm.logsf(alpha)))
        shrink = 1 + alpha * hazard - hazard**2
        return Belief(self.mean + self.sd * hazard, self.sd * float(np.sqrt(max(shrink, 0.01))))


class GridBelief:
    """A belief over `GRID_GIB`, sharpened by bounds and by near-direct sightings. Immutable: each update is new."""

    def __init__(self, log_weights: Array) -> None:
        shifted = np.exp(log_weights - log_weights.max())
        self._log_weights = log_weights
        self.weights: Array = shifted / shifted.sum()

    @classmethod
    def lognormal(cls, median_gib: float, log_sd: float) -> GridBelief:
        deviation = (np.log(GRID_GIB) - np.log(median_gib)) / log_sd
        return cls(-0.5 * deviation**2 - np.log(GRID_GIB))

    @classmethod
    def from_floor(cls, floor_gib: float, excess_gib: float) -> GridBelief:
        """Somewhere above `floor_gib`, exponentially."""
        excess = (GRID_GIB - floor_gib) / excess_gib
        return cls(np.where(excess >= 0, -excess, -60.0))

    @property
    def mean(self) -> float:
        return float(self.weights @ GRID_GIB)

    @property
    def sd(self) -> float:
        return float(np.sqrt(self.weights @ (GRID_GIB - self.mean) ** 2))

    def quantile(self, share: float) -> float:
        return float(np.interp(share, np.cumsum(self.weights), GRID_GIB))

    def above_chance(self, value_gib: float) -> float:
        """P(number > value)."""
        return float(self.weights @ (GRID_GIB - value_gib > 0))

    def above(self, floor_gib: float, sd_gib: float) -> GridBelief:
        """The number exceeds `floor_gib`, which itself is known within `sd_gib`: a crash proved it."""
        return self._with(log_ndtr((GRID_GIB - floor_gib) / sd_gib))

    def below(self, ceiling_gib: float, sd_gib: float) -> GridBelief:
        """The number lies under `ceiling_gib`: a whole level was survived with that much room."""
        return self._with(log_ndtr((ceiling_gib - GRID_GIB) / sd_gib))

    def about(self, value_gib: float, sd_gib: float) -> GridBelief:
        """The number was read off, within `sd_gib`. Heavy tails: one odd reading must not outweigh everything."""
        return self._with(-2.0 * np.log1p(((GRID_GIB - value_gib) / sd_gib) ** 2 / 3))

    def seen_at_least(self, value_gib: float, sd_gib: float, excess_gib: float) -> GridBelief:
        """`value_gib` was seen, and the worst is seldom much more: the excess over it is exponential."""
        excess = np.maximum(0.0, GRID_GIB - value_gib) / excess_gib
        return self._with(log_ndtr((GRID_GIB - value_gib) / sd_gib) - excess)

    def chance_below(self, mean_gib: float, sd_gib: float, scale: float = 1.0) -> float:
        """P(scale * number < a normal of that mean and sd)."""
        return float(self.weights @ ndtr((mean_gib - scale * GRID_GIB) / max(sd_gib, 1e-3)))

    def _with(self, log_likelihood: Array) -> GridBelief:
        return GridBelief(self._log_weights + np.maximum(log_likelihood, -60.0))
