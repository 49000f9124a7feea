"""A day of watching in scaled time: `python -m bench.kvtop.soak`.

86,400 ticks, as many as kvtop makes in 24 hours at 1 Hz, as fast as they go: texts of /metrics are parsed; polls,
builder and screen (without a terminal) are kvtop's own; the clock is virtual. Memory must not grow, the clock must not
drift, and what is shown must add up to what the counters say.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import figure
from launcher.gpus import GpuProcess, GpuSample
from launcher.observe.metrics import sample_from_exposition
from launcher.observe.prometheus import Parser
from launcher.observe.sample import ServerSample
from tui.app import KvtopApp
from tui.build import SnapshotBuilder
from tui.frame import Frame
from tui.history import STEP_S
from tui.polls import GpuPoll, ServerPoll
from tui.settings import Settings
from tui.snapshot import Snapshot

BEGIN_UNIX_S = 1_780_000_000.0
HOUR_S = 3600
SIZE = (160, 48)
GIB = 2**30
BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, math.inf)
CAPACITY_TOKENS = 159_277
GAUGES = ("num_running_reqs", "num_queue_reqs", "kv_used_tokens", "kv_available_tokens", "max_total_num_tokens")


@dataclass
class Engine:
    """One server's counters, which grow by whole numbers every second, and the text that tells them."""

    number: int
    now_s: int = 0
    decoded: int = 0
    finished: int = 0
    finished_tokens: int = 0

    def __post_init__(self) -> None:
        self._parser = Parser()

    def read(self) -> ServerSample:
        self._grow()
        sample = sample_from_exposition(self._parser.parse(self._text()))
        facts = replace(sample.facts, tp_size=4, weights_gib=72.4, kv_cache_gib=10.4, simulated=True)
        return replace(sample, taken_s=float(self.now_s), url=url_of(self.number), facts=facts)

    def close(self) -> None:
        """Nothing is held open."""

    def _grow(self) -> None:
        self.now_s += 1
        self.decoded += 900 + round(200 * math.sin(self.now_s / 97 + self.number))
        if self.now_s % 2 == 0:
            self.finished += 1
            self.finished_tokens += 1800 + round(300 * math.sin(self.now_s / 311))

    def _text(self) -> str:
        wave = math.sin(self.now_s / 97 + self.number)
        used = int(140_000 + 15_000 * wave)
        gauges = (70 + round(9 * wave), 60, used, CAPACITY_TOKENS - used, CAPACITY_TOKENS)
        labels = f'model_name="model-{self.number}"'
        lines = [f"sglang:{name}{{{labels}}} {value}" for name, value in zip(GAUGES, gauges, strict=True)]
        lines += [
            f'sglang:realtime_tokens_total{{{labels},mode="decode"}} {self.decoded}',
            f"sglang:generation_tokens_total{{{labels}}} {self.finished_tokens}",
            f"sglang:num_requests_total{{{labels}}} {self.finished}",
        ]
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
            lines += self._histogram(name, labels)
        return "\n".join(lines)

    def _histogram(self, name: str, labels: str) -> list[str]:
        buckets = [
            f'sglang:{name}_bucket{{{labels},le="{"+Inf" if math.isinf(bound) else bound}"}} '
            f"{self.finished * min(9, place + 1) // 9}"
            for place, bound in enumerate(BOUNDS_S)
        ]
        total_s = 5 * self.finished
        return [
            *buckets,
            f"sglang:{name}_sum{{{labels}}} {total_s}",
            f"sglang:{name}_count{{{labels}}} {self.finished}",
        ]


@dataclass
class Gpus:
    """Eight GPUs whose figures follow the time."""

    now_s: int = 0

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        del memory_only
        self.now_s += 1
        return tuple(self._gpu(index) for index in range(8))

    def close(self) -> None:
        """Nothing is held open."""

    def _gpu(self, index: int) -> GpuSample:
        power_w = 480 + 40 * math.sin(self.now_s / 13 + index)
        held = (GpuProcess(1000 + index // 4, 90 * GIB, "sglang::scheduler"),)
        used = int((90.5 + 0.3 * math.sin(self.now_s / 300)) * GIB)
        told = (96 * GIB, used, 0.98, power_w, 600.0, 70.0)
        return GpuSample(index, "simulated", f"GPU-{index}", *told, processes=held, simulated=True)


def url_of(number: int) -> str:
    return f"http://127.0.0.1:{30000 + number}"


class ScaledDay:
    """A Source for the screen: every `next` is one virtual second. Adds up what the snapshots show."""

    replay = True
    interval_s = 3600.0

    def __init__(self) -> None:
        self.engines = (Engine(0), Engine(1))
        self.ticks = 0
        self.shown_decoded = [0.0, 0.0]
        """Tokens: the shown rate, one second each."""
        self._polls = [ServerPoll(url_of(engine.number), engine, lambda: 1.0) for engine in self.engines]
        gpus = Gpus()
        self._gpus = GpuPoll(lambda _: gpus, None, lambda: 1.0)
        self._builder = SnapshotBuilder()

    def start(self) -> None:
        """Nothing runs by itself here."""

    def stop(self) -> None:
        """Nothing to end."""

    def next(self) -> Snapshot:
        self.ticks += 1
        now_s = BEGIN_UNIX_S + self.ticks
        self._gpus.step()
        for poll in self._polls:
            poll.step()
        readings = tuple(
            replace(poll.reading, sample_unix_s=now_s, pids=(1000 + place,)) for place, poll in enumerate(self._polls)
        )
        snapshot = self._builder.add(Frame(now_s, readings, self._gpus.samples))
        for place, server in enumerate(snapshot.servers):
            self.shown_decoded[place] += server.rates.gen_tokens_per_s or 0.0
        return snapshot

    def faster(self, steps: int) -> str:
        return str(steps)

    def seek(self, seconds: float) -> Snapshot | None:
        del seconds
        return None

    def status(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Soak:
    """What a scaled day has shown."""

    ticks: int
    rss_first_hour_mib: float
    rss_end_mib: float
    clock_drift_s: float
    """What the screen shows less what the ticks say."""
    history_drift_buckets: int
    counter_error_tokens: float
    """Of finished tokens, shown less counted: zero, or something was lost."""
    rate_error_share: float
    """The day's sum of shown decode rates against the counter's growth."""

    @property
    def rss_growth_mib(self) -> float:
        """From the first hour to the end."""
        return self.rss_end_mib - self.rss_first_hour_mib

    def report(self) -> None:
        figure("soak_ticks", self.ticks, "ticks")
        figure("soak_rss_1h_mib", self.rss_first_hour_mib, "MiB")
        figure("soak_rss_end_mib", self.rss_end_mib, "MiB")
        figure("soak_rss_growth_mib", self.rss_growth_mib, "MiB")
        figure("soak_clock_drift_s", self.clock_drift_s, "s")
        figure("soak_history_drift_buckets", self.history_drift_buckets, "buckets")
        figure("soak_counter_error_tokens", self.counter_error_tokens, "tokens")
        figure("soak_rate_error_percent", 100 * self.rate_error_share, "%")


def soak(hours: float) -> Soak:
    """Watch for so many scaled hours (more than one)."""
    return asyncio.run(_soak(round(hours * HOUR_S)))


async def _soak(ticks: int) -> Soak:
    day = ScaledDay()
    app = KvtopApp(day, Settings(), "bench")
    async with app.run_test(size=SIZE) as pilot:
        await _watch(app, day, HOUR_S)
        first_hour_mib = _rss_mib()
        await _watch(app, day, ticks)
        await pilot.pause()
        return _judged(app.snapshot, day, first_hour_mib)


async def _watch(app: KvtopApp, day: ScaledDay, until_tick: int) -> None:
    while day.ticks < until_tick:
        app.tick()
        await asyncio.sleep(0)


def _judged(snapshot: Snapshot, day: ScaledDay, first_hour_mib: float) -> Soak:
    due_s = BEGIN_UNIX_S + day.ticks
    over = math.floor(due_s / STEP_S) - 1
    bucket = over if over % 2 == 1 else over - 1
    pairs = list(zip(snapshot.servers, day.engines, strict=True))
    errors = [abs((server.totals.generation_tokens or 0.0) - engine.finished_tokens) for server, engine in pairs]
    rates = [abs(shown / engine.decoded - 1) for shown, (_, engine) in zip(day.shown_decoded, pairs, strict=True)]
    return Soak(
        day.ticks,
        first_hour_mib,
        _rss_mib(),
        snapshot.taken_unix_s - due_s,
        max(abs(server.series.last_bucket - bucket) for server in snapshot.servers),
        max(errors),
        max(rates),
    )


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    made = argparse.ArgumentParser("bench.kvtop.soak")
    made.add_argument("--hours", type=float, default=24.0, help="scaled hours, more than 1")
    soak(made.parse_args().hours).report()


if __name__ == "__main__":
    main()
