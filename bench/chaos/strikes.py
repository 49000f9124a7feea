"""What can befall a study: each strike acts from outside, as the world would."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from launcher.process import Process, ProcessId, read_table, send_signal, token_of
from tuner.journal.home import JOURNAL

FULL_DISK_BYTES = 4_096
"""No file may grow beyond this: the journal is larger, so its next write fails as on a full disk."""


def processes_of(token: str) -> list[Process]:
    """Every living process of the study's servers, eldest first."""
    found = [one for one in read_table().values() if not one.zombie and token_of(one.pid) == token]
    return sorted(found, key=lambda process: process.start_time)


def kill_server(token: str, _: random.Random) -> bool:
    """SIGKILL of the launcher: its schedulers follow, the memory comes back later."""
    return _signal(_servers(token), signal.SIGKILL)


def kill_scheduler(token: str, _: random.Random) -> bool:
    return _signal(_schedulers(token), signal.SIGKILL)


def hold_server(token: str, rng: random.Random) -> bool:
    """SIGSTOP; half of them are never continued, and have to be found out as a hang."""
    servers = _servers(token)
    if not _signal(servers, signal.SIGSTOP):
        return False
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.05, 0.3))
        _signal(servers, signal.SIGCONT)
    return True


def hold_daemon(daemon: int, rng: random.Random) -> None:
    os.kill(daemon, signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 1.0))
    os.kill(daemon, signal.SIGCONT)


def fill_disk(daemon: int, rng: random.Random) -> None:
    """The daemon's writes fail for a while."""
    _, hard = resource.prlimit(daemon, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, hard))
    time.sleep(rng.uniform(0.3, 1.2))
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (hard, hard))


def damage_journal(directory: Path, rng: random.Random) -> str:
    """Spoil the tail of what a killed daemon left; what was done."""
    journal = directory / JOURNAL
    log = directory / f"{JOURNAL}-wal"
    kinds: dict[str, Callable[[], None]] = {
        "garbage at the log's end": lambda: _overwrite_tail(log, rng),
        "log cut short": lambda: _cut(log, rng),
        "garbage at the database's end": lambda: _overwrite_tail(journal, rng),
        "database cut short": lambda: _cut(journal, rng),
    }
    name = rng.choice(list(kinds))
    kinds[name]()
    return name


def _overwrite_tail(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size:
        count = min(size, rng.randint(100, 6_000))
        with path.open("r+b") as file:
            file.seek(size - count)
            file.write(rng.randbytes(count))


def _cut(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size:
        os.truncate(path, max(0, size - rng.randint(100, 6_000)))


def _servers(token: str) -> list[ProcessId]:
    return [one.id for one in processes_of(token) if not _title(one.pid).startswith("sglang::")][:1]


def _schedulers(token: str) -> list[ProcessId]:
    return [one.id for one in processes_of(token) if _title(one.pid).startswith("sglang::scheduler")][:1]


def _title(pid: int) -> str:
    """What a process calls itself: SGLang's children do so in their command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _signal(processes: list[ProcessId], number: signal.Signals) -> bool:
    return bool(processes) and send_signal(processes[0], number)
