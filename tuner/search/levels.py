"""Which concurrency to measure next in a running server: climbing, informative, and cut when nothing can be won."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner.search.candidates import expected_improvement, incumbent_log_rate
from tuner.search.knowledge import Knowledge
from tuner.search.residence import longest_level_s, measurable
from tuner.trial import LevelEnd, LevelResult, Setting

FIRST_SHARE_OF_RANGE = 0.2
"""The very first level: enough to see the slope of a decode step, too little to fill the pool."""
LARGEST_CLIMB = 4.0
"""How much higher than anything this server has carried the next level may be."""
SURE_SURVIVAL = 0.93
"""Above this a known-good level may be gone to at once."""
LEVEL_GAIN = 0.006
"""A further level of a running server must promise this much; it costs no start."""
QUEUE_SHARE = 0.05
FULL_USAGE = 0.85


def first_level(knowledge: Knowledge, setting: Setting) -> int:
    """Where to begin in a fresh server: the promising level if the server is sure to carry it, else below it."""
    ladder = knowledge.ladder()
    if knowledge.rate is None:
        return _rung_below(ladder, _filling(knowledge, setting) or FIRST_SHARE_OF_RANGE * ladder[-1])
    promising = promising_level(knowledge, setting)
    if knowledge.outlook(setting).survival >= SURE_SURVIVAL:
        return promising
    return _rung_below(ladder, promising / 1.5)


def _filling(knowledge: Knowledge, setting: Setting) -> float | None:
    """As many clients as fill the pool, once memory and tokens in flight are known (from a probe)."""
    each = knowledge.tokens_in_flight
    known = knowledge.memory.known and any(trial.levels for trial in knowledge.evidence)
    return knowledge.tokens(setting) / each if known and each is not None else None


def promising_level(knowledge: Knowledge, setting: Setting) -> int:
    """The concurrency with the highest expected rate, among those that a level's seconds are enough for."""
    ladder = knowledge.ladder()
    rungs = measurable(knowledge, setting, ladder, longest_level_s(knowledge)) or ladder[:1]
    mean, _ = knowledge.rates([(setting, rung) for rung in rungs])
    return rungs[int(np.argmax(mean))]


def next_level(
    knowledge: Knowledge, setting: Setting, done: Sequence[LevelResult], remaining_s: float = math.inf
) -> int | None:
    """The level with the largest expected improvement on what is known, or None when no level can win enough.

    `knowledge` includes `done`. Levels climb: at most LARGEST_CLIMB times what this server has carried, and not to
    where answers take longer than the level may.
    """
    carried = {level.concurrency for level in done}
    useful = (_useful_up_to(level, longest_share(knowledge, setting)) for level in done)
    reach = min(max(carried) * LARGEST_CLIMB, *useful, math.inf)
    open_rungs = [rung for rung in knowledge.ladder() if rung not in carried and rung <= reach]
    open_rungs = measurable(knowledge, setting, open_rungs, longest_level_s(knowledge, remaining_s))
    if not open_rungs or len(done) >= _most_levels(knowledge) or knowledge.rate is None:
        return None
    mean, sd = knowledge.rates([(setting, rung) for rung in open_rungs])
    gain = expected_improvement(mean, sd, incumbent_log_rate(knowledge))
    best = int(np.argmax(gain))
    return open_rungs[best] if float(gain[best]) >= LEVEL_GAIN else None


def longest_share(knowledge: Knowledge, setting: Setting) -> float:
    """The share of the pool that the longest request takes; nothing is known of either by a black box."""
    if knowledge.options.black_box:
        return 0.0
    return knowledge.prior.shortest_pool_tokens / knowledge.tokens(setting)


def _most_levels(knowledge: Knowledge) -> int:
    """A black box always sees something to gain in another level; after its first start two must do."""
    explored = {point.trial_id for point in knowledge.real_points}
    return 2 if knowledge.options.black_box and len(explored) > 1 else knowledge.options.most_levels


def is_full(level: LevelResult, longest_share: float = 0.0) -> bool:
    """The pool is full and clients wait: more of them would only make the queue longer.

    Full is also a pool without room for one more whole request (`longest_share` of its tokens): SGLang admits none of
    which it cannot keep all, so that a pool of a few requests never shows a high usage.
    """
    waiting = (level.queued_requests or 0.0) >= QUEUE_SHARE * level.concurrency
    taken = (level.token_usage_share or 0.0) + longest_share
    return level.end is LevelEnd.QUEUE_ONLY or (waiting and taken >= FULL_USAGE)


def _useful_up_to(level: LevelResult, longest_share: float) -> float:
    """Once the pool is full, every rung above what runs shows the same rate and a longer or shorter queue."""
    if not is_full(level, longest_share):
        return math.inf
    return 1.1 * (level.running_requests or level.concurrency)


def planned_levels(knowledge: Knowledge, setting: Setting) -> tuple[int, ...]:
    """What is meant to be measured when a start is proposed; the levels seen decide the rest."""
    ladder = knowledge.ladder()
    first = first_level(knowledge, setting)
    if knowledge.rate is None:
        return tuple(sorted({first, _rung_below(ladder, math.sqrt(first * ladder[-1])), ladder[-1]}))
    return tuple(sorted({first, promising_level(knowledge, setting)}))


def _rung_below(ladder: Sequence[int], value: float) -> int:
    return max((rung for rung in ladder if rung <= value), default=ladder[0])
