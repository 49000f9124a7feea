"""SGLang servers of this machine, found by the listening sockets of SGLang's processes. Nothing is probed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import psutil

LAUNCHERS = ("sglang.launch_server", "sglang serve", "launcher.simulated")
"""What the command line of a process that serves HTTP contains; `sglang::` are the titles of its children."""
TITLE = "sglang::"


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server of this machine and the processes under it."""

    url: str
    pids: tuple[int, ...]
    gpu_state: str | None = None
    """Where a simulated server keeps its simulated GPUs."""


def local_servers() -> tuple[LocalServer, ...]:
    """Servers of all users whose sockets may be read, by port. One walk over the processes serves all of them."""
    processes = {process.pid: process for process in psutil.process_iter(["ppid", "cmdline"])}
    parents = {pid: process.info["ppid"] for pid, process in processes.items()}
    found = {}
    for process in processes.values():
        if not is_sglang(process.info["cmdline"] or []):
            continue
        for port, host in _listening(process):
            found[port] = LocalServer(f"http://{host}:{port}", tree(process.pid, parents), _gpu_state(process))
    return tuple(found[port] for port in sorted(found))


def is_sglang(cmdline: list[str]) -> bool:
    """Whether this is the command line of an SGLang launcher (real or simulated)."""
    joined = " ".join(cmdline)
    if joined.startswith(TITLE):
        return False
    return any(launcher in joined for launcher in LAUNCHERS) and not joined.startswith(("sh ", "bash "))


def _listening(process: psutil.Process) -> list[tuple[int, str]]:
    """The HTTP port: named by --port if it is among the listening ones, else the lowest."""
    try:
        sockets = process.net_connections("tcp")
        named = _named_port(process.info["cmdline"])
    except (psutil.Error, OSError):
        return []
    ports = {c.laddr.port: c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN}
    if not ports:
        return []
    port = named if named in ports else min(ports)
    return [(port, _reachable(ports[port]))]


def _named_port(cmdline: list[str]) -> int:
    port = _value(cmdline, "--port") or "30000"
    return int(port) if port.isdigit() else 0


def _value(cmdline: list[str], flag: str) -> str | None:
    """What `--flag VALUE` or `--flag=VALUE` says."""
    for word, after in pairwise([*cmdline, ""]):
        name, sign, value = word.partition("=")
        if name == flag:
            return value if sign else after or None
    return None


def _gpu_state(process: psutil.Process) -> str | None:
    """Where a simulated server keeps its GPUs; a relative path is relative to where it runs."""
    told = _value(process.info["cmdline"], "--gpu-state")
    try:
        return None if told is None else os.path.join(process.cwd(), told)
    except (psutil.Error, OSError):
        return told


def _reachable(address: str) -> str:
    if address in ("0.0.0.0", "::", "127.0.0.1"):
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


def tree(root: int, parents: Mapping[int, int | None]) -> tuple[int, ...]:
    """A process and its descendants, by everybody's parent."""
    children: dict[int | None, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return tuple(found)


def process_name(pid: int) -> str | None:
    """The title of a process, or None where there is none to be seen."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
