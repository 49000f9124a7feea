"""What the daemon itself costs, and when it ends: `python -m bench.daemon [--speed S] [--budget T]`.

A whole study on the simulated 8 x H200 preset, in scaled time, as a process of its own. What the daemon itself needs
(search, journal, export, looking at processes) takes wall seconds whatever the clock's speed, so in scaled time it
weighs `speed` times what it would on a real box. `overhead_share` counts those seconds once, and the simulated server's
own shutdown in full; `overhead_scaled_share` is the same as it was seen, an upper bound.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from bench.figures import figure
from launcher.simulated.presets import load_preset
from tuner.budget import parse_duration
from tuner.journal import StudyView, find_study, read_study

PRESET = "deepseek-v3-8x-h200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=30.0)
    parser.add_argument("--budget", default="2h")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtune-bench-") as home:
        os.environ["KVTUNE_HOME"] = home
        wall_s = _study(Path(home), told.speed, told.budget)
        _report(read_study(find_study(None)), wall_s * told.speed, parse_duration(told.budget))


def _study(home: Path, speed: float, budget: str) -> float:
    """Run it; the wall seconds that its process lived."""
    study = {
        "engine": "simulated",
        "preset": PRESET,
        "clock_speed": speed,
        "space": {"mem-fraction-static": [0.8, 0.95], "concurrency": [16, 256]},
        "workload": "random:in=1500,out=500,cv=0.4",
        # Explore to the end, so that the budget and nothing else ends the study.
        "until_gain_below": 0.0,
        "output": str(home / "best-config.yaml"),
    }
    path = home / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    began_s = time.monotonic()
    command = [sys.executable, "-m", "tuner.cli", "--config", str(path), "--budget", budget]
    subprocess.run(command, check=True)
    return time.monotonic() - began_s


def _report(view: StudyView, lived_s: float, budget_s: float) -> None:
    minutes = [trial.minutes for trial in view.trials]
    parts = {
        "clean slate": sum(one.clean_slate_s for one in minutes),
        "start": sum(one.start_s for one in minutes),
        "measure": sum(one.measure_s for one in minutes),
        "stop": sum(one.stop_s for one in minutes),
    }
    shutdown = load_preset(PRESET).start_up
    shutdown_s = min(parts["stop"], len(view.trials) * (shutdown.stop_s + shutdown.memory_back_s))
    outside_s = view.spent_s - parts["start"] - parts["measure"]
    own_wall_s = (outside_s - shutdown_s) / view.clock_speed
    for name, seconds in parts.items():
        print(f"{name}: {seconds:.0f} s, {seconds / budget_s:.1%} of the budget (simulated)")
    print(f"servers' own shutdown: {shutdown_s:.0f} s; the daemon itself: {own_wall_s:.1f} wall seconds")
    print(f"{len(view.trials)} trials; the process lived {lived_s:.0f} study seconds; it ended: {view.ended}")
    figure("overhead_share", (shutdown_s + own_wall_s) / budget_s, "share")
    figure("overhead_scaled_share", outside_s / budget_s, "share")
    figure("end_error_s", view.spent_s - budget_s, "s")


if __name__ == "__main__":
    main()
