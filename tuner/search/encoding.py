"""Settings and concurrency as points of the unit cube, by scikit-optimize's Space."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from skopt.space import Categorical, Real
from skopt.space import Space as UnitSpace

from launcher.config import FlagValue
from tuner.space import Space
from tuner.trial import Setting

Asked = Sequence[tuple[Setting, int]]
Column = Callable[[Setting, int, float], float | str]


class Encoding:
    """Which knobs vary, and how each becomes a coordinate. A knob with one value is no dimension.

    With the physics the fraction is replaced by what it buys, the capacity; the black box sees the fraction itself.
    """

    def __init__(self, space: Space, token_bounds: tuple[float, float], *, black_box: bool) -> None:
        self._columns: list[Column] = []
        self._bounds: list[tuple[float, float] | None] = []
        self._dimensions: list[Real | Categorical] = []
        if black_box:
            self._add_range(space.fraction_bounds, lambda setting, _n, _held: setting.mem_fraction_static or 0.0)
        else:
            low, high = token_bounds
            self._add_range((math.log(low), math.log(high)), lambda _setting, _n, held: math.log(held))
        lowest, highest = space.concurrency
        self._add_range((math.log(lowest), math.log(highest)), lambda _setting, n, _held: math.log(n))
        largest_gb = max(space.hicache_sizes_gb)
        self._add_range((0.0, math.log1p(largest_gb)), lambda setting, _n, _held: math.log1p(setting.hicache_size_gb))
        self._add_choice(space.kv_cache_dtypes, lambda setting, _n, _held: setting.kv_cache_dtype)
        for name, values in space.further.items():
            self._add_choice(tuple(map(str, values)), _flag_column(name, values[0]))
        self._unit = UnitSpace(self._dimensions)

    @property
    def size(self) -> int:
        """Coordinates after one-hot coding."""
        return int(self._unit.transformed_n_dims)

    def __call__(self, asked: Asked, tokens: Sequence[float]) -> NDArray[np.float64]:
        """An array of shape (len(asked), size) in the unit cube."""
        raw = [
            [self._clipped(i, column(setting, n, max(held, 1.0))) for i, column in enumerate(self._columns)]
            for (setting, n), held in zip(asked, tokens, strict=True)
        ]
        return np.asarray(self._unit.transform(raw), dtype=float)

    def _add_range(self, bounds: tuple[float, float], column: Column) -> None:
        if bounds[1] > bounds[0]:
            self._columns.append(column)
            self._bounds.append(bounds)
            self._dimensions.append(Real(*bounds, transform="normalize"))

    def _add_choice(self, values: Sequence[str], column: Column) -> None:
        if len(values) > 1:
            self._columns.append(column)
            self._bounds.append(None)
            self._dimensions.append(Categorical(list(values), transform="onehot"))

    def _clipped(self, index: int, value: float | str) -> float | str:
        bounds = self._bounds[index]
        if bounds is None or isinstance(value, str):
            return value
        return min(bounds[1], max(bounds[0], value))


def _flag_column(name: str, plain: FlagValue) -> Column:
    return lambda setting, _n, _held: str(setting.flags.get(name, plain))
