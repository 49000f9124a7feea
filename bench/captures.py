"""`python -m bench.captures [DIR]`: every server log of a directory as its timeline, capacity and outcome.

Without DIR the shared captures are read. Seconds are of each stage, GiB of the poorest rank; "-" is not told.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench.figures import figure
from launcher.failure import Failure, Stage
from launcher.failures import Evidence, classify
from launcher.logs import read_timeline
from launcher.timeline import Timeline

SHARED = Path(os.environ.get("KVTUNE_SHARED", Path(__file__).resolve().parents[2] / "shared"))
_STAGES = (
    Stage.LAUNCH,
    Stage.WEIGHTS,
    Stage.KV_POOL,
    Stage.GRAPH_CAPTURE,
    Stage.HOST_POOL,
    Stage.WARM_UP,
)
_HEADS = ("log", "launch", "weights", "pool", "graphs", "host", "warm-up", "ready", "B", "W", "KV", "tokens", "dtype",
          "B/token", "graph GiB", "headroom", "host GB")  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.captures", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=SHARED / "captures")
    directory = parser.parse_args(arguments).directory
    logs = sorted(directory.rglob("*.log"))
    if not logs:
        print(f"captures: {directory}: there is no *.log in it", file=sys.stderr)
        return 2
    texts = {str(path.relative_to(directory)): path.read_text(encoding="utf-8", errors="replace") for path in logs}
    timelines = {name: read_timeline(text) for name, text in texts.items()}
    print_table([_HEADS, *(row(name, timeline) for name, timeline in timelines.items())])
    print()
    for name, text in texts.items():
        print(f"{name}: {outcome(timelines[name], classify(Evidence(log=text)))}")
    figure("captures_read", len(texts), "logs")
    return 0


def row(name: str, timeline: Timeline) -> tuple[str, ...]:
    """One log's seconds, then its memory in GiB, tokens and bytes per token."""
    took = {span.stage: span.took_s for span in timeline.spans}
    memory = timeline.memory
    return (
        name,
        *(_number(took.get(stage), 0) for stage in _STAGES),
        _number(timeline.ready_s, 0),
        _number(memory.before_weights_gib, 2),
        _number(memory.weights_gib, 2),
        _number(memory.kv_cache_gib, 2),
        _number(memory.capacity_tokens, 0),
        memory.kv_cache_dtype or "-",
        _number(memory.bytes_per_token, 0),
        _number(memory.graphs_gib, 2),
        _number(memory.headroom_gib, 2),
        _number(memory.hicache_host_gb, 0),
    )


def outcome(timeline: Timeline, failure: Failure | None) -> str:
    """How it ended, in a sentence, with stage, direction and culprit of a failure."""
    if failure is None:
        return "served" if timeline.ready_s is not None else "nothing speaks of a failure, nor of being ready"
    directions = f"mem-fraction {failure.mem_fraction_direction}, hicache {failure.hicache_direction}"
    judged = f"{failure.kind} at {failure.stage}, {directions}, {failure.culprit}"
    return f"{judged}{', retry' if failure.retry else ''}: {failure.sentence}"


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they need, the first to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for cells in rows:
        first, *rest = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join((first, *rest)))


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
