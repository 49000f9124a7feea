"""How long one decision takes with forty trials in the history, on one thread."""

from __future__ import annotations

import random
import time

from threadpoolctl import threadpool_limits

from bench.figures import figure
from launcher.timeline import MemorySeen, Timeline
from tuner.memory import MemoryPrior
from tuner.search import Searcher
from tuner.space import Space
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

TRIALS = 40
REPEATS = 5
SPACE = Space(
    (0.80, 0.95),
    ("bfloat16", "fp8_e4m3"),
    (0, 20, 48),
    (16, 256),
    {"chunked-prefill-size": (8192, 4096, 16384), "schedule-conservativeness": (1.0, 0.6)},
)


def main() -> None:
    history = [_trial(index) for index in range(TRIALS)]
    _decision_s(history[:3])
    with threadpool_limits(1):
        took = sorted(_decision_s(history) for _ in range(REPEATS))
    print(f"{TRIALS} trials, {sum(len(trial.levels) for trial in history)} levels, {len(took)} repeats")
    figure(f"ask_tell_n{TRIALS}_s", took[len(took) // 2], "s")


def _decision_s(history: list[TrialResult]) -> float:
    """Learning from the whole history and proposing, by a searcher that has not seen it: ask and tell in one."""
    searcher = Searcher(SPACE, prior=MemoryPrior(gpu_total_gib=95.6, tp_size=8))
    began = time.perf_counter()
    searcher.propose(history, 7200.0)
    return time.perf_counter() - began


def _trial(index: int) -> TrialResult:
    """A made-up trial around the field report's box: only its size matters here."""
    draw = random.Random(index)
    setting = Setting(
        round(draw.uniform(0.80, 0.92), 3),
        draw.choice(SPACE.kv_cache_dtypes),
        draw.choice(SPACE.hicache_sizes_gb),
        {name: draw.choice(values) for name, values in SPACE.further.items()},
    )
    pool_gib = (setting.mem_fraction_static or 0.0) * 94.07 - 72.37
    memory = MemorySeen(
        before_weights_gib=94.07,
        weights_gib=72.37,
        kv_cache_gib=pool_gib,
        capacity_tokens=int(pool_gib * 2**30 / 70_272),
        headroom_gib=94.07 - 72.37 - pool_gib - 5.76,
    )
    return TrialResult(
        trial_id=index,
        proposal=Proposal(setting, (64,), Purpose.EXPLORE, "", 600.0),
        state=TrialState.MEASURED,
        timeline=Timeline(memory=memory, ready_s=300.0),
        levels=tuple(_level(concurrency, draw) for concurrency in (64, 128, 192)),
        minutes=Minutes(10.0, 300.0, 600.0, 12.0),
    )


def _level(concurrency: int, draw: random.Random) -> LevelResult:
    running = min(concurrency, 100)
    rate = running / (0.052 + 0.000363 * running) * draw.gauss(1.0, 0.02)
    return LevelResult(
        concurrency=concurrency,
        end=LevelEnd.NARROW,
        completion_rate=Interval(rate, 0.97 * rate, 1.03 * rate),
        measured_s=150.0,
        spent_s=200.0,
        responses_per_s=rate / 2000,
        finished_requests=100,
        running_requests=float(running),
        queued_requests=float(concurrency - running),
        token_usage_share=0.9,
        tokens_in_flight_each=2100.0,
        headroom_min_gib={0: 4.0},
    )


if __name__ == "__main__":
    main()
