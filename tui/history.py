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
    """Six series of one server. A bucket's value is the mean of what was seen in it; it appears when it is
    over.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self.step_s = step_s
        self._bucket: int | None = None
        self._sums = [0.0] * len(NAMES)
        self._seen = [0] * len(NAMES)
        self._values = {name: array("d") for name in NAMES}
        self._series = Series(step_s=step_s)

    def add(self, at_s: float, pool: Pool, rates: Rates) -> None:
        """Put the figures of `at_s` into their bucket; buckets in which nothing was read become NaN."""
        bucket = math.floor(at_s / self.step_s)
        if self._bucket is not None and bucket != self._bucket:
            self._close(max(1, bucket - self._bucket))
        self._bucket = bucket
        for place, value in enumerate(_figures(pool, rates)):
            if value is not None:
                self._sums[place] += value
                self._seen[place] += 1

    def series(self) -> Series:
        """The same object until two more buckets are over, so that drawings of it can be kept."""
        return self._series

    def _close(self, buckets: int) -> None:
        """End the bucket; those after it, up to `buckets` in all, were missed."""
        for place, values in enumerate(self._values.values()):
            seen = self._seen[place]
            values.append(self._sums[place] / seen if seen else math.nan)
            values.extend([math.nan] * min(KEPT, buckets - 1))
            if len(values) > KEPT + 256:
                del values[: len(values) - KEPT]
            self._sums[place], self._seen[place] = 0.0, 0
        last = (self._bucket or 0) + buckets - 1
        if last % 2 == 1:
            # A cell of a graph holds two buckets: it is drawn when it is full.
            tails = {name: tuple(values[-SHOWN:]) for name, values in self._values.items()}
            self._series = Series(**tails, step_s=self.step_s, last_bucket=last)


STEADY_WINDOW_S = 15.0
"""Completion rates over less are not drawn: the first seconds would set the scale for the next minutes."""


def _figures(pool: Pool, rates: Rates) -> tuple[float | None, ...]:
    gen = rates.gen_tokens_per_s if rates.gen_tokens_per_s is not None else pool.gen_tokens_per_s
    steady = (rates.completion_window_s or 0.0) >= STEADY_WINDOW_S
    finished = rates.completion_tokens_per_s if steady else None
    return finished, gen, pool.running, pool.queued, pool.usage_share, rates.hit_share
