"""Who stands where: every really measured setting at its best concurrency, repeated measurements pooled."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tuner.search.knowledge import Key, Knowledge, family_of, key_of
from tuner.search.points import Z95, Point
from tuner.search.surrogate import RESIDUAL_SD
from tuner.space import Space, overrides
from tuner.trial import Interval, Setting

TIE_SHARE = 0.005
"""Rates this close are the same to anybody."""
NOISE_Z = 1.5
LARGEST_TIE_SHARE = 0.025
"""However wide the noise, more than this is not given away for fewer overrides."""
WORST_SHARE = 0.975
"""The quantile of the transient that a chosen fraction keeps room for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One setting at one concurrency. `measured` pools the levels alone; `log_rate` is that, shrunk to the model."""

    trial_id: int
    setting: Setting
    concurrency: int
    log_rate: float
    log_sd: float
    measured: Interval
    starts: int
    headroom_gib: float


@lru_cache(maxsize=4)
def standings(knowledge: Knowledge) -> tuple[Standing, ...]:
    """One per setting, the winner first: by rate, then among ties by fewer overrides and more headroom."""
    pooled = _pooled(knowledge)
    best: dict[Key, Standing] = {}
    for standing in pooled:
        known = best.get(key_of(standing.setting))
        if known is None or standing.log_rate > known.log_rate:
            best[key_of(standing.setting)] = standing
    ranked = sorted(best.values(), key=lambda one: -one.log_rate)
    if not ranked:
        return ()
    winner = _safest(_plainest(ranked, knowledge.space), ranked, comfortable_gib(knowledge))
    return (winner, *(one for one in ranked if one is not winner))


def difference_sd(one: Standing, other: Standing) -> float:
    return math.hypot(one.log_sd, other.log_sd)


def is_clear(winner: Standing, runner_up: Standing) -> bool:
    """Their measured rates differ by more than the noise (95%)."""
    gap = math.log(winner.measured.value / runner_up.measured.value)
    return gap > Z95 * difference_sd(winner, runner_up)


def _plainest(ranked: Sequence[Standing], space: Space) -> Standing:
    """The best of those with fewest overrides that the noise cannot tell from the top."""
    top = ranked[0]
    ties = [one for one in ranked if top.log_rate - one.log_rate <= _noise(top, one)]
    return min(ties, key=lambda one: (overrides(one.setting, space), -one.log_rate))


def _noise(one: Standing, other: Standing) -> float:
    return min(LARGEST_TIE_SHARE, max(TIE_SHARE, NOISE_Z * difference_sd(one, other)))


def _safest(chosen: Standing, ranked: Sequence[Standing], enough_gib: float) -> Standing:
    """Equal rates of one family go to more headroom, up to what is comfortable; beyond that it buys nothing."""
    ties = [one for one in ranked if family_of(one.setting) == family_of(chosen.setting) and _is_equal(chosen, one)]
    return max(ties, key=lambda one: (min(one.headroom_gib, enough_gib), one.log_rate))


def _is_equal(chosen: Standing, one: Standing) -> bool:
    """Equal by the model, and not told apart by what was measured."""
    measured = math.log(chosen.measured.value / one.measured.value)
    return chosen.log_rate - one.log_rate <= TIE_SHARE and measured <= difference_sd(chosen, one)


def comfortable_gib(knowledge: Knowledge) -> float:
    """Headroom that needs no second thought: the worst transient, the stated margin, and as much again."""
    if knowledge.options.black_box:
        return math.inf
    return knowledge.memory.transient_gib.quantile(WORST_SHARE) + 2 * knowledge.options.safety_gib


def _pooled(knowledge: Knowledge) -> list[Standing]:
    groups: dict[tuple[Key, int], list[Point]] = defaultdict(list)
    for point in knowledge.real_points:
        groups[key_of(point.setting), point.concurrency].append(point)
    if not groups:
        return []
    asked = [(points[0].setting, points[0].concurrency) for points in groups.values()]
    posterior, _ = knowledge.rates(asked)
    return [
        _standing(knowledge, points, float(log_rate))
        for points, log_rate in zip(groups.values(), posterior, strict=True)
    ]


def _standing(knowledge: Knowledge, points: Sequence[Point], log_rate: float) -> Standing:
    weights = [point.log_sd**-2 for point in points]
    mean = sum(weight * point.log_rate for weight, point in zip(weights, points, strict=True)) / sum(weights)
    log_sd = sum(weights) ** -0.5
    setting = points[0].setting
    # The model knows a setting to a few percent at best: the oftener one was measured, the more that decides.
    trust = log_sd**-2 / (log_sd**-2 + RESIDUAL_SD**-2)
    return Standing(
        trial_id=max(points, key=lambda point: point.log_rate).trial_id,
        setting=setting,
        concurrency=points[0].concurrency,
        log_rate=log_rate + trust * (mean - log_rate),
        log_sd=log_sd,
        measured=Interval(math.exp(mean), math.exp(mean - Z95 * log_sd), math.exp(mean + Z95 * log_sd)),
        starts=len({point.trial_id for point in points}),
        headroom_gib=knowledge.outlook(setting).headroom_gib or -(setting.mem_fraction_static or 0.0),
    )
