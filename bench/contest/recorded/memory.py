"""Tokens, headroom and death at any fraction, by the arithmetic of the recorded starts.

    tokens(f)   = (f * B - W) * 2^30 / b + what the recorded starts had beyond that (under 0.1%)
    headroom(f) = (1 - f) * B - overhead,  the overhead as recorded, interpolated between the recorded fractions
    lives(f)    : headroom(f) covers the worst step that was seen under load, and any headroom that was seen to die
B, W and b are those of the log lines; see `launcher.timeline.MemorySeen`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.contest.recorded.rows import RecordedStart
from launcher.errors import UsageError
from launcher.failure import Failure
from launcher.timeline import MemorySeen, Timeline
from tuner.trial import LevelResult

GIB = 2**30
MEMORY_FIGURES = ("before_weights_gib", "weights_gib", "kv_cache_gib", "capacity_tokens", "headroom_gib")


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """The memory of one box and model. Fractions ascend; per fraction what its starts showed on average."""

    lived: tuple[RecordedStart, ...]
    died: tuple[RecordedStart, ...]
    before_gib: float
    weights_gib: float
    bytes_per_token: float
    fractions: tuple[float, ...]
    overheads_gib: tuple[float, ...]
    surplus_tokens: tuple[float, ...]
    needed_gib: float
    """The headroom that a start needs to live through its heaviest step."""

    def capacity_tokens(self, fraction: float) -> float:
        return self.formula_tokens(fraction) + float(np.interp(fraction, self.fractions, self.surplus_tokens))

    def headroom_gib(self, fraction: float) -> float:
        overhead_gib = float(np.interp(fraction, self.fractions, self.overheads_gib))
        return (1 - fraction) * self.before_gib - overhead_gib

    def lives(self, fraction: float) -> bool:
        return self.headroom_gib(fraction) >= self.needed_gib

    def start_up(self, fraction: float) -> Timeline:
        """What a start at that fraction shows: the nearest recorded one's, with this fraction's memory."""
        dies_at_once = not self.lives(fraction) and self.failure(fraction)[1]
        timeline = nearest(self.died if dies_at_once else self.lived, fraction).started.timeline or Timeline()
        spans = tuple(replace(span, available_before_gib=None, available_after_gib=None) for span in timeline.spans)
        return replace(timeline, spans=spans, memory=self._shown(timeline.memory, fraction))

    def failure(self, fraction: float) -> tuple[Failure, bool]:
        """The nearest recorded death, its free memory moved to this headroom, and whether it is one of the start-up."""
        start = nearest(self.died, fraction)
        assert start.failure is not None
        numbers = start.failure.numbers
        if numbers.gpu_free_gib is not None:
            moved_gib = self.headroom_gib(fraction) - self.headroom_gib(start.mem_fraction_static)
            numbers = replace(numbers, gpu_free_gib=max(0.0, numbers.gpu_free_gib + moved_gib))
        return replace(start.failure, numbers=numbers), start.started.failure is not None

    def formula_tokens(self, fraction: float) -> float:
        return (fraction * self.before_gib - self.weights_gib) * GIB / self.bytes_per_token

    def _shown(self, seen: MemorySeen, fraction: float) -> MemorySeen:
        """`seen` at another fraction. The running requests that SGLang allows follow the pool: not known there."""
        tokens = int(self.capacity_tokens(fraction))
        return replace(
            seen,
            kv_cache_gib=round(tokens * self.bytes_per_token / GIB, 2),
            capacity_tokens=tokens,
            headroom_gib=None if seen.headroom_gib is None else round(self.headroom_gib(fraction), 2),
            max_running_requests=seen.max_running_requests if fraction in self.fractions else None,
        )


def nearest(starts: Sequence[RecordedStart], fraction: float) -> RecordedStart:
    return min(starts, key=lambda start: abs(start.mem_fraction_static - fraction))


def memory_of(starts: Sequence[RecordedStart]) -> RecordedMemory:
    """Read B, W, b, the overhead and the worst step off the starts. Raises UsageError when they do not show them."""
    lived = tuple(start for start in starts if start.failure is None and start.levels)
    died = tuple(start for start in starts if start.failure is not None)
    if not lived or not died:
        raise UsageError("a recording needs a start that was measured and one that died, to know where memory ends")
    for start in lived:
        _check_memory(start)
    bare = _bare(lived, died)
    surplus = _by_fraction(lived, lambda start: _tokens(start) - bare.formula_tokens(start.mem_fraction_static))
    return replace(bare, surplus_tokens=tuple(surplus.values()), needed_gib=_needed_gib(bare))


def _bare(lived: tuple[RecordedStart, ...], died: tuple[RecordedStart, ...]) -> RecordedMemory:
    before_gib = statistics.fmean(_seen(start).before_weights_gib or 0.0 for start in lived)
    overheads = _by_fraction(
        lived, lambda start: (1 - start.mem_fraction_static) * before_gib - (_seen(start).headroom_gib or 0.0)
    )
    return RecordedMemory(
        lived=lived,
        died=died,
        before_gib=before_gib,
        weights_gib=statistics.fmean(_seen(start).weights_gib or 0.0 for start in lived),
        bytes_per_token=statistics.median(_seen(start).bytes_per_token or 0.0 for start in lived),
        fractions=tuple(overheads),
        overheads_gib=tuple(overheads.values()),
        surplus_tokens=(0.0,) * len(overheads),
        needed_gib=0.0,
    )


def _needed_gib(memory: RecordedMemory) -> float:
    """The worst step seen, or more where more was seen to die; never more than what a start lived with."""
    steps = [step_gib(start, level) for start in memory.lived for level in start.levels]
    deadly = [math.nextafter(memory.headroom_gib(start.mem_fraction_static), math.inf) for start in memory.died]
    lived_with_gib = min(memory.headroom_gib(fraction) for fraction in memory.fractions)
    return min(max([*steps, *deadly]), lived_with_gib)


def step_gib(start: RecordedStart, level: LevelResult) -> float:
    """What the level took of the start-up's headroom, as the driver showed it; 0 where it was not read."""
    shown = min(level.headroom_min_gib.values(), default=None)
    return 0.0 if shown is None else (_seen(start).headroom_gib or 0.0) - shown


def _seen(start: RecordedStart) -> MemorySeen:
    return start.started.timeline.memory if start.started.timeline is not None else MemorySeen()


def _tokens(start: RecordedStart) -> float:
    return float(_seen(start).capacity_tokens or 0)


def _by_fraction(starts: Sequence[RecordedStart], value: Callable[[RecordedStart], float]) -> dict[float, float]:
    fractions = sorted({start.mem_fraction_static for start in starts})
    return {
        fraction: statistics.fmean(value(start) for start in starts if start.mem_fraction_static == fraction)
        for fraction in fractions
    }


def _check_memory(start: RecordedStart) -> None:
    missing = [name for name in MEMORY_FIGURES if getattr(_seen(start), name) is None]
    if missing:
        raise UsageError(f"the recorded start at {start.mem_fraction_static} does not show {', '.join(missing)}")
