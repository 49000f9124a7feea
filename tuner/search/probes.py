"""Cheap probes: starts with --load-format dummy show the memory of a start without reading its weights.

They pay when reading the weights takes minutes. The first real start must confirm what they showed; if its capacity
or headroom differs, every probe of the study is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.memory import MemoryPrior, learn_memory
from tuner.trial import Purpose, TrialResult

WORTH_S = 120.0
"""A probe must save at least this much of a start."""
LEVEL_S = 150.0
"""As long as a probe's level may take: the worst step comes in the first full chunks, and its rate is no answer."""
CAPACITY_SHARE = 0.01
HEADROOM_GIB = 0.4
"""What a real start may differ by and still confirm the probes."""


def trusted(prior: MemoryPrior, history: Sequence[TrialResult]) -> bool:
    """False once a real start contradicts what the probes had predicted: by its log lines, or by dying at once."""
    probes = [trial for trial in history if trial.proposal.purpose is Purpose.PROBE and _shows_memory(trial)]
    real = [trial for trial in history if trial.proposal.purpose is not Purpose.PROBE and _tells(trial)]
    if not probes or not real:
        return True
    return _shows_memory(real[0]) and _confirms(prior, probes, real[0])


def confirmed(prior: MemoryPrior, history: Sequence[TrialResult]) -> bool:
    """A real start has been seen, and it agreed."""
    real = any(trial.proposal.purpose is not Purpose.PROBE and _shows_memory(trial) for trial in history)
    return real and trusted(prior, history)


def _shows_memory(trial: TrialResult) -> bool:
    return trial.timeline is not None and trial.timeline.memory.headroom_gib is not None


def _tells(trial: TrialResult) -> bool:
    """It came to its memory lines, or its configuration killed it on the way: probes had called it safe."""
    died = trial.failure is not None and trial.failure.teaches and trial.failure.is_gpu_oom
    return _shows_memory(trial) or died


def _confirms(prior: MemoryPrior, probes: Sequence[TrialResult], real: TrialResult) -> bool:
    assert real.timeline is not None
    seen = real.timeline.memory
    predicted = learn_memory(prior, probes).predict(real.proposal.setting)
    same_headroom = abs((seen.headroom_gib or 0.0) - predicted.headroom_gib) <= HEADROOM_GIB
    tokens = float(seen.capacity_tokens or predicted.tokens)
    return same_headroom and abs(tokens - predicted.tokens) <= CAPACITY_SHARE * predicted.tokens
