"""One study on a recording: every second, GiB and rate is a recorded one or lies between recorded ones.

A seed decides the noise of each level (as wide as the recorded interval) and which recorded start each start takes
its seconds from; the first of a study takes those of the first recorded one, whose kernels were cold.
"""

from __future__ import annotations

import random
import statistics

from bench.contest.recorded.case import RecordedCase
from bench.contest.recorded.memory import nearest
from bench.contest.recorded.rates import RecordedCell
from launcher.failure import Failure
from tuner.testbed import LevelLimits, Started
from tuner.trial import Interval, LevelEnd, LevelResult, Setting

SDS_OF_HALF_WIDTH = 1.96
"""A 95% interval's half width in standard deviations."""
NARROW_SHARE = LevelLimits(budget_s=0.0).target_share


class RecordedWorld:
    """One recorded box. One server at a time."""

    def __init__(self, case: RecordedCase, seed: int) -> None:
        self.case = case
        self._memory = case.memory
        self._random = random.Random(f"{case.name}:{seed}:recorded")
        self._starts = 0
        self._fraction = 0.0

    def start(self, setting: Setting, *, dummy_weights: bool = False) -> Started:
        """Start, or die as the nearest recorded start did. The recorded weights were dummies already."""
        del dummy_weights
        self._fraction = fraction = _fraction(setting)
        failure, at_start_up = None, False
        if not self._memory.lives(fraction):
            failure, at_start_up = self._memory.failure(fraction)
        start_s, clean_slate_s = self._seconds()
        if at_start_up:
            start_s = nearest(self._memory.died, fraction).started.start_s
        return Started(self._memory.start_up(fraction), failure if at_start_up else None, clean_slate_s, start_s)

    def measure(self, concurrency: int, limit_s: float | None = None) -> LevelResult | Failure:
        """One level, or the death under load. Cut at `limit_s`, it knows its rate less well."""
        if not self._memory.lives(self._fraction):
            return self._memory.failure(self._fraction)[0]
        return self._level(self._cell(self._fraction, concurrency), concurrency, limit_s)

    def stop(self) -> float:
        """The median of the recorded stops; 0 for a recording without one."""
        stops = [start.stop_s for start in self._memory.lived if start.stop_s is not None]
        return statistics.median(stops) if stops else 0.0

    def true_rate(self, setting: Setting, concurrency: int) -> float:
        """The interpolated rate of a setting that lives; 0 for one that does not."""
        fraction = _fraction(setting)
        return self._cell(fraction, concurrency).rate if self._memory.lives(fraction) else 0.0

    def oracle(self) -> float:
        """The best recorded level of the space: in between, interpolation is never above its ends."""
        low, high = self.case.space.fraction_bounds
        fewest, most = self.case.space.concurrency
        fractions = {low, high, *(fraction for fraction in self._memory.fractions if low < fraction < high)}
        recorded = {level for level in self.case.rates.free if fewest < level < most}
        settings = [Setting(fraction, "bfloat16") for fraction in fractions]
        return max(self.true_rate(setting, level) for setting in settings for level in {fewest, most, *recorded})

    def _seconds(self) -> tuple[float, float]:
        """Of a start and of the clean slate before it."""
        first, *later = [start.started for start in self.case.starts if start.failure is None]
        self._starts += 1
        taken = first if self._starts == 1 or not later else self._random.choice(later)
        return taken.start_s, taken.clean_slate_s

    def _cell(self, fraction: float, concurrency: int) -> RecordedCell:
        return self.case.rates.at(self._memory.capacity_tokens(fraction), concurrency)

    def _level(self, cell: RecordedCell, concurrency: int, limit_s: float | None) -> LevelResult:
        spent_s = cell.spent_s if limit_s is None else min(limit_s, cell.spent_s)
        half_share = cell.half_width / cell.rate * (cell.spent_s / spent_s) ** 0.5
        noise = max(0.0, self._random.gauss(1.0, half_share / SDS_OF_HALF_WIDTH))
        rate = cell.rate * noise
        return LevelResult(
            concurrency=concurrency,
            end=LevelEnd.NARROW if half_share <= NARROW_SHARE else LevelEnd.TIME,
            completion_rate=Interval(rate, rate * (1 - half_share), rate * (1 + half_share)),
            measured_s=cell.measured_s * spent_s / cell.spent_s,
            spent_s=spent_s,
            responses_per_s=cell.responses_per_s * noise,
            finished_requests=max(1, int(cell.responses_per_s * noise * spent_s)),
            gen_tokens_per_s=cell.gen_tokens_per_s * noise,
            running_requests=cell.running,
            queued_requests=cell.queued,
            token_usage_share=cell.usage_share,
            tokens_in_flight_each=cell.in_flight,
            headroom_min_gib={0: self._memory.headroom_gib(self._fraction) - cell.step_gib},
        )


def _fraction(setting: Setting) -> float:
    """Raises ValueError for a setting that was never recorded: a method left its space."""
    if setting.mem_fraction_static is None or setting.kv_cache_dtype != "bfloat16" or setting.hicache_size_gb:
        raise ValueError(f"{setting} is not in the recorded space")
    return setting.mem_fraction_static
