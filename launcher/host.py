"""This host's memory, as much of it as we may really use, and what its kernel said.

MemAvailable is the machine's; in a container the cgroup's limit binds first (v1 and v2, at every level up
the tree).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024
_UNLIMITED = 2**60
"""cgroup v1 writes a number near 2^63 for "no limit"."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node."""

    index: int
    total_bytes: int
    free_bytes: int
    """Without page cache, which could be dropped."""
    cpus: str
    """As the kernel lists them: "0-15,32-47"."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """Host memory at one moment."""

    total_bytes: int
    """The smaller of the machine's and the cgroup's limit."""
    available_bytes: int
    """What can be taken without swapping, page cache counted as available; the smaller of machine and
    cgroup."""
    page_cache_bytes: int
    locked_bytes: int
    """mlocked; memory pinned through CUDA (HiCache) is not among it, it only goes from `available_bytes`."""
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    """Page cache that could be dropped excepted."""
    oom_kills: int | None
    """Processes that the kernel has killed in our cgroup for want of memory (`memory.events`, v2)."""
    numa: tuple[NumaNode, ...]


def read_host(root: Path = Path("/")) -> HostSample:
    """Read /proc/meminfo, the cgroup of this process and the NUMA nodes below `root`."""
    machine = _meminfo(root / "proc/meminfo")
    total, available = machine["MemTotal"], machine["MemAvailable"]
    limits = [level for level in _cgroup_levels(root) if level.limit_bytes < _UNLIMITED]
    tightest = min(limits, key=lambda level: level.limit_bytes - level.used_bytes, default=None)
    if tightest is not None:
        total = min(total, tightest.limit_bytes)
        available = min(available, max(0, tightest.limit_bytes - tightest.used_bytes))
    return HostSample(
        total_bytes=total,
        available_bytes=available,
        page_cache_bytes=machine.get("Cached", 0),
        locked_bytes=machine.get("Mlocked", 0),
        cgroup_limit_bytes=tightest.limit_bytes if tightest else None,
        cgroup_used_bytes=tightest.used_bytes if tightest else None,
        oom_kills=_oom_kills(root),
        numa=tuple(_numa_nodes(root / "sys/devices/system/node")),
    )


def read_kernel_log(path: Path = Path("/dev/kmsg"), limit_lines: int = 2000) -> str:
    """The kernel's last lines about memory; "" where we may not read them. Never blocks."""
    lines: list[str] = []
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while record := os.read(handle, 8192):
            lines += [line.partition(";")[2] or line for line in record.decode(errors="replace").splitlines()]
    except OSError:
        pass  # EAGAIN at the end of the ring, EPIPE where records were overwritten: what was read counts.
    finally:
        os.close(handle)
    wanted = re.compile(r"out of memory|oom|killed process|nvrm|xid", re.IGNORECASE)
    return "\n".join([line for line in lines if wanted.search(line)][-limit_lines:])


@dataclass(frozen=True, slots=True)
class _CgroupLevel:
    limit_bytes: int
    used_bytes: int


def _meminfo(path: Path) -> dict[str, int]:
    pairs = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return {name: int(value.split()[0]) * _KIB for name, value in pairs}


def _cgroup_levels(root: Path) -> Iterator[_CgroupLevel]:
    """From our own cgroup up to the root: each may have a limit, and the tightest binds."""
    for folder, limit, used, cache in _cgroup_folders(root):
        try:
            text = (folder / limit).read_text().strip()
            bytes_used = int((folder / used).read_text())
        except (OSError, ValueError):
            continue
        limit_bytes = _UNLIMITED if text == "max" else int(text)
        yield _CgroupLevel(limit_bytes, max(0, bytes_used - _stat(folder / "memory.stat").get(cache, 0)))


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    mount = root / "sys/fs/cgroup"
    v2 = (mount / "cgroup.controllers").exists()
    base = mount if v2 else mount / "memory"
    path = _own_cgroup(root, v2=v2)
    names = (
        ("memory.max", "memory.current", "inactive_file")
        if v2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    # In a container the path may be the host's; then only the mount itself exists, and is ours.
    folder = base / path.lstrip("/")
    for level in (folder, *folder.parents):
        if level.is_dir():
            yield (level, *names)
        if level == base:
            return


def _own_cgroup(root: Path, *, v2: bool) -> str:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if (v2 and not controllers) or "memory" in controllers.split(","):
            return path
    return "/"


def _stat(path: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}


def _oom_kills(root: Path) -> int | None:
    counts = [_stat(folder / "memory.events").get("oom_kill") for folder, *_ in _cgroup_folders(root)]
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def _numa_nodes(folder: Path) -> Iterator[NumaNode]:
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            words = [line.split() for line in (node / "meminfo").read_text().splitlines()]
            cpus = (node / "cpulist").read_text().strip()
        except OSError:
            continue
        told = {line[2].rstrip(":"): int(line[3]) * _KIB for line in words if len(line) > 3}
        yield NumaNode(int(node.name[4:]), told.get("MemTotal", 0), told.get("MemFree", 0), cpus)
