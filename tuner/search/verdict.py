"""The end: who won, whether clearly, what is exported, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launcher.failure import Direction
from tuner.journal.view import Incumbent
from tuner.search.explain import explanation
from tuner.search.knowledge import Knowledge
from tuner.search.standings import WORST_SHARE, Standing, is_clear, standings
from tuner.trial import Setting

BARE_MARGIN_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of the search in words and values. `incumbent` is None while nothing was measured."""

    incumbent: Incumbent | None
    runner_up: Incumbent | None
    clear: bool
    """False: the noise cannot tell the two apart ("no clear winner"), or nothing else was measured."""
    explanation: str


def verdict_of(knowledge: Knowledge) -> Verdict:
    ranked = standings(knowledge)
    if not ranked:
        return Verdict(None, None, False, explanation(knowledge, ranked, clear=False, exported=None))
    clear = len(ranked) > 1 and is_clear(ranked[0], ranked[1])
    return Verdict(
        incumbent=_incumbent(ranked[0]),
        runner_up=_incumbent(ranked[1]) if len(ranked) > 1 else None,
        clear=clear,
        explanation=explanation(knowledge, ranked, clear=clear, exported=export_of(knowledge, ranked[0])),
    )


def export_of(knowledge: Knowledge, winner: Standing) -> Setting:
    """The winner's setting, its fraction lowered where it stands too near the learned boundary.

    The exported fraction leaves `safety_gib` above the 97.5% quantile of the worst transient.
    """
    setting = winner.setting
    if setting.mem_fraction_static is None:
        return setting
    if knowledge.options.black_box:
        return _below_the_dead(knowledge, setting, setting.mem_fraction_static)
    short_gib = needed_headroom_gib(knowledge, setting) - (knowledge.outlook(setting).headroom_gib or 0.0)
    if short_gib <= 0:
        return setting
    low, _ = knowledge.space.fraction_bounds
    # Rounded down to SGLang's own three digits, on the safe side.
    lowered = int((setting.mem_fraction_static - short_gib / knowledge.memory.before_gib.mean) * 1000) / 1000
    return replace(setting, mem_fraction_static=max(low, lowered))


def _below_the_dead(knowledge: Knowledge, setting: Setting, fraction: float) -> Setting:
    """Without a memory model the only margin is a step below the lowest fraction that died with this dtype."""
    died = [
        trial.proposal.setting.mem_fraction_static or 1.0
        for trial in knowledge.history
        if trial.failure is not None
        and trial.failure.teaches
        and trial.failure.mem_fraction_direction is Direction.DOWN
        and trial.proposal.setting.kv_cache_dtype == setting.kv_cache_dtype
    ]
    safe = min(fraction, min(died, default=1.0) - BARE_MARGIN_FRACTION)
    return replace(setting, mem_fraction_static=max(knowledge.space.fraction_bounds[0], round(safe, 3)))


def needed_headroom_gib(knowledge: Knowledge, setting: Setting) -> float:
    """What the exported setting must leave free after start-up, per rank."""
    memory = knowledge.memory
    worst_gib = memory.transient_gib.quantile(WORST_SHARE) * memory.transient_scale(setting)
    return worst_gib + knowledge.options.safety_gib


def _incumbent(standing: Standing) -> Incumbent:
    return Incumbent(standing.trial_id, standing.setting, standing.concurrency, standing.measured)
