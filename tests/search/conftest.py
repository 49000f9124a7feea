"""A tiny truth of its own for the search to find: not the simulated engine, only the arithmetic and a bent curve."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from launcher.failure import Culprit, Direction, Failure, FailureNumbers, Kind, Stage
from launcher.timeline import MemorySeen, StageSpan, Timeline
from tuner.search import Searcher
from tuner.space import ELEMENT_BYTES, Space
from tuner.trial import (
    Interval,
    LevelEnd,
    LevelResult,
    Minutes,
    Proposal,
    Purpose,
    Setting,
    TrialResult,
    TrialState,
)

GIB = 2**30


@dataclass
class Toy:
    """The field report's box: 8 x 94 GiB, MLA. Rates in tokens per second, times in study seconds."""

    before_gib: float = 94.07
    weights_gib: float = 72.37
    token_bytes: float = 70272.0
    overhead_gib: float = 5.76
    transient_gib: float = 1.1
    step_s: float = 0.052
    each_s: float = 0.000363
    in_flight: float = 2124.0
    hicache_gain: float = -0.01
    noise: float = 0.01
    start_s: float = 240.0
    dummy_start_s: float = 60.0
    level_s: float = 200.0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def pool_gib(self, setting: Setting) -> float:
        return (setting.mem_fraction_static or 0.85) * self.before_gib - self.weights_gib

    def tokens(self, setting: Setting) -> float:
        return self.pool_gib(setting) * GIB / (self.token_bytes * ELEMENT_BYTES[setting.kv_cache_dtype] / 2)

    def headroom_gib(self, setting: Setting) -> float:
        return (1 - (setting.mem_fraction_static or 0.85)) * self.before_gib - self.overhead_gib

    def rate(self, setting: Setting, concurrency: int) -> float:
        running = min(concurrency, 0.95 * self.tokens(setting) / self.in_flight)
        gain = 1 + self.hicache_gain * (setting.hicache_size_gb > 0)
        return gain * running / (self.step_s + self.each_s * running)

    def lives(self, setting: Setting) -> bool:
        return self.headroom_gib(setting) > self.transient_gib and self.pool_gib(setting) > 0.5

    def oracle(self, space: Space) -> float:
        ladder = space.concurrency_ladder(rungs_per_doubling=8)
        alive = [setting for setting in space.settings(0.0025) if self.lives(setting)]
        return max(self.rate(setting, rung) for setting in alive for rung in ladder)

    def timeline(self, setting: Setting, *, ready: bool = True) -> Timeline:
        memory = MemorySeen(
            before_weights_gib=round(self.before_gib, 2),
            weights_gib=round(self.weights_gib, 2),
            kv_cache_gib=round(self.pool_gib(setting), 2),
            capacity_tokens=int(self.tokens(setting)),
            kv_cache_dtype=setting.kv_cache_dtype,
            headroom_gib=round(self.headroom_gib(setting), 2) if ready else None,
        )
        spans = (StageSpan(Stage.WEIGHTS, 20.0, 20.0 + self.start_s - self.dummy_start_s),)
        return Timeline(spans=spans, memory=memory, ready_s=self.start_s if ready else None)

    def level(self, setting: Setting, concurrency: int) -> LevelResult:
        rate = self.rate(setting, concurrency) * self.random.gauss(1.0, self.noise)
        running = min(concurrency, 0.95 * self.tokens(setting) / self.in_flight)
        return LevelResult(
            concurrency=concurrency,
            end=LevelEnd.NARROW,
            completion_rate=Interval(rate, rate * (1 - 2 * self.noise), rate * (1 + 2 * self.noise)),
            measured_s=self.level_s / 2,
            spent_s=self.level_s,
            responses_per_s=rate / 2000,
            finished_requests=200,
            running_requests=running,
            queued_requests=concurrency - running,
            token_usage_share=running * self.in_flight / self.tokens(setting),
            tokens_in_flight_each=self.in_flight,
            headroom_min_gib={0: self.headroom_gib(setting) - self.transient_gib},
        )

    def trial(self, searcher: Searcher, history: list[TrialResult], proposal: Proposal, left_s: float) -> TrialResult:
        """Run one proposal to its end, as the daemon would."""
        setting = proposal.setting
        dummy = proposal.purpose is Purpose.PROBE
        start_s = self.dummy_start_s if dummy else self.start_s
        failure, levels = None, []
        if self.headroom_gib(setting) <= 0 or self.pool_gib(setting) <= 0.5:
            failure = self.failure(setting, Stage.GRAPH_CAPTURE)
        while failure is None:
            concurrency = searcher.next_concurrency(
                history, proposal, levels, left_s - start_s - len(levels) * self.level_s
            )
            if concurrency is None:
                break
            if not self.lives(setting):
                failure = self.failure(setting, Stage.UNDER_LOAD)
                break
            levels.append(self.level(setting, concurrency))
        return TrialResult(
            trial_id=len(history),
            proposal=proposal,
            state=TrialState.MEASURED if levels else TrialState.FAILED,
            timeline=self.timeline(setting, ready=failure is None or failure.stage is Stage.UNDER_LOAD),
            levels=tuple(levels),
            failure=failure,
            minutes=Minutes(10.0, start_s, len(levels) * self.level_s, 10.0),
        )

    def failure(self, setting: Setting, stage: Stage) -> Failure:
        too_low = self.pool_gib(setting) <= 0.5
        return Failure(
            kind=Kind.GPU_OOM_STARTUP_KV if too_low else Kind.GPU_OOM_RUNTIME,
            stage=Stage.KV_POOL if too_low else stage,
            mem_fraction_direction=Direction.UP if too_low else Direction.DOWN,
            culprit=Culprit.CONFIGURATION,
            retry=False,
            sentence="the toy ran out of memory",
            numbers=FailureNumbers(minimum_mem_fraction=self.weights_gib / self.before_gib if too_low else None),
        )

    def study(self, searcher: Searcher, budget_s: float = 7200.0) -> list[TrialResult]:
        """A whole study within `budget_s`."""
        history: list[TrialResult] = []
        left_s = budget_s
        while (proposal := searcher.propose(history, left_s)) is not None:
            history.append(self.trial(searcher, history, proposal, left_s))
            took = history[-1].minutes
            left_s -= took.clean_slate_s + took.start_s + took.measure_s + took.stop_s
        return history


@pytest.fixture
def toy() -> Toy:
    return Toy()
