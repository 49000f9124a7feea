"""The simulated server's children: one scheduler per rank, holding GPU memory, and the detokenizer."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.simulated.gpustate import Held, write_held

_HOLDER = Path(__file__).with_name("holder.py")
_ZOMBIE_WALL_S = 600.0
"""A zombie scheduler ends by itself after this, so that no test leaves one behind for ever."""


@dataclass(slots=True)
class Child:
    """One child process."""

    title: str
    process: subprocess.Popen[bytes]
    gpu: int | None
    """None for the detokenizer."""


class Children:
    """Starts the children, tells the state directory what they hold, and watches them."""

    def __init__(self, directory: Path | None, tp_size: int, release_wall_s: float, *, zombie: bool) -> None:
        self._directory = directory
        self._release_wall_s = release_wall_s
        self._list: list[Child] = []
        for rank in range(tp_size):
            title = f"sglang::scheduler_TP{rank}" if tp_size > 1 else "sglang::scheduler"
            self._list.append(self._start(title, rank, outlives_s=_ZOMBIE_WALL_S if zombie and rank == 0 else 0.0))
        self._list.append(self._start("sglang::detokenizer", None, outlives_s=0.0))

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(child.process.pid for child in self._list)

    def hold(self, used_bytes: int, busy_share: float) -> None:
        """Every scheduler holds so much on its GPU from now on."""
        if self._directory is None:
            return
        for child in self._list:
            if child.gpu is not None and child.process.poll() is None:
                write_held(self._directory, self._held(child, used_bytes, busy_share))

    def first_dead(self) -> tuple[int, int, int] | None:
        """(rank, pid, exit code) of a scheduler that has gone, or None."""
        for rank, child in enumerate(self._list):
            code = child.process.poll()
            if code is not None and child.gpu is not None:
                return rank, child.process.pid, code
        return None

    def kill(self, *, spare_zombie: bool) -> None:
        """End them as kill_process_tree does. A zombie scheduler is the one that such a kill misses."""
        for child in self._list[1 if spare_zombie else 0 :]:
            child.process.kill()
        for child in self._list[1 if spare_zombie else 0 :]:
            child.process.wait()

    def _start(self, title: str, gpu: int | None, *, outlives_s: float) -> Child:
        # argv[0] is the title that `ps` and NVML tools show; setproctitle would do the same after the start.
        environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
        environment.pop("PYTHONPATH", None)
        directory = "-" if gpu is None or self._directory is None else str(self._directory)
        process = subprocess.Popen(
            [title, "-S", str(_HOLDER), directory, str(gpu), str(outlives_s)],
            executable=os.path.realpath(sys.executable),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        return Child(title, process, gpu)

    def _held(self, child: Child, used_bytes: int, busy_share: float) -> Held:
        assert child.gpu is not None
        try:
            started_s = psutil.Process(child.process.pid).create_time()
        except psutil.Error:
            started_s = 0.0
        return Held(child.gpu, child.process.pid, started_s, child.title, used_bytes, busy_share, self._release_wall_s)
