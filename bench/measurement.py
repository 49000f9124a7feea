"""A level's rate against the long-run truth, in virtual time: ours and the naive way, over all presets.

Truth: hours of a closed loop on the same simulated engine, started naively, its first fifth left out. The naive way:
the same run's first minutes, a fixed warm-up, then `done / elapsed`. Ours: `tuner.measure.virtual.measure_level`.
Every number is simulated. The speed that differs from start to start is switched off (it is a property of a start,
not an error of a measurement); the slow drift within a start stays on.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.figures import figure
from launcher.config import ServerConfig
from launcher.simulated.engine import Engine
from launcher.simulated.events import Crashed, Finished, SimRequest
from launcher.simulated.presets import load_preset, preset_names, with_overrides
from tuner.measure.segments import segments_of
from tuner.measure.virtual import measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import Session, load_workload

WORKLOADS = (
    "random:in=1000,out=2000,cv=0.5",
    "shared-prefix:groups=8,prefix=2000,in=500,out=500,cv=0.3",
    "multi-turn:turns=4,in=300,out=300,cv=0.3",
)
CONCURRENCIES = (16, 48, 96, 192)
RUNS = 200
FIRST_SEED = 9_000
BUDGET_S = 1_200.0
NAIVE_WARM_UP_S = 60.0
NAIVE_MINUTES = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60)
TRUTH_AT_LEAST_S = 3_600.0
TRUTH_FINISHES = 4_000
TRUTH_AT_MOST_S = 18_000.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cell:
    """One preset, workload and concurrency."""

    preset: str
    workload: str
    concurrency: int

    def engine(self, seed: int) -> Engine:
        preset = with_overrides(load_preset(self.preset), {"noise.start_sd_share": 0.0})
        config = ServerConfig("model", None, "bfloat16", flags={"tp-size": preset.model.tp_size})
        return Engine(preset, config, seed=seed, report_first_tokens=True)


@dataclass(frozen=True, slots=True)
class Truth:
    """A long run: its rate in tokens per second, and when each response of it finished."""

    rate: float
    finishes_s: Floats
    tokens: Floats

    def naive(self, minutes: float) -> float:
        """`done / elapsed` from the end of the warm-up to this minute."""
        inside = (self.finishes_s > NAIVE_WARM_UP_S) & (self.finishes_s <= minutes * 60)
        return float(self.tokens[inside].sum() / (minutes * 60 - NAIVE_WARM_UP_S))


def sessions(workload: str, seed: int) -> Iterator[Session]:
    """Sessions of a workload drawn at random with replacement, without end."""
    source = load_workload(workload, seed=seed).groups[0].source
    chance, count, play = random.Random(seed), len(source.output_tokens), 0
    while True:
        play += 1
        yield tuple(request.played(play) for request in source.session(chance.randrange(count)))


def long_run(cell: Cell, seed: int) -> Truth:
    """Hours of the cell's closed loop, all clients starting at once."""
    engine = cell.engine(seed)
    fresh = sessions(cell.workload, seed)
    out: dict[str, Session] = {}
    done: list[tuple[float, int]] = []

    def send(session: Session) -> None:
        request = session[0]
        out[request.request_id] = session
        tokens, answer = request.tokens_to_generate, request.answer_key
        engine.submit(SimRequest(request.request_id, segments_of(request), tokens, answer_key=answer))

    for _ in range(cell.concurrency):
        send(next(fresh))
    while engine.now_s < TRUTH_AT_LEAST_S or (len(done) < TRUTH_FINISHES and engine.now_s < TRUTH_AT_MOST_S):
        for event in engine.advance(engine.now_s + 600.0):
            if isinstance(event, Crashed):
                raise SystemExit(f"{cell}: the engine died: {event.log_text[-200:]}")
            if isinstance(event, Finished):
                session = out.pop(event.request_id)
                done.append((event.finish_s, event.completion_tokens))
                send(session[1:] or next(fresh))
    finishes, tokens = np.array(done, dtype=float).T
    begin_s = engine.now_s / 5
    rate = tokens[finishes > begin_s].sum() / (engine.now_s - begin_s)
    return Truth(float(rate), finishes, tokens)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of ours beside its truth."""

    cell: Cell
    truth: float
    result: LevelResult

    @property
    def error_share(self) -> float:
        return self.result.completion_rate.value / self.truth - 1

    @property
    def covers(self) -> bool:
        return self.result.completion_rate.low <= self.truth <= self.result.completion_rate.high


def measure(cell: Cell, truth: Truth, seed: int) -> Run:
    workload = load_workload(cell.workload, seed=seed)
    result = measure_level(cell.engine(seed), workload, cell.concurrency, LevelLimits(BUDGET_S), seed=seed)
    if isinstance(result, Crashed):
        raise SystemExit(f"{cell}: the engine died: {result.log_text[-200:]}")
    return Run(cell, truth.rate, result)


def naive_minutes(truths: list[Truth], error_share: float) -> float:
    """The first minute from which on the naive way's median error stays within `error_share`."""
    medians = [np.median([abs(t.naive(m) / t.rate - 1) for t in truths]) for m in NAIVE_MINUTES]
    for minute, median in zip(NAIVE_MINUTES, medians, strict=True):
        print(f"naive way after {minute:3d} min: median error {median:.1%}")
    late = [at for at, median in enumerate(medians) if median > error_share]
    return float(NAIVE_MINUTES[min(len(medians) - 1, late[-1] + 1)]) if late else float(NAIVE_MINUTES[0])


def show(cell: Cell, truth: Truth, runs: list[Run]) -> None:
    errors = " ".join(f"{run.error_share:+.1%}" for run in runs)
    last = runs[-1].result
    print(
        f"{cell.preset:27} {cell.workload[:13]:13} {cell.concurrency:4d}: truth {truth.rate:7.1f} tok/s,"
        f" running {last.running_requests or 0:5.1f}, queued {last.queued_requests or 0:5.1f},"
        f" {np.mean([run.result.spent_s for run in runs]):4.0f} s, errors {errors}",
        flush=True,
    )


def main() -> int:
    began = time.monotonic()
    cells = [Cell(p, w, c) for p in preset_names() for w in WORKLOADS for c in CONCURRENCIES]
    truths, runs = [], []
    for at, cell in enumerate(cells):
        truth = long_run(cell, FIRST_SEED + at)
        count = RUNS // len(cells) + (at < RUNS % len(cells))
        ours = [measure(cell, truth, FIRST_SEED + 100 + at + 1000 * each) for each in range(count)]
        show(cell, truth, ours)
        truths.append(truth)
        runs += ours
    errors = np.abs([run.error_share for run in runs])
    minutes = float(np.mean([run.result.spent_s for run in runs])) / 60
    print(f"ours after {minutes:.1f} min on average: median error {np.median(errors):.1%} ({len(runs)} runs)")
    naive = naive_minutes(truths, float(np.median(errors)))
    print(f"simulated; {time.monotonic() - began:.0f} s of wall time", file=sys.stderr)
    figure("rate_error_p50_share", float(np.quantile(errors, 0.5)), "share")
    figure("rate_error_p95_share", float(np.quantile(errors, 0.95)), "share")
    figure("minutes_to_naive_share", minutes / naive, "share")
    figure("interval_coverage_share", float(np.mean([run.covers for run in runs])), "share")
    return 0


if __name__ == "__main__":
    sys.exit(main())
