"""Whether a setting will live: by the memory model, or (black box) from the fractions that lived and died alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.failure import Direction
from tuner.memory import MemoryModel
from tuner.trial import Setting, TrialResult

CLIFF_FRACTION = 0.06
"""Black box: how far above a fraction that lived one dares to go (the scale of an exponential)."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of one setting before it is started. None is not known (black box)."""

    survival: float
    tokens: float | None = None
    tokens_sd: float | None = None
    headroom_gib: float | None = None
    headroom_sd_gib: float | None = None


class PhysicalFeasibility:
    """The memory model's word."""

    def __init__(self, memory: MemoryModel) -> None:
        self.memory = memory

    def outlook(self, setting: Setting) -> Outlook:
        predicted = self.memory.predict(setting)
        return Outlook(
            survival=predicted.survival_probability,
            tokens=predicted.tokens,
            tokens_sd=predicted.tokens_sd,
            headroom_gib=predicted.headroom_gib,
            headroom_sd_gib=predicted.headroom_sd_gib,
        )


class BareFeasibility:
    """Two boundaries for each choice of flags, each between what lived and what died; their direction is evidence.

    KV dtype and HiCache are left out on purpose: the fraction bounds what is taken whatever it is filled with, and
    too few trials are left to split them further.
    """

    def __init__(self, trials: Sequence[TrialResult]) -> None:
        self._trials = tuple(trials)

    def outlook(self, setting: Setting) -> Outlook:
        alike = [trial for trial in self._trials if trial.proposal.setting.flags == setting.flags]
        lived = [_fraction(trial.proposal.setting) for trial in alike if trial.failure is None]
        fraction = _fraction(setting)
        host = [trial for trial in alike if trial.failure and trial.failure.hicache_direction is Direction.DOWN]
        if any(setting.hicache_size_gb >= trial.proposal.setting.hicache_size_gb for trial in host):
            return Outlook(0.0)
        return Outlook(
            self._upper(fraction, lived, _died(alike, Direction.DOWN))
            * self._lower(fraction, lived, _died(alike, Direction.UP))
        )

    @staticmethod
    def _upper(fraction: float, lived: Sequence[float], died: Sequence[float]) -> float:
        safe = max(lived, default=0.85)
        if fraction <= safe:
            return 1.0
        if died:
            gap = min(died) - safe
            return max(0.0, (min(died) - fraction) / gap) if gap > 0 else 0.0
        return math.exp(-(fraction - safe) / CLIFF_FRACTION)

    @staticmethod
    def _lower(fraction: float, lived: Sequence[float], died: Sequence[float]) -> float:
        if not died or fraction >= min(lived, default=1.0):
            return 1.0
        floor, safe = max(died), min(lived, default=1.0)
        return min(1.0, max(0.0, (fraction - floor) / max(safe - floor, 1e-6)))


def _fraction(setting: Setting) -> float:
    return 0.85 if setting.mem_fraction_static is None else setting.mem_fraction_static


def _died(trials: Sequence[TrialResult], direction: Direction) -> list[float]:
    return [
        _fraction(trial.proposal.setting)
        for trial in trials
        if trial.failure is not None and trial.failure.teaches and trial.failure.mem_fraction_direction is direction
    ]
