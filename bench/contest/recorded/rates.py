"""A level at any capacity and concurrency, interpolated between the recorded ones.

The axes are the running requests that a pool admits (its tokens by those in flight of each request) and the
concurrency, whose logarithm is taken. A level without a queue does not know how large its pool is: those of one
concurrency are repetitions of each other, for every pool that admits so many. Repetitions are averaged, weighted by
their intervals. Beyond its last recorded level a pool shows what that level showed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from bench.contest.recorded.memory import RecordedMemory, step_gib
from bench.contest.recorded.rows import RecordedStart
from launcher.errors import UsageError
from tuner.trial import LevelResult

NO_QUEUE = 0.5
"""Fewer requests waiting than this, on average, are none."""


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """What one level shows; `half_width` is that of its rate's 95% interval."""

    rate: float
    half_width: float
    gen_tokens_per_s: float
    responses_per_s: float
    running: float
    queued: float
    usage_share: float
    in_flight: float
    measured_s: float
    spent_s: float
    step_gib: float


@dataclass(frozen=True, slots=True)
class PoolRow:
    """The levels of one recorded pool. `cells` has the shape (levels, fields of RecordedCell)."""

    admitted: float
    levels: tuple[int, ...]
    cells: NDArray[np.float64]

    def at(self, concurrency: float) -> NDArray[np.float64]:
        logs = np.log(self.levels)
        return np.array([np.interp(np.log(concurrency), logs, column) for column in self.cells.T])


@dataclass(frozen=True, slots=True)
class RecordedRates:
    """Rows ascend in what their pools admit."""

    in_flight: float
    """Tokens of one running request: the median of all levels."""
    rows: tuple[PoolRow, ...]
    measured_levels: int

    def at(self, capacity_tokens: float, concurrency: float) -> RecordedCell:
        """The interpolated level; outside the recorded pools the nearest one's."""
        admitted = [row.admitted for row in self.rows]
        values = np.array([row.at(concurrency) for row in self.rows])
        asked = capacity_tokens / self.in_flight
        return RecordedCell(*(float(np.interp(asked, admitted, column)) for column in values.T))


def rates_of(memory: RecordedMemory) -> RecordedRates:
    """The rates of the starts that lived. Raises UsageError when no level says how long its requests are."""
    pairs = [(start, level) for start in memory.lived for level in start.levels]
    lengths = [level.tokens_in_flight_each for _, level in pairs if level.tokens_in_flight_each]
    if not lengths:
        raise UsageError("no recorded level shows its tokens in flight: its pool cannot be compared with others")
    in_flight = statistics.median(lengths)
    free = _averaged((level, _cell(start, level)) for start, level in pairs if not _queues(level))
    rows = [_row(memory, fraction, in_flight, free) for fraction in memory.fractions]
    return RecordedRates(in_flight, tuple(sorted(rows, key=lambda row: row.admitted)), len(pairs))


def _row(memory: RecordedMemory, fraction: float, in_flight: float, free: Mapping[int, NDArray[np.float64]]) -> PoolRow:
    """The levels that this pool admits, whoever measured them, and those of its own that had a queue."""
    admitted = memory.capacity_tokens(fraction) / in_flight
    own = [start for start in memory.lived if start.mem_fraction_static == fraction]
    queued = _averaged((level, _cell(start, level)) for start in own for level in start.levels if _queues(level))
    within = {concurrency: cell for concurrency, cell in free.items() if concurrency <= admitted}
    cells = {**within, **queued}
    levels = tuple(sorted(cells))
    return PoolRow(admitted, levels, np.array([cells[level] for level in levels]))


def _queues(level: LevelResult) -> bool:
    return (level.queued_requests or 0.0) >= NO_QUEUE


def _averaged(cells: Iterable[tuple[LevelResult, RecordedCell]]) -> dict[int, NDArray[np.float64]]:
    """One cell per concurrency."""
    by_level: dict[int, list[RecordedCell]] = defaultdict(list)
    for level, cell in cells:
        by_level[level.concurrency].append(cell)
    return {concurrency: _mean(repeated) for concurrency, repeated in by_level.items()}


def _mean(cells: Sequence[RecordedCell]) -> NDArray[np.float64]:
    weights = [cell.half_width**-2 for cell in cells]
    return np.asarray(np.average(np.array([astuple(cell) for cell in cells]), axis=0, weights=weights))


def _cell(start: RecordedStart, level: LevelResult) -> RecordedCell:
    return RecordedCell(
        rate=level.completion_rate.value,
        half_width=level.completion_rate.half_width,
        gen_tokens_per_s=level.gen_tokens_per_s or level.completion_rate.value,
        responses_per_s=level.responses_per_s,
        running=level.running_requests or 0.0,
        queued=level.queued_requests or 0.0,
        usage_share=level.token_usage_share or 0.0,
        in_flight=level.tokens_in_flight_each or 0.0,
        measured_s=level.measured_s,
        spent_s=level.spent_s,
        step_gib=step_gib(start, level),
    )
