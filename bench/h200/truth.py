"""`python -m bench.h200.truth STUDY.yaml PLAN.yaml OUT.jsonl`: a plain grid, for the truth around a study.

The study file says how the server is started and loaded. The plan is a list of starts, each
`{mem-fraction-static: 0.9, hicache-size: 0, concurrency: [64, 128], level-s: 90, end: term | kill}`. One JSON line is
written for every start, level and stop, as soon as it is known: a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.program import out_folder
from bench.program import run as program
from launcher.cleanslate import take_baseline
from launcher.clock import WallClock
from launcher.errors import UsageError
from launcher.failure import Failure
from launcher.gpus import GpuReader
from launcher.server import ServerRecord
from launcher.yaml_file import read_yaml
from tuner.daemon.assemble import World, find_world
from tuner.journal.codec import encode
from tuner.live import LiveTestbed
from tuner.study_file import read_study_file
from tuner.testbed import LevelLimits
from tuner.trial import Setting

LEVEL_S = 90.0
KEYS = {"mem-fraction-static", "concurrency"}
BACK_S = 60.0
NEAR_BYTES = 2**28

Write = Callable[[Mapping[str, object]], None]


class Watcher:
    """Keeps the record of the running server, to end it in another way than the testbed would."""

    record: ServerRecord | None = None

    def on_server(self, record: ServerRecord | None) -> None:
        self.record = record or self.record

    def on_stage(self, name: str, detail: str = "", expected_s: float | None = None) -> None:
        del expected_s
        print(f"{time.strftime('%H:%M:%S')} {name} {detail}", file=sys.stderr, flush=True)

    def on_sample(self, values: Mapping[str, float | int | None]) -> None:
        del values


async def run(study_path: Path, plan: list[dict[str, Any]], write: Write) -> None:
    world, watcher = open_world(study_path), Watcher()
    testbed = build_testbed(world, watcher)
    for step in plan:
        await one_start(testbed, watcher, world, step, write)


def open_world(study_path: Path) -> World:
    """The study's box; the servers' logs go to the folder that KVTUNE_TRUTH names."""
    directory = Path(os.environ.get("KVTUNE_TRUTH", "truth"))
    directory.mkdir(parents=True, exist_ok=True)
    return find_world(read_study_file(study_path), directory)


def build_testbed(world: World, watcher: Watcher) -> LiveTestbed:
    study = world.study
    return LiveTestbed(
        study=study,
        build=world.build,
        gpus=world.gpus,
        workload=world.workload,
        directory=world.directory,
        token=secrets.token_hex(8),
        clock=WallClock(study.clock_speed),
        observer=watcher,
        baseline=take_baseline(world.gpus),
    )


async def one_start(testbed: LiveTestbed, watcher: Watcher, world: World, step: dict[str, Any], write: Write) -> None:
    """Start, measure every level, end it as the plan says, and time how long the GPU memory takes to be back."""
    hicache_gb = int(step.get("hicache-size", 0))
    setting = Setting(step["mem-fraction-static"], "bfloat16", hicache_gb)
    asked: dict[str, object] = {"mem_fraction_static": setting.mem_fraction_static, "hicache_size_gb": hicache_gb}
    before = used_bytes(world.gpus)
    started = await testbed.start(setting)
    write({"row": "start", **asked, **plain(started)})
    if started.failure is None:
        write({"row": "parts", **asked, "nvml_used_bytes": used_bytes(world.gpus), "before_bytes": before})
        for concurrency in step["concurrency"]:
            level = await testbed.measure(concurrency, LevelLimits(float(step.get("level-s", LEVEL_S))))
            row = "death" if isinstance(level, Failure) else "level"
            write({"row": row, **asked, **plain(level)})
            if row == "death":
                break
    await end(testbed, watcher, world, str(step.get("end", "term")), before, lambda row: write({**asked, **row}))


async def end(testbed: LiveTestbed, watcher: Watcher, world: World, how: str, before_bytes: int, write: Write) -> None:
    record = watcher.record
    began_s = time.monotonic()
    if how == "kill" and record is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)
    stop_s = await testbed.stop()
    gone_s = time.monotonic() - began_s
    left_bytes = used_bytes(world.gpus) - before_bytes
    while used_bytes(world.gpus) - before_bytes > NEAR_BYTES and time.monotonic() - began_s < BACK_S:
        await asyncio.sleep(0.1)
    back_s = time.monotonic() - began_s
    write({"row": "end", "how": how, "stop_s": stop_s, "gone_s": gone_s, "left_bytes": left_bytes, "back_s": back_s})


def used_bytes(gpus: GpuReader) -> int:
    return sum(gpu.memory_used_bytes or 0 for gpu in gpus.read(memory_only=True))


def plain(value: object) -> dict[str, Any]:
    """A dataclass as JSON values."""
    values: dict[str, Any] = json.loads(encode(value))
    return values


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.h200.truth")
    parser.add_argument("study", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    told = parser.parse_args()
    plan = read_plan(told.plan)
    read_study_file(told.study)
    with open(out_folder(told.out.parent) / told.out.name, "a", encoding="utf-8") as file:

        def write(row: Mapping[str, object]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        asyncio.run(run(told.study, plan, write))
    return 0


def read_plan(path: Path) -> list[dict[str, Any]]:
    """Raises UsageError where it is no list of starts."""
    plan = read_yaml(path, UsageError)
    if not isinstance(plan, list) or not all(isinstance(step, dict) and step.keys() >= KEYS for step in plan):
        raise UsageError(f"{path}: must be a list of starts, each with {' and '.join(sorted(KEYS))}")
    return plan


if __name__ == "__main__":
    program("h200.truth", main)
