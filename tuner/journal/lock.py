"""One daemon per study and per GPU: locks that the kernel releases with their holder, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from launcher.process import ProcessId, read_process
from tuner.errors import StudyLocked


class Lock:
    """An advisory lock on a file that says who holds it. The file stays; its lock goes with the process."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the lock. Raises StudyLocked with the pid of its holder; `what` names the thing in it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_holder(path)
            os.close(self._descriptor)
            who = f"process {holder.pid}" if holder else "another process"
            raise StudyLocked(f"{what} is held by {who}; stop that daemon first") from None
        self._say_who()

    def release(self) -> None:
        os.close(self._descriptor)

    def _say_who(self) -> None:
        text = json.dumps(asdict(this_process())).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


def this_process() -> ProcessId:
    """This process, beyond doubt."""
    process = read_process(os.getpid())
    assert process is not None
    return process.id


def read_holder(path: Path) -> ProcessId | None:
    """Who took the lock last, alive or not; None when nobody ever did."""
    try:
        return ProcessId(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def lock_gpus(uuids: Iterable[str], home: Path) -> tuple[Lock, ...]:
    """Take every GPU of a study, or none. Raises StudyLocked naming the GPU and the daemon that has it."""
    taken: list[Lock] = []
    try:
        for uuid in sorted(uuids):
            taken.append(Lock(home / "gpus" / f"{uuid}.lock", f"GPU {uuid}"))
    except StudyLocked:
        for lock in taken:
            lock.release()
        raise
    return tuple(taken)
