"""How many seconds a level needs before its rate says anything, from the levels so far. Pure.

An answer stays W = running requests / responses per second (Little's law), and W grows as the decode step does. A level
has to ramp up first: the prompts of all that will run are computed. In the long run that work is done once in every W,
so that it takes W at the most. What follows must be long enough for answers to come and go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.budget import LEVELS_PER_BUDGET
from tuner.search.knowledge import Knowledge
from tuner.search.throughput import A_OVER_C
from tuner.trial import LevelEnd, LevelResult, Purpose, Setting

RESIDENCES = 1.5
"""After the ramp-up; a level of 1.8 showed its rate to 8% on two H200s, one of a third of it nothing."""
MOST_STRETCH = 3.0
"""A level that needs it may take so many times what the budget gives each: fewer levels, but with a rate."""
SHORT_FACTOR = 2.0
"""A level in which hardly anything finished needs so many times the seconds that it had, at least."""


def longest_level_s(knowledge: Knowledge, remaining_s: float = math.inf) -> float:
    """What a level may take at the most. The last seconds, too few for another start, belong to the running server."""
    if remaining_s < knowledge.minutes.least_trial_s:
        return remaining_s
    return min(remaining_s, MOST_STRETCH * knowledge.options.level_budget_s)


def budget_for(knowledge: Knowledge, level_s: float) -> float:
    """The budget in study seconds, in whole minutes, that has room for such a level.

    It may take its share of a budget (a tenth is kept), or be the last of a study that has done what this one did.
    """
    spent_s = sum(trial.minutes.total_s for trial in knowledge.history)
    stop_s = knowledge.minutes.stop_and_clean_s
    enough_s = max(level_s * LEVELS_PER_BUDGET / MOST_STRETCH, (spent_s + level_s + stop_s) / 0.9)
    return 60.0 * (math.ceil(enough_s / 60.0) + 1)


def needed_s(knowledge: Knowledge, setting: Setting, concurrency: int) -> float:
    """Ramp-up and the answers' time at this concurrency, in study seconds; 0 while no level was measured."""
    levels = _levels(knowledge)
    sound = [level for level in levels if level.completion_rate.is_measurement and level.running_requests]
    reached = max((level.concurrency for level in sound), default=0)
    short = [level for level in levels if level.end is LevelEnd.TIME and level.concurrency > reached]
    by_answers = _by_answers(knowledge, setting, concurrency, sound) if sound else 0.0
    return max([by_answers, *(_by_failing(level, concurrency) for level in short)])


def measurable(knowledge: Knowledge, setting: Setting, rungs: Sequence[int], within_s: float) -> list[int]:
    """The rungs that so many seconds are enough for."""
    return [rung for rung in rungs if needed_s(knowledge, setting, rung) <= within_s]


def answer_s(knowledge: Knowledge, setting: Setting, concurrency: int) -> float | None:
    """How long an answer stays with the running requests at this concurrency; None while no level tells."""
    sound = [level for level in _levels(knowledge) if level.completion_rate.is_measurement and level.running_requests]
    return _answer_s(knowledge, setting, concurrency, sound) if sound else None


def _levels(knowledge: Knowledge) -> list[LevelResult]:
    real = [trial for trial in knowledge.evidence if trial.proposal.purpose is not Purpose.PROBE]
    return [level for trial in real for level in trial.levels if level.responses_per_s > 0]


def _by_failing(level: LevelResult, concurrency: int) -> float:
    """Fewer clients need less, in proportion: their prompts, and at the most their decode steps."""
    return SHORT_FACTOR * level.spent_s * min(1.0, concurrency / level.concurrency)


def _by_answers(knowledge: Knowledge, setting: Setting, concurrency: int, sound: Sequence[LevelResult]) -> float:
    stays_s = _answer_s(knowledge, setting, concurrency, sound)
    each_s = min(max(0.0, level.spent_s - level.measured_s) / (level.running_requests or 1.0) for level in sound)
    return min(stays_s, each_s * _running(knowledge, setting, concurrency)) + RESIDENCES * stays_s


def _answer_s(knowledge: Knowledge, setting: Setting, concurrency: int, sound: Sequence[LevelResult]) -> float:
    """As the fullest level showed it, and longer as the step is: A + C n; all in proportion to n at the most."""
    base = max(sound, key=lambda level: level.running_requests or 0.0)
    seen = base.running_requests or 1.0
    running = _running(knowledge, setting, concurrency)
    throughput = knowledge.rate.throughput if knowledge.rate is not None else None
    fixed_s, each_s = throughput.step_s if throughput is not None else (A_OVER_C, 1.0)
    return seen / base.responses_per_s * (fixed_s + each_s * running) / (fixed_s + each_s * seen)


def _running(knowledge: Knowledge, setting: Setting, concurrency: int) -> float:
    """How many of so many clients would run."""
    rate = knowledge.rate
    if rate is None or rate.throughput is None:
        return float(concurrency)
    rows = rate.rows([(setting, concurrency)], [knowledge.tokens(setting)])
    return float(rate.throughput.running(rows)[0])
