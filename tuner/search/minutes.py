"""What a trial will take, in study seconds: learned from the trials so far, with stated guesses before the first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.failure import Stage
from tuner.memory import MemoryPrior
from tuner.search.options import SearchOptions
from tuner.search.probes import LEVEL_S
from tuner.trial import Purpose, Setting, TrialResult

PIN_S_PER_GB = 0.8
"""Pinning a HiCache host pool: 20 GB in 12 s, 90 GB in 83 s, per rank (H200)."""
STOP_AND_CLEAN_S = 30.0
IMPORT_S, GRAPHS_S = 35.0, 35.0
"""An H200 start without reading weights: Python's imports (33 s cold) with the pools, and decode graphs. A CPU, and a
server told so, captures none."""
READ_BYTES_PER_S = 2e9
"""Weights from a disk that is not in the page cache yet."""
UNKNOWN_READING_S = 120.0


@dataclass(frozen=True, slots=True)
class MinutesModel:
    """All in study seconds."""

    start_s: float
    """A start with real weights and without HiCache."""
    dummy_start_s: float
    level_s: float
    stop_and_clean_s: float

    def start(self, setting: Setting, *, dummy: bool = False) -> float:
        return (self.dummy_start_s if dummy else self.start_s) + PIN_S_PER_GB * setting.hicache_size_gb

    def trial(self, setting: Setting, levels: float, *, dummy: bool = False) -> float:
        """Clean slate, start, that many levels, stop."""
        level_s = min(LEVEL_S, self.level_s) if dummy else self.level_s
        return self.stop_and_clean_s + self.start(setting, dummy=dummy) + levels * level_s

    @property
    def least_trial_s(self) -> float:
        """No other start is worth making in less: one level, and no HiCache to pin."""
        return self.stop_and_clean_s + self.start_s + self.level_s

    def crash(self, setting: Setting, *, dummy: bool = False) -> float:
        """A start that dies before anything was measured costs less than a measurement."""
        return self.stop_and_clean_s + self.start(setting, dummy=dummy)

    @property
    def probe_saves_s(self) -> float:
        return self.start_s - self.dummy_start_s


def learn_minutes(history: Sequence[TrialResult], options: SearchOptions, prior: MemoryPrior) -> MinutesModel:
    """Medians over what was seen; a probe's start says nothing of reading weights, and the other way round."""
    started = [trial for trial in history if trial.timeline is not None and trial.timeline.ready_s is not None]
    real = [_start_s(trial) for trial in started if not _is_probe(trial)]
    dummy = [_start_s(trial) for trial in started if _is_probe(trial)]
    without_weights = [_start_s(trial) - _weights_s(trial) for trial in started]
    levels = [level.spent_s for trial in history if not _is_probe(trial) for level in trial.levels]
    ends = [trial.minutes.clean_slate_s + trial.minutes.stop_s for trial in started]
    empty_s = IMPORT_S + (GRAPHS_S if prior.captures_graphs else 0.0)
    return MinutesModel(
        start_s=_median(real, options.expected_start_s or empty_s + _reading_s(prior)),
        dummy_start_s=_median(dummy or without_weights, empty_s),
        level_s=_median(levels, options.expected_level_s),
        stop_and_clean_s=_median(ends, STOP_AND_CLEAN_S),
    )


def _is_probe(trial: TrialResult) -> bool:
    return trial.proposal.purpose is Purpose.PROBE


def _reading_s(prior: MemoryPrior) -> float:
    if prior.geometry is None:
        return UNKNOWN_READING_S
    return prior.geometry.weights_bytes / READ_BYTES_PER_S


def _start_s(trial: TrialResult) -> float:
    """The start without pinning, which `MinutesModel.start` adds again."""
    return max(1.0, trial.minutes.start_s - PIN_S_PER_GB * trial.proposal.setting.hicache_size_gb)


def _weights_s(trial: TrialResult) -> float:
    spans = trial.timeline.spans if trial.timeline is not None else ()
    return sum(span.took_s or 0.0 for span in spans if span.stage is Stage.WEIGHTS)


def _median(values: Sequence[float], otherwise: float) -> float:
    return statistics.median(values) if values else otherwise
