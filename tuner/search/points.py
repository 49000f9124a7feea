"""Measured levels as points of the rate model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.trial import Interval, LevelEnd, LevelResult, Purpose, Setting, TrialResult

LEAST_LOG_SD = 0.01
"""No level is better known than this: two starts of one configuration differ by about a percent."""
UNSTEADY_FACTOR = 2.0
MOST_LOG_SD = 3.0
"""Whatever is known as badly as this is not known at all; more would only overflow."""
PROBE_LOG_SD = 0.03
"""Doubt added to a rate that was measured with dummy weights."""
EARLIER_LOG_SD = 0.04
"""Doubt added to a rate of an earlier study: the box, its neighbours and its drivers may have changed since."""
Z95 = 1.96

NO_RATE = frozenset({LevelEnd.CRASHED, LevelEnd.STALLED, LevelEnd.STOPPED})


@dataclass(frozen=True, slots=True)
class Point:
    """One level of one start. `log_rate` is of the objective in tokens per second; `log_sd` its standard error."""

    trial_id: int
    setting: Setting
    concurrency: int
    log_rate: float
    log_sd: float
    probe: bool
    earlier: bool
    level: LevelResult


def objective(level: LevelResult) -> Interval:
    """What is maximised: goodput under the SLOs where some were set, else the effective completion rate."""
    if level.goodput_tokens_per_s is None or level.completion_rate.value <= 0:
        return level.completion_rate
    share = level.goodput_tokens_per_s / level.completion_rate.value
    rate = level.completion_rate
    return Interval(rate.value * share, rate.low * share, rate.high * share)


def points_of(trials: Iterable[TrialResult], *, earlier: bool = False) -> tuple[Point, ...]:
    """Every level that says something about a rate, oldest first.

    A level that is no measurement (its answers took longer than it had) is none beside one that is: its value may be
    any part of the truth. Where there are no others it is the best there is.
    """
    found = tuple(
        _point(trial, level, earlier)
        for trial in trials
        for level in trial.levels
        if level.end not in NO_RATE and objective(level).value > 0
    )
    return tuple(point for point in found if point.level.completion_rate.is_measurement) or found


def _point(trial: TrialResult, level: LevelResult, earlier: bool) -> Point:
    rate = objective(level)
    probe = trial.proposal.purpose is Purpose.PROBE
    return Point(
        trial_id=trial.trial_id,
        setting=trial.proposal.setting,
        concurrency=level.concurrency,
        log_rate=math.log(rate.value),
        log_sd=_log_sd(rate, level.steady, PROBE_LOG_SD if probe else EARLIER_LOG_SD if earlier else 0.0),
        probe=probe,
        earlier=earlier,
        level=level,
    )


def _log_sd(rate: Interval, steady: bool, doubt: float) -> float:
    relative = rate.half_width / Z95 / rate.value
    if not steady:
        relative *= UNSTEADY_FACTOR
    return min(MOST_LOG_SD, math.hypot(max(relative, LEAST_LOG_SD), doubt))
