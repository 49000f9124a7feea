"""The true rate of every configuration of a case: each cell is a level measured on the engine in virtual time.

Cells lie on a grid of (dtype, HiCache size, capacity, concurrency); in between, logs are interpolated. The engine
runs without noise and with the preset's own speed: a seed's speed divides the rates, its B and W move the capacity.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from bench.contest.cases import SimulatedCase
from launcher.config import ServerConfig
from launcher.simulated.box import VirtualBox
from launcher.simulated.events import Crashed
from launcher.simulated.presets import with_overrides
from tuner.measure.virtual import measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import load_workload

CAPACITIES = 7
LEVELS_PER_DOUBLING = 1
CELL_BUDGET_S = 600.0
"""As long as a daemon would give one level; the target is its ± 3%."""
QUIET = {
    "noise.start_sd_share": 0.0,
    "noise.drift_sd_share": 0.0,
    "noise.start_time_sd_share": 0.0,
    "noise.transient_sd_share": 0.0,
}
NO_TRANSIENT = {
    "transient.before_bytes_per_token": 0.0,
    "transient.largest_bytes_per_token": 0.0,
    "transient.after_bytes_per_token": 0.0,
    "transient.logits_bytes_per_request": 0.0,
    "transient.eager_bytes_per_request": 0.0,
}
PLENTY_GIB = 30.0
"""Room added for the table's starts, so that every capacity of the grid can be started."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a long measurement of one configuration shows, at the preset's own speed."""

    rate: float
    running: float
    queued: float
    usage: float
    in_flight: float
    spent_s: float
    responses_per_s: float
    hit: float
    host_hit: float


@dataclass(frozen=True)
class RateTable:
    """Cells on a grid. `values` has the shape (dtypes, HiCache sizes, capacities, levels, fields of Cell)."""

    dtypes: tuple[str, ...]
    hicache_gb: tuple[int, ...]
    capacities: tuple[float, ...]
    levels: tuple[int, ...]
    values: NDArray[np.float64]

    def at(self, dtype: str, hicache_gb: int, capacity: float, concurrency: int) -> Cell:
        """The interpolated cell; outside the grid the nearest edge."""
        found = self.many(dtype, hicache_gb, np.array([capacity]), np.array([float(concurrency)]))
        return Cell(*(float(value) for value in found[0]))

    def many(
        self, dtype: str, hicache_gb: int, capacities: NDArray[np.float64], levels: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Cells for pairs of capacity and level, shape (pairs, fields of Cell)."""
        between = self._between[self.dtypes.index(dtype), self.hicache_gb.index(hicache_gb)]
        held = np.clip(np.log(capacities), *np.log(self.capacities)[[0, -1]])
        loaded = np.clip(np.log(levels), *np.log(self.levels)[[0, -1]])
        return np.asarray(np.expm1(between(np.stack([held, loaded], axis=1))))

    @cached_property
    def _between(self) -> dict[tuple[int, int], RegularGridInterpolator]:
        axes = (np.log(self.capacities), np.log(self.levels))
        return {
            (i, j): RegularGridInterpolator(axes, np.log1p(self.values[i, j]))
            for i in range(len(self.dtypes))
            for j in range(len(self.hicache_gb))
        }


def rate_table(case: SimulatedCase) -> RateTable:
    """The case's table, from the cache of this user's temporary directory or built now."""
    path = _cache_path(case)
    if path.is_file():
        loaded: RateTable = pickle.loads(path.read_bytes())
        return loaded
    table = _build(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(table))
    partial.replace(path)
    return table


def _cache_path(case: SimulatedCase) -> Path:
    what = f"{case.preset.model_dump_json()}|{case.workload}|{case.space}|{CAPACITIES}|{_engine_text()}"
    name = hashlib.sha256(what.encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"kvtune-contest-{os.getuid()}" / f"{name}.pickle"


def _engine_text() -> str:
    """The source of engine and measurement: when either changes, no table of before is used."""
    import launcher.simulated
    import tuner.measure
    import tuner.steady
    import tuner.workload

    packages = (launcher.simulated, tuner.measure, tuner.steady, tuner.workload)
    files = [path for package in packages for path in sorted(Path(package.__path__[0]).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _build(case: SimulatedCase) -> RateTable:
    dtypes, sizes = case.space.kv_cache_dtypes, case.space.hicache_sizes_gb
    levels = case.space.concurrency_ladder(LEVELS_PER_DOUBLING)
    capacities = _capacities(case)
    values = [
        [[_row(case, dtype, size, held, levels) for held in capacities] for size in _distinct(case)] for dtype in dtypes
    ]
    repeats = [1, len(sizes) - 1] if len(_distinct(case)) < len(sizes) else [1] * len(sizes)
    return RateTable(dtypes, sizes, capacities, levels, np.repeat(np.array(values), repeats, axis=1))


def _distinct(case: SimulatedCase) -> tuple[int, ...]:
    """Where no prompt shares a prefix the host pool's size changes nothing: on or off is all there is to measure."""
    sizes = case.space.hicache_sizes_gb
    return sizes if case.reused_prefix_share > 0 or len(sizes) < 2 else (sizes[0], sizes[-1])


def _row(case: SimulatedCase, dtype: str, hicache_gb: int, capacity: float, levels: Sequence[int]) -> list[list[float]]:
    """One capacity at every level. Once a tenth of the clients wait, more of them change nothing but the queue."""
    cells: list[Cell] = []
    for level in levels:
        if cells and cells[-1].queued > 0.1 * (cells[-1].running + cells[-1].queued):
            full = cells[-1]
            cells.append(replace(full, queued=level - full.running))
        else:
            cells.append(_measured(case, dtype, hicache_gb, int(capacity), level))
    return [[getattr(cell, one.name) for one in fields(cell)] for cell in cells]


def _capacities(case: SimulatedCase) -> tuple[float, ...]:
    """From the smallest pool of the space to the largest, hidden B and W included, evenly spaced in ratio."""
    held = [
        _start_capacity(case, fraction, dtype)
        for fraction in case.space.fraction_bounds
        for dtype in case.space.kv_cache_dtypes
    ]
    return tuple(np.geomspace(0.5 * min(held), 1.15 * max(held), CAPACITIES))


def _start_capacity(case: SimulatedCase, fraction: float, dtype: str) -> float:
    from launcher.simulated.memory import plan_memory
    from launcher.simulated.options import options_of

    flags = {"tp-size": case.preset.model.tp_size}
    config = ServerConfig("model", fraction, dtype, flags=flags)
    return float(max(1000, plan_memory(case.preset, options_of(case.preset, config)).capacity_tokens))


def _measured(case: SimulatedCase, dtype: str, hicache_gb: int, capacity: int, concurrency: int) -> Cell:
    level = _level(case, dtype, hicache_gb, capacity, concurrency)
    return Cell(
        rate=level.gen_tokens_per_s or level.completion_rate.value,
        running=level.running_requests or 0.0,
        queued=level.queued_requests or 0.0,
        usage=level.token_usage_share or 0.0,
        in_flight=level.tokens_in_flight_each or 0.0,
        spent_s=level.spent_s,
        responses_per_s=level.responses_per_s,
        hit=level.cache_hit_share or 0.0,
        host_hit=level.cache_hit_host_share or 0.0,
    )


def _level(case: SimulatedCase, dtype: str, hicache_gb: int, capacity: int, concurrency: int) -> LevelResult:
    """A long quiet measurement on a box with room for any pool."""
    preset = with_overrides(case.preset, {**QUIET, **NO_TRANSIENT, **_roomy(case, capacity)})
    flags = {"tp-size": preset.model.tp_size, "max-total-tokens": capacity}
    start = VirtualBox(preset, seed=0).start(ServerConfig("model", 0.95, dtype, hicache_gb, flags))
    if start.engine is None:
        raise RuntimeError(f"{case.name}: the table's start at {capacity} tokens died: {start.log[-400:]}")
    workload = load_workload(case.workload, seed=0)
    level = measure_level(start.engine, workload, concurrency, LevelLimits(CELL_BUDGET_S))
    if isinstance(level, Crashed):
        raise RuntimeError(f"{case.name}: the table's engine died at {capacity} tokens: {level.log_text[-400:]}")
    return level


def _roomy(case: SimulatedCase, capacity: int) -> dict[str, float]:
    model = case.preset.model
    per_token = 2.0 * model.layers * 2 * (model.head_dim or 1) * max(1, (model.kv_heads or 1) // model.tp_size)
    if model.attention == "mla":
        per_token = 2.0 * model.layers * ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0))
    room = 1.2 * (model.weights_gib + capacity * per_token / 2**30) + PLENTY_GIB
    return {
        "box.free_before_weights_gib": room,
        "box.gpu_memory_gib": room + 2,
        "box.host_available_gb": 10_000.0,
    }
