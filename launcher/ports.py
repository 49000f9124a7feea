"""TCP ports of this machine: free ones, and who listens."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import MachineError
from launcher.process import PROC, describe, user_name

# Below Linux's ephemeral range (32768-60999), so that nobody's outgoing connection sits on it when we bind.
PORTS = range(20000, 32000)
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: who made it, and which processes of ours to read hold it (none where we may not
    look)."""

    inode: str
    uid: int
    pids: tuple[int, ...] = ()

    def describe(self) -> str:
        """For a person: the processes, or at least the user."""
        if self.pids:
            return " and ".join(describe(pid) for pid in self.pids)
        return f"a process of user {user_name(self.uid)} that cannot be seen from here"


def free_port(avoid: Collection[int] = ()) -> int:
    """A port that nobody holds on any address and that is not in `avoid`. Raises MachineError when none is
    found."""
    for port in random.SystemRandom().sample(PORTS, 200):
        if port not in avoid and is_free(port):
            return port
    raise MachineError(f"no free port was found between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether nobody listens on it on any address, and a server could bind it now.

    A port whose last connections are not yet forgotten is not free.
    """
    if is_listening(port):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def find_listeners(port: int, pids: Iterable[int], proc: Path = PROC) -> tuple[Listener, ...]:
    """The sockets that listen on `port` on any address, with those of `pids` that hold them."""
    listening = _listening(port, proc)
    if not listening:
        return ()
    holders: dict[str, list[int]] = {}
    for pid in pids:
        for inode in _sockets(pid, proc) & listening.keys():
            holders.setdefault(inode, []).append(pid)
    return tuple(Listener(inode, uid, tuple(holders.get(inode, ()))) for inode, uid in listening.items())


def is_listening(port: int, proc: Path = PROC) -> bool:
    """Whether any socket of this network namespace listens on `port`."""
    return bool(_listening(port, proc))


def _listening(port: int, proc: Path) -> dict[str, int]:
    """Socket inode -> uid of what listens on `port`. Columns as in proc(5): local_address, st, uid, inode."""
    found = {}
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found[fields[9]] = int(fields[7])
    return found


def _sockets(pid: int, proc: Path) -> set[str]:
    """The socket inodes that a process holds; empty where we may not look."""
    folder = proc / str(pid) / "fd"
    found = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    for name in names:
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
