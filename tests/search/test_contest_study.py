"""The contest's referee: a world on the simulated engine, with a rate table made by hand so that nothing takes long."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from bench.contest.cases import SimulatedCase, cases_of, hidden_of
from bench.contest.ours import Kvtune
from bench.contest.race import Score, Step, run_study
from bench.contest.rivals import Default, Random, available_rivals
from bench.contest.simulated import SimulatedWorld
from bench.contest.table import Cell, RateTable
from launcher.failure import Failure, Stage
from tuner.trial import Setting

CAPACITIES = tuple(np.geomspace(20_000, 3_000_000, 6))
LEVELS = (16, 32, 64, 128, 256, 384)
EACH = 2_000.0


def cell(capacity: float, concurrency: int) -> Cell:
    running = min(float(concurrency), 0.95 * capacity / EACH)
    rate = running / (0.05 + 0.0004 * running)
    usage = min(1.0, running * EACH / capacity)
    return Cell(rate, running, concurrency - running, usage, EACH, 200.0, rate / 1000, 0.0, 0.0)


def by_hand(case: SimulatedCase) -> RateTable:
    space = case.space
    grid = [[[getattr(cell(held, n), one.name) for one in fields(Cell)] for n in LEVELS] for held in CAPACITIES]
    values = np.broadcast_to(
        np.array(grid),
        (len(space.kv_cache_dtypes), len(space.hicache_sizes_gb), len(CAPACITIES), len(LEVELS), len(fields(Cell))),
    )
    return RateTable(space.kv_cache_dtypes, space.hicache_sizes_gb, CAPACITIES, LEVELS, values)


@pytest.fixture
def case() -> SimulatedCase:
    return cases_of(["kimi-k2.5-8x-rtx-pro-6000"])[0]


@pytest.fixture
def world(case: SimulatedCase) -> SimulatedWorld:
    return SimulatedWorld(case, by_hand(case), hidden_of(case, 1000), 1000)


def test_table_interpolates_between_its_cells(case: SimulatedCase) -> None:
    table = by_hand(case)
    at_cell = table.at("bfloat16", 0, CAPACITIES[2], 64)
    assert at_cell.rate == pytest.approx(cell(CAPACITIES[2], 64).rate)
    between = table.at("bfloat16", 0, CAPACITIES[2], 50)
    assert table.at("bfloat16", 0, CAPACITIES[2], 32).rate < between.rate < at_cell.rate


def test_a_safe_start_is_read_from_its_log(world: SimulatedWorld) -> None:
    started = world.start(Setting(0.86, "bfloat16", 0))
    assert started.failure is None
    assert started.timeline is not None
    assert started.timeline.memory.headroom_gib is not None
    level = world.measure(64)
    assert not isinstance(level, Failure)
    assert min(level.headroom_min_gib.values()) < started.timeline.memory.headroom_gib
    assert world.stop() > 0


def test_starts_die_on_both_sides(world: SimulatedWorld) -> None:
    too_high = world.start(Setting(0.98, "bfloat16", 0))
    died = too_high.failure if too_high.failure is not None else world.measure(64)
    assert isinstance(died, Failure)
    assert died.is_gpu_oom
    world.stop()
    too_low = world.start(Setting(0.70, "bfloat16", 0))
    assert too_low.failure is not None
    assert too_low.failure.stage is Stage.KV_POOL


def test_the_referee_gives_nothing_for_what_does_not_live(world: SimulatedWorld) -> None:
    assert world.true_rate(Setting(0.98, "bfloat16", 0), 64) == 0.0
    assert world.true_rate(Setting(0.86, "bfloat16", 0), 64) <= world.oracle()


def test_the_search_beats_the_default_and_random(case: SimulatedCase) -> None:
    def share(method: Kvtune | Default | Random) -> float:
        world = SimulatedWorld(case, by_hand(case), hidden_of(case, 1001), 1001)
        return run_study(method, world, 1001, world.oracle()).final_share

    ours = share(Kvtune(case, 1001))
    assert ours >= 0.95
    assert ours > share(Default(case, 1001))
    assert ours > share(Random(case, 1001)) - 0.02


def test_every_rival_proposes_what_the_space_holds(case: SimulatedCase) -> None:
    for rival in available_rivals():
        proposal = rival(case, 1).propose([], 7200)
        assert proposal is not None
        low, high = case.space.fraction_bounds
        assert low <= (proposal.setting.mem_fraction_static or 0.0) <= high


def test_the_goal_counts_from_when_it_is_held() -> None:
    steps = tuple(Step(600.0 * (at + 1), share, False) for at, share in enumerate((0.98, 0.90, 0.98, 0.99)))
    score = Score("x", "y", 0, steps)
    assert score.relaunches_to_goal == 3
    assert score.minutes_to_goal == pytest.approx(30)
    assert score.share_after(2) == 0.90
    assert score.final_share == 0.99
