"""The budget: study seconds with relaunches, crashes and confirmation inside. What is spent is spent."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from launcher.clock import Clock
from tuner.errors import StudyFileError

CLOSING_S = 65.0
"""Kept at the end for the last drain, stop and export: draining may take a minute, a stop took 8-12 s on an H200."""
CLOSING_WALL_S = 1.0
"""What a faster clock does not shorten of it: ending processes, the last fit and the files take the machine's time."""
LEAST_LEVEL_S = 20.0
"""A level shorter than this cannot show a steady state anywhere."""
LEVELS_PER_BUDGET = 12
"""A level may take a twelfth of the budget at most: ten minutes of 2 h; an answer of 4 K tokens takes over two."""

_UNIT_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])", re.ASCII)


def parse_duration(text: str, key: str = "budget") -> float:
    """`2h`, `90m`, `1h30m`, `90s` in seconds. Raises StudyFileError for anything else, and for zero."""
    compact = text.strip().lower().replace(" ", "")
    seconds = 0.0
    if _DURATION.fullmatch(compact):
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(compact))
    if seconds <= 0:
        raise StudyFileError(f"{key}: {text!r} is not a duration; write it like 2h, 90m, 1h30m or 90s")
    return seconds


def words(seconds: float) -> str:
    """A duration for a person, two units at most: `1 h 52 min`, `3 min 5 s`, `42 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, rest = divmod(round(whole / 60), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


@dataclass(slots=True)
class Budget:
    """Counts study seconds of this run on top of those that earlier runs of the study spent."""

    total_s: float
    spent_before_s: float
    clock: Clock
    began_s: float
    paused_s: float = 0.0
    """Time the user paused the study: it was not the study's."""

    @property
    def spent_s(self) -> float:
        return self.spent_before_s + self.clock.now_s() - self.began_s - self.paused_s

    @property
    def remaining_s(self) -> float:
        """Until the budget is gone; negative when it is overdrawn."""
        return self.total_s - self.spent_s

    @property
    def usable_s(self) -> float:
        """What a trial may still take: the closing time is not to be had."""
        return self.remaining_s - closing_s(self.total_s, self.clock.speed)

    def level_s(self, needed_s: float = 0.0) -> float:
        """The hard limit of a level that begins now, ramp-up and drain inside: its share, or what it needs at least."""
        return min(max(longest_level_s(self.total_s), needed_s), self.usable_s)

    @property
    def level_fits(self) -> bool:
        return self.usable_s >= min(LEAST_LEVEL_S, self.total_s / LEVELS_PER_BUDGET)


def longest_level_s(total_s: float) -> float:
    """What a level may take of a budget, ramp-up and drain inside."""
    return max(LEAST_LEVEL_S, total_s / LEVELS_PER_BUDGET)


def closing_s(total_s: float, speed: float = 1.0) -> float:
    """Study seconds kept for the last drain, stop and export: a tenth of a small budget at most."""
    own_s = CLOSING_WALL_S * (speed - 1.0) if math.isfinite(speed) else 0.0
    return min(CLOSING_S + own_s, total_s / 10)
