"""A bounded history of one server in equidistant buckets, so that graphs scroll evenly and memory stays
constant.
"""

from __future__ import annotations

import math
from array import array

from tui.snapshot import Pool, Rates, Series

KEPT = 3600
"""Buckets in memory: three hours, 29 KB a series."""
STEP_S = 3.0
"""Seconds a bucket: what matters here changes over minutes, and graphs that scroll rarely are calm and
cheap.
"""
SHOWN = 640
"""Buckets handed to a screen: 320 columns of braille."""
NAMES = ("completion_tokens_per_s", "gen_tokens_per_s", "running", "queued", "usage_share", "hit_share")


class History:
    """Six series of one server."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self.step_s = step_s
        self._last: int | None = None
        self._values = {name: array("d") for name in NAMES}

    def add(self, at_s: float, pool: Pool, rates: Rates) -> None:
        """Put the figures of `at_s` into their bucket; missed buckets become NaN."""
        bucket = math.floor(at_s / self.step_s)
        if self._last is not None and bucket < self._last:
            return
        missed = 0 if self._last is None else bucket - self._last
        self._last = bucket
        for name, value in zip(NAMES, _figures(pool, rates), strict=True):
            self._put(self._values[name], missed, math.nan if value is None else float(value))

    def _put(self, series: array[float], missed: int, value: float) -> None:
        if missed == 0 and series:
            series[-1] = value
            return
        series.extend([math.nan] * min(KEPT, missed - 1))
        series.append(value)
        if len(series) > KEPT + 256:
            del series[: len(series) - KEPT]

    def series(self) -> Series:
        tails = {name: tuple(values[-SHOWN:]) for name, values in self._values.items()}
        return Series(**tails, step_s=self.step_s, last_bucket=self._last or 0)


def _figures(pool: Pool, rates: Rates) -> tuple[float | None, ...]:
    gen = rates.gen_tokens_per_s if rates.gen_tokens_per_s is not None else pool.gen_tokens_per_s
    return rates.completion_tokens_per_s, gen, pool.running, pool.queued, pool.usage_share, rates.hit_share
