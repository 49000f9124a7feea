"""Which start to make next: expected improvement x chance of survival / expected minutes, over the whole space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from launcher.failure import Direction
from tuner.search.feasibility import Outlook
from tuner.search.knowledge import Key, Knowledge, family_of, key_of
from tuner.search.points import points_of
from tuner.space import FRACTION_STEP
from tuner.trial import Purpose, Setting, TrialResult

Array = NDArray[np.float64]

LEVELS_EXPECTED = 1.5
MOST_SETTINGS = 300
"""Above this many settings the grid of fractions gets coarser; a second is all that a proposal may take."""
FAR_FROM_SAFE = 0.05
CRASH_COST = 0.2
"""A death is held to cost a fifth of the incumbent's rate: no percent is worth a coin's toss on eight GPUs. A black
box cannot afford that view: it finds the boundary by dying."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One start that could be made. `gain` is the expected improvement as a share of the incumbent's rate."""

    setting: Setting
    concurrency: int
    outlook: Outlook
    log_rate: float
    log_sd: float
    gain: float
    net_gain: float
    """`gain` times the chance of survival, less what a death is held to cost."""
    seconds: float
    """Expected seconds, a crash weighted by its chance."""

    @property
    def score(self) -> float:
        return self.net_gain / self.seconds


def expected_improvement(mean: Array, sd: Array, best: float) -> Array:
    """E[max(0, x - best)] of a normal; in log rates it is, for small gains, the gain as a share."""
    spread = np.maximum(sd, 1e-9)
    z = (mean - best) / spread
    return np.asarray((mean - best) * ndtr(z) + spread * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))


def incumbent_log_rate(knowledge: Knowledge) -> float:
    """The best posterior mean among what was really measured; before that, among the probes."""
    points = knowledge.real_points or knowledge.points
    mean, _ = knowledge.rates([(point.setting, point.concurrency) for point in points])
    return float(mean.max())


def candidates(knowledge: Knowledge) -> list[Candidate]:
    """Every setting that may be started, each at its most promising concurrency, best score first."""
    settings = [setting for setting in open_settings(knowledge) if knowledge.outlook(setting).survival > 0]
    if not settings or knowledge.rate is None:
        return []
    ladder = knowledge.ladder()
    mean, sd = knowledge.rates([(setting, rung) for setting in settings for rung in ladder])
    gain = expected_improvement(mean, sd, incumbent_log_rate(knowledge)).reshape(len(settings), len(ladder))
    mean, sd = mean.reshape(gain.shape), sd.reshape(gain.shape)
    rungs = gain.argmax(axis=1)
    made = [
        _candidate(knowledge, setting, ladder[rung], float(mean[i, rung]), float(sd[i, rung]), float(gain[i, rung]))
        for i, (setting, rung) in enumerate(zip(settings, rungs, strict=True))
    ]
    safe = _safe(made, knowledge)
    return sorted(_screened(safe, knowledge) if knowledge.options.black_box else safe, key=lambda one: -one.score)


def _candidate(
    knowledge: Knowledge, setting: Setting, concurrency: int, mean: float, sd: float, gain: float
) -> Candidate:
    outlook = knowledge.outlook(setting)
    lives, dies = knowledge.minutes.trial(setting, LEVELS_EXPECTED), knowledge.minutes.crash(setting)
    seconds = outlook.survival * lives + (1 - outlook.survival) * dies
    death = 0.0 if knowledge.options.black_box else CRASH_COST
    net_gain = gain * outlook.survival - death * (1 - outlook.survival)
    return Candidate(setting, concurrency, outlook, mean, sd, gain, net_gain, seconds)


def _safe(made: Sequence[Candidate], knowledge: Knowledge) -> list[Candidate]:
    """Those above the survival that is asked for; if there are none, those near the safest."""
    options = knowledge.options
    floor = options.bare_survival if options.black_box else options.least_survival
    safest = max(one.outlook.survival for one in made)
    return [one for one in made if one.outlook.survival >= min(floor, safest - FAR_FROM_SAFE)]


def _screened(made: Sequence[Candidate], knowledge: Knowledge) -> list[Candidate]:
    """Black box: before the process speaks, every dtype, HiCache on and off, and every flag value is seen once.

    At the fraction of the best so far: two knobs moved at once would not tell which of them did it.
    """
    seen = {value for point in knowledge.real_points for value in _values(point.setting)}
    unseen = [one for one in made if not seen.issuperset(_values(one.setting))]
    if not unseen:
        return list(made)
    best = max(knowledge.real_points, key=lambda point: point.log_rate).setting.mem_fraction_static or 0.0
    nearest = min(abs((one.setting.mem_fraction_static or 0.0) - best) for one in unseen)
    return [one for one in unseen if abs((one.setting.mem_fraction_static or 0.0) - best) <= nearest + 1e-9]


def _values(setting: Setting) -> tuple[tuple[str, str], ...]:
    named = {"kv-cache-dtype": setting.kv_cache_dtype, "hicache": setting.hicache_size_gb > 0, **setting.flags}
    return tuple((name, str(value)) for name, value in named.items())


def open_settings(knowledge: Knowledge) -> list[Setting]:
    """The grid without what was tried, what died, and what lies beyond a death of its own family."""
    closed = _closed(knowledge.history)
    tried = _tried(knowledge)
    return [
        setting
        for setting in knowledge.space.settings(_step(knowledge))
        if key_of(setting) not in tried and not _is_beyond(setting, closed)
    ]


def _step(knowledge: Knowledge) -> float:
    low, high = knowledge.space.fraction_bounds
    families = sum(1 for _ in knowledge.space.families())
    return max(FRACTION_STEP, round((high - low) * families / MOST_SETTINGS, 3))


def _tried(knowledge: Knowledge) -> set[Key]:
    """Settings that a real start has measured, or that died twice of something that teaches nothing."""
    real = [trial for trial in knowledge.history if trial.proposal.purpose is not Purpose.PROBE]
    measured = {key_of(trial.proposal.setting) for trial in real if points_of([trial])}
    odd = [
        key_of(trial.proposal.setting)
        for trial in knowledge.history
        if trial.failure is not None and not trial.failure.teaches and not trial.failure.retry
    ]
    return measured | {key for key in odd if odd.count(key) >= 2}


def _closed(history: Sequence[TrialResult]) -> dict[tuple[Key, Direction], float]:
    """Per family and direction, the fraction at which a start died of its configuration."""
    closed: dict[tuple[Key, Direction], float] = {}
    for trial in history:
        fraction = trial.proposal.setting.mem_fraction_static
        if trial.failure is None or not trial.failure.teaches or fraction is None:
            continue
        direction = trial.failure.mem_fraction_direction
        at = (family_of(trial.proposal.setting), direction)
        nearer = min if direction is Direction.DOWN else max
        closed[at] = nearer(closed.get(at, fraction), fraction)
    return closed


def _is_beyond(setting: Setting, closed: dict[tuple[Key, Direction], float]) -> bool:
    family, fraction = family_of(setting), setting.mem_fraction_static or 0.0
    too_high = closed.get((family, Direction.DOWN))
    too_low = closed.get((family, Direction.UP))
    return (too_high is not None and fraction >= too_high) or (too_low is not None and fraction <= too_low)
