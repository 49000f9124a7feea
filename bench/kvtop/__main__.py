"""kvtop's costs and its rivals', in one run on one machine: figures last, as `figure NAME VALUE UNIT`."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import figure
from bench.kvtop.box import WatchedBox, watched_box
from bench.kvtop.pane import Cost, first_frames, measure
from bench.kvtop.rivals import rivals
from launcher.exits import say

KVTOP = (sys.executable, "-m", "tui")
STARTS = 5
UNITS = {"cpu_percent": "%", "rss_mib": "MiB", "terminal_kib_per_s": "KiB/s", "first_frame_s": "s"}


def main() -> None:
    made = argparse.ArgumentParser("bench.kvtop")
    made.add_argument("--seconds", type=float, default=30.0, help="how long each program is watched")
    made.add_argument("--settle", type=float, default=30.0, help="how long before that it is let alone")
    args = made.parse_args()
    if shutil.which("tmux") is None:
        sys.exit("bench.kvtop: tmux is not installed")
    with tempfile.TemporaryDirectory(prefix="kvtop-bench-") as folder:
        costs, once_s = run(Path(folder), args.settle, args.seconds)
    report(costs, once_s)


def run(directory: Path, settle_s: float, measure_s: float) -> tuple[dict[str, Cost], float]:
    """The costs by program, and the seconds of `--once --json`."""
    env = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": os.getcwd(), "KVTUNE_HOME": str(directory)}
    costs = {}
    with watched_box(directory) as box:
        argv = (*KVTOP, *box.arguments, "--interval", "1")
        say("kvtop, 8 GPUs and 2 servers (simulated)")
        cost = measure(argv, env, directory / "kvtop", settle_s=settle_s, measure_s=measure_s)
        frame_s = first_frames(argv, env, directory / "starts", STARTS)
        costs["kvtop"] = Cost(frame_s, cost.cpu_percent, cost.rss_mib, cost.terminal_kib_per_s)
        once_s = once_json_s(box)
    for rival in rivals(directory):
        say(rival.name)
        place = directory / f"run-{rival.name}"
        costs[rival.name] = measure(rival.argv, {**env, **rival.env}, place, settle_s=settle_s, measure_s=measure_s)
    return costs, once_s


def once_json_s(box: WatchedBox) -> float:
    """The median of several runs, process start included."""
    seconds = []
    for _ in range(STARTS):
        began = time.monotonic()
        subprocess.run([*KVTOP, "--once", "--json", *box.arguments], check=True, capture_output=True)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def report(costs: dict[str, Cost], once_s: float) -> None:
    for name, cost in costs.items():
        suffix = "" if name == "kvtop" else f"_{name}"
        for field, unit in UNITS.items():
            figure(f"{field}{suffix}", getattr(cost, field), unit)
    figure("once_json_s", once_s, "s")


if __name__ == "__main__":
    main()
