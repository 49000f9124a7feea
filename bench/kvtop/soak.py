"""A day of watching in scaled time: the screen is drawn without a terminal, and its memory must not grow."""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import dataclass
from pathlib import Path

from launcher.gpus import GpuProcess, GpuSample
from launcher.observe.sample import Histogram, RankSample, ServerFacts, ServerSample, Totals
from tui.app import KvtopApp
from tui.build import SnapshotBuilder
from tui.frame import Frame, ServerReading
from tui.settings import Settings
from tui.snapshot import Snapshot

STEP_S = 10.0
"""Scaled seconds between two frames."""
WARM_HOURS = 2.0
"""Histories are full and caches warm after this; growth counts from here."""
SIZE = (160, 48)
GIB = 2**30
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, math.inf)


@dataclass
class ScaledDay:
    """Frames as fast as they are asked for; every figure moves."""

    replay: bool = True
    interval_s: float = 3600.0
    now_s: float = 1_780_000_000.0

    def __post_init__(self) -> None:
        self._builder = SnapshotBuilder(STEP_S)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def next(self) -> Snapshot:
        self.now_s += STEP_S
        return self._builder.add(frame_at(self.now_s))

    def faster(self, steps: int) -> str:
        return str(steps)

    def seek(self, seconds: float) -> Snapshot | None:
        del seconds
        return None

    def status(self) -> str:
        return ""


def frame_at(now_s: float) -> Frame:
    """Two servers on eight GPUs; their figures follow the time alone."""
    servers = tuple(
        ServerReading(f"http://127.0.0.1:{30000 + n}", _sample(n, now_s), now_s, pids=(1000 + n,)) for n in (0, 1)
    )
    return Frame(now_s, servers, tuple(_gpu(index, now_s) for index in range(8)))


def _sample(number: int, now_s: float) -> ServerSample:
    wave = math.sin(now_s / 97 + number)
    done = 0.5 * (now_s - 1_780_000_000.0)
    used = int(140_000 + 15_000 * wave)
    rank = RankSample(0, 70 + round(9 * wave), 60, 0, used, 2000, 157_277 - used, 159_277, 0.9, 900.0, 2048)
    totals = Totals(1900 * done, 2000 * done, done, 0.0, 2000 * done, 2000 * done, 300 * done)
    counts = tuple(done * min(1.0, (place + 1) / 9) for place in range(len(BOUNDS_S)))
    seen = Histogram(BOUNDS_S, counts, 75 * done, done)
    facts = ServerFacts("0.5.17", f"model-{number}", "bfloat16", "bfloat16", 0.88, 4, 1, 72.4, 10.4, 3.7)
    return ServerSample(now_s, f"http://127.0.0.1:{30000 + number}", facts, (rank,), totals, seen, seen, seen)


def _gpu(index: int, now_s: float) -> GpuSample:
    power_w = 480 + 40 * math.sin(now_s / 13 + index)
    processes = (GpuProcess(1000 + index // 4, 90 * GIB, "sglang::scheduler"),)
    used = int((90.5 + 0.3 * math.sin(now_s / 300)) * GIB)
    return GpuSample(
        index, "simulated", f"GPU-{index}", 96 * GIB, used, 0.98, power_w, 600.0, 70.0, processes=processes
    )


def rss_growth_mib(hours: float) -> float | None:
    """MiB of resident memory gained between hour 2 and the end; None when no soak was asked for."""
    return asyncio.run(_soak(hours)) if hours > WARM_HOURS else None


async def _soak(hours: float) -> float:
    app = KvtopApp(ScaledDay(), Settings(), "bench")
    async with app.run_test(size=SIZE) as pilot:
        await _watch(app, WARM_HOURS)
        before = _rss_mib()
        await _watch(app, hours - WARM_HOURS)
        await pilot.pause()
        return _rss_mib() - before


async def _watch(app: KvtopApp, hours: float) -> None:
    for _ in range(round(hours * 3600 / STEP_S)):
        app.tick()
        await asyncio.sleep(0)


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
