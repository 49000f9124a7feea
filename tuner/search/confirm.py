"""The end game: incumbent and runner-up are measured again, interleaved, before the budget is gone."""

from __future__ import annotations

from functools import lru_cache

from tuner.search.knowledge import Knowledge, family_of, key_of
from tuner.search.standings import Standing, is_clear, standings
from tuner.trial import Purpose, Setting

CLOSE_SHARE = 0.05
"""A runner-up further behind than this needs no second look."""
ROUNDS = 2
MOST_CONFIRMATIONS = 4
NEIGHBOUR_FRACTION = 0.0125
"""Two fractions of one family this close differ by what the pool arithmetic says; no start can settle it."""


def reserve_s(knowledge: Knowledge) -> float:
    """Study seconds kept for one round: a start and a level for each of the two."""
    if not knowledge.options.confirm:
        return 0.0
    return sum(knowledge.minutes.trial(one.setting, 1.0) for one in _contenders(knowledge))


def next_confirmation(knowledge: Knowledge) -> Standing | None:
    """Whom to measure again now: the runner-up first, then the incumbent; None when nothing is left to settle."""
    contenders = _contenders(knowledge)
    if not knowledge.options.confirm or not contenders:
        return None
    counts = [_confirmations(knowledge, one) for one in contenders]
    settled = len(contenders) == 1 or is_clear(contenders[0], contenders[1])
    if min(counts) >= (1 if settled else ROUNDS) or _all_confirmations(knowledge) >= MOST_CONFIRMATIONS:
        return None
    # Behind in count first; between equals the runner-up, so that the order is A B, B A or A B A B.
    return min(reversed(contenders), key=lambda one: _confirmations(knowledge, one))


@lru_cache(maxsize=4)
def _contenders(knowledge: Knowledge) -> tuple[Standing, ...]:
    """The incumbent, and the best setting that is another choice, if it is close.

    As exploration left them: a confirmation must not change who is being confirmed.
    """
    explored = [trial for trial in knowledge.history if trial.proposal.purpose is not Purpose.CONFIRM]
    if len(explored) < len(knowledge.history):
        ranked = standings(Knowledge(knowledge.space, knowledge.prior, knowledge.options, explored))
    else:
        ranked = standings(knowledge)
    now = {key_of(one.setting): one for one in standings(knowledge)}
    others = [one for one in ranked[1:] if not _are_neighbours(ranked[0].setting, one.setting)]
    close = [one for one in others if ranked[0].log_rate - one.log_rate <= CLOSE_SHARE]
    return tuple(now[key_of(one.setting)] for one in [*ranked[:1], *close[:1]])


def _are_neighbours(one: Setting, other: Setting) -> bool:
    gap = abs((one.mem_fraction_static or 0.0) - (other.mem_fraction_static or 0.0))
    return family_of(one) == family_of(other) and gap <= NEIGHBOUR_FRACTION


def _all_confirmations(knowledge: Knowledge) -> int:
    return sum(trial.proposal.purpose is Purpose.CONFIRM and bool(trial.levels) for trial in knowledge.history)


def _confirmations(knowledge: Knowledge, standing: Standing) -> int:
    return sum(
        trial.proposal.purpose is Purpose.CONFIRM
        and bool(trial.levels)
        and key_of(trial.proposal.setting) == key_of(standing.setting)
        for trial in knowledge.history
    )
