"""One program in a tmux pane of 160 by 48, and what it costs there."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

COLUMNS, LINES = 160, 48
DRAWN_CELLS = 400
"""A first frame is there when so many cells are not blank."""
FIRST_FRAME_WITHIN_S = 30.0
SOCKET = f"kvtune-bench-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one program, at one refresh a second."""

    first_frame_s: float
    cpu_percent: float
    """Of one core."""
    rss_mib: float
    terminal_kib_per_s: float


def tmux(*words: str) -> str:
    """A server of its own: the user's tmux is not touched."""
    done = subprocess.run(["tmux", "-L", SOCKET, *words], capture_output=True, text=True, check=True)
    return done.stdout


@contextmanager
def pane(argv: Sequence[str], env: Mapping[str, str], directory: Path) -> Iterator[tuple[int, Path, float]]:
    """(pid, file of what it wrote, start time by the monotonic clock). The program ends with the pane."""
    gate, written = directory / "gate", directory / "written"
    os.mkfifo(gate)
    settings = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
    shell = f'read go < "{gate}"; exec "$@"'
    tmux(
        "new-session",
        "-d",
        "-s",
        "bench",
        "-x",
        str(COLUMNS),
        "-y",
        str(LINES),
        *settings,
        "sh",
        "-c",
        shell,
        "sh",
        *argv,
    )
    try:
        tmux("pipe-pane", "-t", "bench", "-o", f'cat >> "{written}"')
        pid = int(tmux("list-panes", "-t", "bench", "-F", "#{pane_pid}"))
        began = time.monotonic()
        gate.write_text("go\n")
        yield pid, written, began
    finally:
        with suppress(subprocess.CalledProcessError):
            tmux("kill-server")
        gate.unlink()


def measure(argv: Sequence[str], env: Mapping[str, str], directory: Path, *, settle_s: float, measure_s: float) -> Cost:
    """Start it, wait until it draws, let it settle, and watch it for `measure_s`."""
    directory.mkdir()
    with pane(argv, env, directory) as (pid, written, began):
        first_frame_s = _first_frame(began)
        time.sleep(settle_s)
        cpu_before, bytes_before, before = cpu_s(pid), _size(written), time.monotonic()
        time.sleep(measure_s)
        cpu_after, bytes_after, after = cpu_s(pid), _size(written), time.monotonic()
        rss_mib = _rss_mib(pid)
    seconds = after - before
    return Cost(
        first_frame_s,
        100 * (cpu_after - cpu_before) / seconds,
        rss_mib,
        (bytes_after - bytes_before) / seconds / 1024,
    )


def first_frames(argv: Sequence[str], env: Mapping[str, str], directory: Path, times: int) -> float:
    """The median time to the first frame over several starts."""
    seconds = []
    for number in range(times):
        place = directory / f"start-{number}"
        place.mkdir(parents=True)
        with pane(argv, env, place) as (_, _, began):
            seconds.append(_first_frame(began))
    return statistics.median(seconds)


def _first_frame(began: float) -> float:
    while time.monotonic() - began < FIRST_FRAME_WITHIN_S:
        shown = tmux("capture-pane", "-p", "-t", "bench")
        if sum(not char.isspace() for char in shown) >= DRAWN_CELLS:
            return time.monotonic() - began
        time.sleep(0.02)
    raise SystemExit(f"nothing was drawn within {FIRST_FRAME_WITHIN_S:.0f} s; the pane shows:\n{shown}")


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads, to the nanosecond (the clock ticks of /proc/PID/stat are too coarse here)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
