"""A level at any capacity and concurrency, interpolated between the recorded ones.

Until a pool is full its size does not matter: levels without a queue are repetitions of each other by concurrency,
whichever pool they were measured on. A pool that is full serves so many requests and no more, and more clients only
make its queue longer: its levels with a queue are repetitions too. Any other pool's full house lies between those of
the recorded pools, by the running requests that they admit (tokens by those in flight of each request); between the
levels that it serves and its full house rates go by the logarithm of the requests served. Repetitions are averaged,
weighted by their intervals. Nothing is extrapolated.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

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


Vector = NDArray[np.float64]
"""The fields of a RecordedCell in their order."""


@dataclass(frozen=True, slots=True)
class FullHouse:
    """What a recorded pool shows when it serves as many requests as it can (or as anybody sent it)."""

    admitted: float
    served: float
    cell: Vector


@dataclass(frozen=True, slots=True)
class RecordedRates:
    """`full` ascends in what the pools admit."""

    in_flight: float
    """Tokens of one running request: the median of all levels."""
    free: Mapping[int, Vector]
    """Levels without a queue, by concurrency."""
    full: tuple[FullHouse, ...]
    measured_levels: int

    def at(self, capacity_tokens: float, concurrency: int) -> RecordedCell:
        """The interpolated level; its queue are the clients that the pool does not serve."""
        house = self._full_house(capacity_tokens / self.in_flight)
        served = min(float(concurrency), house.served)
        known = {float(level): cell for level, cell in self.free.items() if level < house.served}
        known[house.served] = house.cell
        places = sorted(known)
        cell = _between(served, places, [known[place] for place in places], logarithmic=True)
        return replace(RecordedCell(*(float(value) for value in cell)), queued=concurrency - served)

    def _full_house(self, admitted: float) -> FullHouse:
        places = [house.admitted for house in self.full]
        served = float(np.interp(admitted, places, [house.served for house in self.full]))
        return FullHouse(admitted, served, _between(admitted, places, [house.cell for house in self.full]))


def _between(place: float, places: Sequence[float], cells: Sequence[Vector], *, logarithmic: bool = False) -> Vector:
    """Every field interpolated on its own; `places` ascend."""
    axis, at = (np.log(places), np.log(place)) if logarithmic else (np.array(places), place)
    return np.array([np.interp(at, axis, column) for column in np.array(cells).T])


def rates_of(memory: RecordedMemory) -> RecordedRates:
    """The rates of the starts that lived. Raises UsageError when no level says how long its requests are."""
    pairs = [(start, level) for start in memory.lived for level in start.levels]
    lengths = [level.tokens_in_flight_each for _, level in pairs if level.tokens_in_flight_each]
    if not lengths:
        raise UsageError("no recorded level shows its tokens in flight: its pool cannot be compared with others")
    in_flight = statistics.median(lengths)
    by_level: dict[int, list[RecordedCell]] = defaultdict(list)
    for start, level in pairs:
        if not _queues(level):
            by_level[level.concurrency].append(_cell(start, level))
    free = {concurrency: _mean(cells) for concurrency, cells in by_level.items()}
    houses = [_house(memory, fraction, in_flight, free) for fraction in memory.fractions]
    full = sorted((house for house in houses if house is not None), key=lambda house: house.admitted)
    if not full:
        raise UsageError("no recorded pool was filled, and none admits what was measured on another")
    return RecordedRates(in_flight, free, tuple(full), len(pairs))


def _house(memory: RecordedMemory, fraction: float, in_flight: float, free: Mapping[int, Vector]) -> FullHouse | None:
    """From the levels that had a queue; without one, the highest level that this pool surely admits, if any."""
    admitted = memory.capacity_tokens(fraction) / in_flight
    own = [start for start in memory.lived if start.mem_fraction_static == fraction]
    queued = [(start, level) for start in own for level in start.levels if _queues(level)]
    if queued:
        served = statistics.fmean(level.concurrency - (level.queued_requests or 0.0) for _, level in queued)
        return FullHouse(admitted, served, _mean([_cell(start, level) for start, level in queued]))
    within = [concurrency for concurrency in free if concurrency <= admitted]
    return FullHouse(admitted, float(max(within)), free[max(within)]) if within else None


def _queues(level: LevelResult) -> bool:
    return (level.queued_requests or 0.0) >= NO_QUEUE


def _mean(cells: Sequence[RecordedCell]) -> Vector:
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
