"""`python -m bench.h200.preset`: every level of results/table.jsonl again on the simulated engine, side by side.

The preset was fitted to other runs. Each level gets a start of its own, without noise, and as many seconds as the real
one had; beside it stands what the preset says of the long run.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contest.table import QUIET
from bench.figures import figure
from launcher.config import ServerConfig
from launcher.simulated.box import VirtualBox
from launcher.simulated.presets import load_preset, with_overrides
from tuner.measure.virtual import measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import load_workload

PRESET = "qwen2.5-32b-1x-h200"
ROWS = Path(__file__).with_name("results") / "table.jsonl"
WORKLOAD = "random:in=1000,out=500,cv=0.4"
CHUNK_TOKENS = 8192
LONG_S = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one level showed, or the mean of several at one place."""

    spent_s: float
    rate: float
    running: float
    usage: float
    least_free_gib: float


def main() -> int:
    table = Table("mem-fraction", "clients", "s", "tokens/s", "running", "token usage", "least free, GiB", "long run")
    ratios, free_gib = [], []
    for (fraction, clients), real in sorted(recorded().items()):
        seen = _mean(real)
        simulated, long_run = (simulate(fraction, clients, seconds) for seconds in (seen.spent_s, LONG_S))
        table.add_row(f"{fraction:g}", str(clients), *_cells(simulated, seen), f"{long_run.rate:,.0f}")
        ratios.append(simulated.rate / seen.rate)
        free_gib.append(simulated.least_free_gib - seen.least_free_gib)
    console = Console(width=130)
    console.print("Simulated against real; of several real levels the mean.")
    console.print(table)
    figure("preset_rate_error_max_share", max(abs(ratio - 1) for ratio in ratios), "share")
    figure("preset_least_free_error_max_gib", max(map(abs, free_gib)), "GiB")
    return 0


def recorded() -> dict[tuple[float, int], list[Seen]]:
    """The rows' levels by fraction and clients."""
    levels = defaultdict(list)
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["row"] == "level":
            seen = Seen(
                row["spent_s"],
                row["completion_rate"]["value"],
                row["running_requests"],
                row["token_usage_share"],
                min(row["headroom_min_gib"].values()),
            )
            levels[row["mem_fraction_static"], row["concurrency"]].append(seen)
    return levels


def simulate(fraction: float, clients: int, level_s: float) -> Seen:
    """One level in virtual time. Raises RuntimeError where the engine dies."""
    box = VirtualBox(with_overrides(load_preset(PRESET), QUIET), seed=0)
    flags = {"disable-prefill-cuda-graph": True, "chunked-prefill-size": CHUNK_TOKENS}
    engine = box.start(ServerConfig(PRESET, fraction, "bfloat16", flags=flags)).engine
    if engine is None:
        raise RuntimeError(f"the simulated engine does not start at {fraction}")
    level = measure_level(engine, load_workload(WORKLOAD, seed=0), clients, LevelLimits(level_s, target_share=1e-6))
    if not isinstance(level, LevelResult):
        raise RuntimeError(f"the simulated engine dies at {fraction} under {clients} clients")
    free_gib = min(level.headroom_min_gib.values())
    running, usage = level.running_requests or 0.0, level.token_usage_share or 0.0
    return Seen(level.spent_s, level.completion_rate.value, running, usage, free_gib)


def _mean(seen: list[Seen]) -> Seen:
    return Seen(
        mean(one.spent_s for one in seen),
        mean(one.rate for one in seen),
        mean(one.running for one in seen),
        mean(one.usage for one in seen),
        mean(one.least_free_gib for one in seen),
    )


def _cells(simulated: Seen, seen: Seen) -> tuple[str, ...]:
    return (
        f"{seen.spent_s:.0f}",
        f"{simulated.rate:,.0f} / {seen.rate:,.0f} = {simulated.rate / seen.rate:.2f}",
        f"{simulated.running:.1f} / {seen.running:.1f}",
        f"{simulated.usage:.2f} / {seen.usage:.2f}",
        f"{simulated.least_free_gib:.2f} / {seen.least_free_gib:.2f}",
    )


if __name__ == "__main__":
    sys.exit(main())
