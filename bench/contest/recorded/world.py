"""One study on a recording: every second, GiB and rate is a recorded one or lies between recorded ones.

A seed decides the noise of each level (as wide as the recorded interval) and which recorded start each start takes
its seconds from; the first of a study takes those of the first recorded one, whose kernels were cold.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from bench.contest.recorded.case import RecordedCase
from bench.contest.recorded.memory import nearest
from bench.contest.recorded.rates import RecordedCell
from launcher.failure import Failure
from tuner.testbed import LevelLimits, Started
from tuner.trial import Interval, LevelEnd, LevelResult, Setting

SDS_OF_HALF_WIDTH = 1.96
"""A 95% interval's half width in standard deviations."""
NARROW_SHARE = LevelLimits(0.0).target_share


@dataclass(slots=True)
class RecordedWorld:
    """One recorded box. One server at a time."""

    case: RecordedCase
    seed: int
    _fraction: float | None = None
    _starts: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.case.name}:{self.seed}:recorded")
