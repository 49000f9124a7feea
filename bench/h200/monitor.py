"""`python -m bench.h200.monitor STUDY.yaml OUT.jsonl`: what kvtop at 1 Hz costs a loaded server.

One server, one closed loop; kvtop runs beside it in every other window, on a terminal of its own. The rate of a window
is the difference of the server's own decode counter, read at its two ends. Also timed: NVML, and one `--once --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from bench.figures import figure
from bench.h200.truth import Watcher, build_testbed, open_world
from bench.program import run as program
from launcher.gpus import GpuReader
from launcher.observe.read import ServerReader
from tuner.testbed import LevelLimits
from tuner.trial import Setting

WINDOWS = 8
WINDOW_S = 12.0
SETTLE_S = 3.0
CONCURRENCY = 64
RAMP_S = 20.0


async def run(study_path: Path, out: Path) -> None:
    world, watcher = open_world(study_path), Watcher()
    testbed = build_testbed(world, watcher)
    await testbed.start(Setting(0.85, "bfloat16"))
    assert watcher.record is not None
    url = f"http://127.0.0.1:{watcher.record.port}"
    try:
        spent_s = RAMP_S + WINDOWS * (WINDOW_S + SETTLE_S) + 10
        load = asyncio.create_task(testbed.measure(CONCURRENCY, LevelLimits(spent_s, target_share=1e-6)))
        await asyncio.sleep(RAMP_S)
        rates = await windows(url)
        nvml_ms = time_nvml(world.gpus)
        once = await asyncio.to_thread(once_json, url)
        row = {"with": rates[True], "without": rates[False], "nvml_ms": nvml_ms, "kvtop_once": once}
        out.write_text(json.dumps(row) + "\n", encoding="utf-8")
        await load
    finally:
        await testbed.stop()
    print(json.dumps({key: row[key] for key in ("with", "without", "nvml_ms")}))
    figure("monitored_rate_share", statistics.median(rates[True]) / statistics.median(rates[False]), "share")


async def windows(url: str) -> dict[bool, list[float]]:
    """Decoded tokens per second, window by window, with (True) and without kvtop."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    with ServerReader(url) as reader:
        for place in range(WINDOWS):
            watched = place % 2 == 0
            with kvtop(url) if watched else nullcontext():
                await asyncio.sleep(SETTLE_S)
                rates[watched].append(await rate(reader))
    return rates


async def rate(reader: ServerReader) -> float:
    began_s, before = time.monotonic(), (await reader.aread()).totals.decoded_tokens
    await asyncio.sleep(WINDOW_S)
    after, ended_s = (await reader.aread()).totals.decoded_tokens, time.monotonic()
    assert before is not None
    assert after is not None
    return (after - before) / (ended_s - began_s)


@contextmanager
def kvtop(url: str) -> Iterator[None]:
    """kvtop at 1 Hz on a pseudo terminal, whose output is read and thrown away."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LINES="48", COLUMNS="160")
        os.execv(sys.executable, [sys.executable, "-m", "tui", "--url", url, "-i", "1"])
    threading.Thread(target=_drain, args=(terminal,), daemon=True).start()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def _drain(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


def time_nvml(gpus: GpuReader) -> dict[str, float]:
    """Milliseconds of one read of this study's GPUs: everything (the next reads are cached), and memory alone."""
    everything, memory = [], []
    for _ in range(20):
        everything.append(_ms(lambda: gpus.read()))
        memory.append(_ms(lambda: gpus.read(memory_only=True)))
        time.sleep(1.0 / 20)
    return {
        "everything_max": max(everything),
        "everything_median": statistics.median(everything),
        "memory_median": statistics.median(memory),
    }


def _ms(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return (time.perf_counter() - began_s) * 1e3


def once_json(url: str) -> object:
    words = [sys.executable, "-m", "tui", "--url", url, "--once", "--json"]
    return json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.h200.monitor")
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    told = parser.parse_args()
    asyncio.run(run(told.study, told.out))
    return 0


if __name__ == "__main__":
    program("h200.monitor", main)
