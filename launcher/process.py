"""Processes as /proc tells of them: who belongs to a server that we started, and whether they are gone.

A pid alone is no identity, it is used again: a process is its pid and its start time. Ours is what was
recorded with both, what lives in the session or group that we made, what carries our token in its
environment, and what descends from those. Everything else is a stranger and is never signalled. Linux only,
as SGLang is.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TOKEN_VARIABLE = "KVTUNE_TOKEN"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for all time: its pid, and its start in seconds since boot (field 22 of /proc/PID/stat)."""

    pid: int
    start_time: float


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    pid: int
    start_time: float
    parent_pid: int
    pgid: int
    session: int
    name: str
    """The kernel's 15 characters ("sglang::schedul")."""
    zombie: bool = False

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)


Table = Mapping[int, Process]
"""All processes of this pid namespace at one moment, by pid."""


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """None when there is no such process (any more)."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(
        pid=pid,
        start_time=int(fields[19]) / _TICKS_PER_S,
        parent_pid=int(fields[1]),
        pgid=int(fields[2]),
        session=int(fields[3]),
        name=head.partition("(")[2],
        zombie=fields[0] in "ZX",
    )


def read_table(proc: Path = PROC) -> dict[int, Process]:
    """Every process now. About 10 ms for some hundred processes."""
    pids = (int(entry) for entry in os.listdir(proc) if entry.isdigit())
    found = (read_process(pid, proc) for pid in pids)
    return {process.pid: process for process in found if process is not None}


def token_of(pid: int, proc: Path = PROC) -> str | None:
    """The kvtune token in a process's environment: "" when it has none, None when the environment cannot be read.

    An empty environment has none: so looks a process between fork and exec, which may be anybody's.
    """
    try:
        environ = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    mark = f"{TOKEN_VARIABLE}=".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(mark):
            return entry[len(mark) :].decode(errors="replace")
    return "" if b"=" in environ or not environ else None


def find_family(
    table: Table,
    root: ProcessId,
    pgid: int,
    token: str,
    recorded: Iterable[ProcessId] = (),
    read_token: Callable[[int], str | None] = token_of,
) -> tuple[Process, ...]:
    """Everything alive or zombie that belongs to one launch, in pid order.

    A member of the group or session counts unless its environment can be read and lacks the token: then the
    number has been used again by a stranger. Nothing older than the launch can be ours.
    """
    wanted = {root, *recorded}
    leader = table.get(pgid)
    reused = leader is not None and leader.id != root
    ours: set[int] = set()
    for process in table.values():
        if process.id in wanted:
            ours.add(process.pid)
        elif process.start_time >= root.start_time:
            found = read_token(process.pid)
            in_group = not reused and pgid in (process.pgid, process.session)
            if found == token or (in_group and (found is None or process.zombie)):
                ours.add(process.pid)
    return tuple(table[pid] for pid in sorted(_with_descendants(table, ours)))


def is_gone(process: ProcessId, proc: Path = PROC) -> bool:
    """Whether it has ended. A zombie has, unless threads of it are still at their teardown (freeing GPU
    memory)."""
    now = read_process(process.pid, proc)
    if now is None or now.start_time != process.start_time:
        return True
    if not now.zombie:
        return False
    try:
        return len(os.listdir(proc / str(process.pid) / "task")) <= 1
    except OSError:
        return True


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal. Safe against reuse of the
    pid."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start_time != process.start_time:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def bury(processes: Iterable[Process]) -> None:
    """Take note of zombies that are our own children, so that the kernel can let go of them (we may be pid
    1)."""
    for process in processes:
        if process.zombie and process.parent_pid == os.getpid():
            with suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


def describe(pid: int, proc: Path = PROC) -> str:
    """A process for a person: "pid 4711 (sglang::scheduler_TP0, user alice)"; in a container it may be
    unknown."""
    try:
        line = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
        user = user_name((proc / str(pid)).stat().st_uid)
    except OSError:
        return f"pid {pid} (unknown here: a process of the host or of another container)"
    words = line.decode(errors="replace").split()
    now = read_process(pid, proc)
    title = Path(words[0]).name if words else now.name if now else "?"
    return f"pid {pid} ({title}, user {user})"


def user_name(uid: int) -> str:
    """The name of a user, or the number where there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _with_descendants(table: Table, roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent_pid, []).append(process.pid)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(_younger(table, pid, children.get(pid, ())))
    return found


def _younger(table: Table, pid: int, children: Iterable[int]) -> Iterator[int]:
    """Children that started after their parent: anything else is a number used again between two reads."""
    return (child for child in children if table[child].start_time >= table[pid].start_time)
