"""What a failure is judged by. Most of it may be missing; the log is the best witness."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.failure import Stage
from launcher.gpus import GpuSample


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known about a server that may have failed.

    Exit codes prove little: SGLang ends itself with SIGKILL (137) for nearly every failure, and builds up to 0.5.14
    leave with 0 after a crash. 2 is argparse's, 126 and 127 are the shell's.
    """

    log: str = ""
    """Its stdout and stderr, with whatever prefixes; kernel lines may be among them."""
    exit_code: int | None = None
    """None while it lives. Negative: the signal. 128 + n: a shell's word for signal n."""
    ended_by_us: bool = False
    """We sent the signal that ended it."""
    kernel_log: str = ""
    """The kernel's ring buffer of that time, where it could be read."""
    own_pids: frozenset[int] = frozenset()
    """Every pid that the launch ever had; empty when not known. Kills of other pids do not count then."""
    oom_kills: int | None = None
    """Growth of `oom_kill` in the cgroup's memory.events: 0 proves that the kernel killed nothing of ours."""
    gpus: tuple[GpuSample, ...] = ()
    """The GPUs of the trial at the time of the failure."""
    stage: Stage | None = None
    """Where it was, if somebody else than the log knows."""
    answers_health: bool | None = None
    """Whether /health said 200."""
    finished_recently: bool | None = None
    """False: requests were waiting and not one finished within the progress limit."""
    silent_s: float | None = None
    """Seconds since the last log line, for a server that lives."""

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended it."""
        if self.exit_code is None or self.exit_code == 0:
            return None
        if self.exit_code < 0:
            return -self.exit_code
        return self.exit_code - 128 if 128 < self.exit_code <= 128 + 64 else None
