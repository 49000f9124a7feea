"""End every process of one launch, and prove it.

SIGTERM goes to the server's own process and not to the group: SGLang's schedulers have no handler, would
die first, and the launcher would take that for a crash. After a deadline the whole family gets SIGKILL. The
proof is that every process ever recorded is gone, no further one is found in the session or by the token,
and nobody listens on the port.
"""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess

from launcher.clock import Clock
from launcher.deadline import Deadline, pause_s
from launcher.ports import find_listeners
from launcher.process import Process, bury, describe, find_family, is_gone, read_table, send_signal
from launcher.server.containers import end_containers
from launcher.server.record import ServerRecord, StopLimits, StopReport


async def reap(record: ServerRecord, clock: Clock, limits: StopLimits = StopLimits()) -> StopReport:  # noqa: B008
    """End what is left of a launch that another process of ours made (a daemon that was killed).

    Processes are known by pid and start time, or by the launch's token in their environment; a stranger
    that got one of the pids, the group or the port in the meantime is not touched.
    """
    return await end(record, clock, limits, child=None)


async def end(
    record: ServerRecord,
    clock: Clock,
    limits: StopLimits,
    *,
    child: subprocess.Popen[bytes] | None,
    graceful: bool = True,
) -> StopReport:
    """End the launch of `record`; `child` is its process where it is our own. `graceful` False kills at
    once."""
    whole = Deadline(clock, limits.term_s + limits.kill_s)
    family = await asyncio.to_thread(read_family, record)
    record = record.with_children(family)
    gone = killed = False
    if graceful:
        await asyncio.to_thread(_terminate, record, family)
        gone = await _wait_gone(record, child, Deadline(clock, limits.term_s), clock, limits.straggler_s)
    if not gone:
        killed = await _kill_until_gone(record, child, Deadline(clock, limits.kill_s), clock)
    leftovers = await asyncio.to_thread(_leftovers, record)
    return StopReport(
        took_s=whole.elapsed_s,
        killed=killed,
        exit_code=None if child is None else child.poll(),
        ended=tuple(sorted({record.pid, *(process.pid for process in record.children)})),
        leftovers=leftovers,
    )


def read_family(record: ServerRecord) -> tuple[Process, ...]:
    """Every process of the launch now, zombies that are already torn down excepted. Blocks for some 10 ms."""
    found = find_family(read_table(), record.root, record.pgid, record.token, record.children)
    bury(process for process in found if process.pid != record.pid)
    return tuple(process for process in found if not is_gone(process.id))


def _terminate(record: ServerRecord, family: tuple[Process, ...]) -> None:
    """SIGTERM to the server behind the wrapper: a shell that waits for its child would die of it and leave
    the child.

    The server is the eldest process that listens; before it does, it is what we started, and with it its
    descendants that are wrappers too: all but SGLang's own children, which the kernel kills with their
    parent.
    """
    listeners = find_listeners(record.port, [process.pid for process in family])
    holders = {pid for listener in listeners for pid in listener.pids}
    serving = [process for process in family if process.pid in holders]
    eldest = min(serving, key=lambda process: process.start_time, default=None)
    targets = [eldest] if eldest else [p for p in family if not p.name.startswith("sglang::")]
    for process in targets:
        send_signal(process.id, signal.SIGTERM)


async def _wait_gone(
    record: ServerRecord,
    child: subprocess.Popen[bytes] | None,
    deadline: Deadline,
    clock: Clock,
    straggler_s: float = math.inf,
) -> bool:
    """Wait until nothing of the launch is left; for those that outlive the launcher not longer than `straggler_s`.

    First what is known is looked at, which is cheap; then the whole process table.
    """
    alone: Deadline | None = None
    while not deadline.passed and not (alone is not None and alone.passed):
        if child is not None:
            child.poll()
        if is_gone(record.root) and alone is None:
            alone = Deadline(clock, straggler_s)
        if all(map(is_gone, (record.root, *record.children))) and not await asyncio.to_thread(read_family, record):
            return True
        await asyncio.sleep(pause_s(clock))
    return not await asyncio.to_thread(read_family, record)


async def _kill_until_gone(
    record: ServerRecord, child: subprocess.Popen[bytes] | None, deadline: Deadline, clock: Clock
) -> bool:
    """SIGKILL, again and again, for a process may be born between the look and the signal. Whether any was needed."""
    killed = False
    while True:
        for process in await asyncio.to_thread(read_family, record):
            killed |= send_signal(process.id, signal.SIGKILL)
        if await _wait_gone(record, child, Deadline(clock, 2.0), clock) or deadline.passed:
            return killed


def _leftovers(record: ServerRecord) -> tuple[str, ...]:
    """The proof, or what stands against it. A listener counts where the server may be out of sight: in a container."""
    containers = end_containers(record.container_runner, record.token) if record.container_runner else ()
    table = read_table()
    family = find_family(table, record.root, record.pgid, record.token, record.children)
    left = [f"{describe(process.pid)} does not end" for process in family if not is_gone(process.id)]
    if left or record.container_runner:
        held = [found.describe() for found in find_listeners(record.port, table)]
        left += [f"port {record.port} is still held by {holder}" for holder in held]
    return (*containers, *left)
