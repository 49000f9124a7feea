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


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one program, at one refresh a second."""

    first_frame_s: float
    cpu_percent: float
    """Of one core."""
    rss_mib: float
    terminal_kib_per_s: float


@dataclass(frozen=True, slots=True)
class Pane:
    """A running program. The tmux server is its own (its socket lies in `directory`): the user's is not touched."""

    directory: Path
    pid: int
    began_s: float

    def written_bytes(self) -> int:
        """What the program has sent to its terminal so far."""
        written = self.directory / "written"
        return written.stat().st_size if written.exists() else 0

    def first_frame_s(self) -> float:
        """Wait until something is drawn; seconds since the start."""
        while time.monotonic() - self.began_s < FIRST_FRAME_WITHIN_S:
            shown = tmux(self.directory, "capture-pane", "-p", "-t", "bench")
            if sum(not char.isspace() for char in shown) >= DRAWN_CELLS:
                return time.monotonic() - self.began_s
            time.sleep(0.02)
        raise SystemExit(f"nothing was drawn within {FIRST_FRAME_WITHIN_S:.0f} s; the pane shows:\n{shown}")


def tmux(directory: Path, *words: str) -> str:
    command = ["tmux", "-f", os.devnull, "-S", str(directory / "tmux"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def running(argv: Sequence[str], env: Mapping[str, str], directory: Path) -> Iterator[Pane]:
    """The program in a new pane; it is held at a gate until what it writes is being caught, and ends with the pane."""
    directory.mkdir(parents=True)
    gate = directory / "gate"
    os.mkfifo(gate)
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    settings = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
    held = ["sh", "-c", f'read go < "{gate}"; exec "$@"', "sh", *argv]
    tmux(directory, "new-session", "-d", "-s", "bench", *size, *settings, *held)
    try:
        tmux(directory, "pipe-pane", "-t", "bench", "-o", f'cat >> "{directory / "written"}"')
        pid = int(tmux(directory, "list-panes", "-t", "bench", "-F", "#{pane_pid}"))
        began_s = time.monotonic()
        gate.write_text("go\n")
        yield Pane(directory, pid, began_s)
    finally:
        with suppress(subprocess.CalledProcessError):
            tmux(directory, "kill-server")


def measure(argv: Sequence[str], env: Mapping[str, str], directory: Path, *, settle_s: float, measure_s: float) -> Cost:
    """Start it, wait until it draws, let it settle, and watch it for `measure_s`."""
    with running(argv, env, directory) as pane:
        first_frame_s = pane.first_frame_s()
        time.sleep(settle_s)
        cpu_before, bytes_before, before = cpu_s(pane.pid), pane.written_bytes(), time.monotonic()
        time.sleep(measure_s)
        cpu_after, bytes_after, after = cpu_s(pane.pid), pane.written_bytes(), time.monotonic()
        rss_mib = _rss_mib(pane.pid)
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
        with running(argv, env, directory / f"start-{number}") as pane:
            seconds.append(pane.first_frame_s())
    return statistics.median(seconds)


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
