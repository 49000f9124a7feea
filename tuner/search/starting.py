"""Before the first rate is known: a safe and informative start, and another one when that died."""

from __future__ import annotations

from dataclasses import replace

from tuner.search.candidates import open_settings
from tuner.search.knowledge import Knowledge, family_of, key_of
from tuner.trial import Setting

NEARLY_SAFEST = 0.95
"""Among settings this close to the safest one, the nearest to the user's own is taken."""


def plain_setting(knowledge: Knowledge) -> Setting:
    """The user's present flags moved into the space, else SGLang's default fraction with nothing else turned on."""
    current, default_fraction = knowledge.options.current, knowledge.prior.default_fraction()
    if current is not None:
        fraction = current.mem_fraction_static or default_fraction
        return knowledge.space.nearest(replace(current, mem_fraction_static=fraction))
    dtypes = knowledge.space.kv_cache_dtypes
    dtype = "bfloat16" if "bfloat16" in dtypes else dtypes[0]
    return knowledge.space.nearest(Setting(default_fraction, dtype, 0))


def starting_setting(knowledge: Knowledge) -> Setting | None:
    """Where to start: the plain setting if it should live, else the nearest fraction that should.

    What has been running at the user's is not doubted on a prior's word; only a start that died moves it. None when
    every fraction of the family has been ruled out.
    """
    plain = plain_setting(knowledge)
    family = [setting for setting in open_settings(knowledge) if family_of(setting) == family_of(plain)]
    family += [plain] if _is_open(plain, knowledge) else []
    if not family:
        return None
    if plain == knowledge.options.current and plain in family:
        return plain
    safest = max(knowledge.outlook(setting).survival for setting in family)
    safe = [setting for setting in family if knowledge.outlook(setting).survival >= NEARLY_SAFEST * safest]
    return min(safe, key=lambda setting: _distance(setting, plain))


def roomiest_safe_setting(knowledge: Knowledge) -> Setting | None:
    """With the memory known and no rate: the most tokens that are safe, nothing turned on but a smaller dtype.

    A smaller dtype is taken only where the plain pool could not hold all clients: else it buys nothing.
    """
    plain = plain_setting(knowledge)
    floor = knowledge.options.least_survival
    families = {family_of(replace(plain, kv_cache_dtype=dtype)) for dtype in knowledge.space.kv_cache_dtypes}
    safe = [
        setting
        for setting in open_settings(knowledge)
        if family_of(setting) in families and knowledge.outlook(setting).survival >= floor
    ]
    plain_safe = [setting for setting in safe if family_of(setting) == family_of(plain)]
    roomiest = max(plain_safe, key=knowledge.tokens, default=None)
    wanted = (knowledge.tokens_in_flight or 0.0) * knowledge.space.concurrency[1]
    if roomiest is not None and knowledge.tokens(roomiest) >= wanted:
        return roomiest
    return max(safe, key=knowledge.tokens, default=None)


def _is_open(setting: Setting, knowledge: Knowledge) -> bool:
    died = {key_of(trial.proposal.setting) for trial in knowledge.history if trial.failure and trial.failure.teaches}
    return key_of(setting) not in died


def _distance(one: Setting, other: Setting) -> float:
    return abs((one.mem_fraction_static or 0.0) - (other.mem_fraction_static or 0.0))
