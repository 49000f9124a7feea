"""A clean slate before a start: proved, not assumed.

That a server's processes are gone proves little: on an H200, 37,947 MiB were still taken 2 s after the
launcher of a HiCache run had exited, and after SIGKILL the memory came back only within 4 to 8 s. Before
each start, therefore: no process of ours is left, every GPU of the trial shows the memory it had before the
study, the host has the memory that the trial needs, and the port is free. Our own leftovers are ended; a
stranger is named and never touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import psutil

from launcher.clock import Clock
from launcher.deadline import Deadline
from launcher.errors import CleanSlateError
from launcher.gpus import GpuProcess, GpuReader, GpuSample
from launcher.host import HostSample, read_host
from launcher.ports import find_listeners, is_free
from launcher.process import describe, read_table
from launcher.server.ending import read_family, reap
from launcher.server.record import ServerRecord, StopLimits

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class GpuBaseline:
    """One GPU before the study."""

    index: int
    used_bytes: int | None
    pids: frozenset[int]
    """Compute processes that were there already, and may stay."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The machine before the study: what it has to be back to."""

    gpus: tuple[GpuBaseline, ...]
    host_available_bytes: int


@dataclass(frozen=True, slots=True)
class SlateLimits:
    """How long to wait, and how near is near enough."""

    wait_s: float = 120.0
    """Study seconds. Pinned host memory takes up to a minute to be given back."""
    gpu_tolerance_bytes: int = 2**28
    """A driver's own figure moves by some MiB; a leftover CUDA context alone is about 500 MiB."""
    host_tolerance_share: float = 0.05
    """Of the memory that was available at the baseline."""


@dataclass(frozen=True, slots=True)
class CleanSlate:
    """The proof: how long it took, in study seconds, and what it was waited for."""

    took_s: float
    waited_for: tuple[str, ...] = ()


def take_baseline(
    gpus: GpuReader, indices: Collection[int] | None = None, read: Callable[[], HostSample] = read_host
) -> Baseline:
    """Read the machine before the first start. `indices` are the GPUs of the study; None is all of them."""
    samples = [sample for sample in gpus.read() if indices is None or sample.index in indices]
    return Baseline(
        gpus=tuple(
            GpuBaseline(sample.index, sample.memory_used_bytes, frozenset(p.pid for p in sample.processes))
            for sample in samples
        ),
        host_available_bytes=read().available_bytes,
    )


async def prove(
    baseline: Baseline,
    gpus: GpuReader,
    clock: Clock,
    *,
    port: int | None = None,
    ours: Sequence[ServerRecord] = (),
    host_needed_bytes: int = 0,
    limits: SlateLimits = SlateLimits(),
    on_wait: Callable[[str], None] | None = None,
    read: Callable[[], HostSample] = read_host,
) -> CleanSlate:
    """Wait until the machine is as it was; end what is left of the launches in `ours`.

    `on_wait` is told each new reason for waiting. `host_needed_bytes` is what the trial will take of the
    host (HiCache pool of all ranks and its reserve): a host that is not back at its baseline will do when
    it has that much. Raises CleanSlateError after the limit, naming the process, its user and what it
    holds.
    """
    waiting, told = Deadline(clock, limits.wait_s), dict[str, str]()
    await _end_ours(ours, clock)
    while found := await asyncio.to_thread(_obstacles, baseline, gpus, port, host_needed_bytes, limits, read):
        if waiting.passed:
            raise CleanSlateError("; ".join(found.values()))
        for what, reason in found.items():
            if what not in told and on_wait is not None:
                on_wait(reason)
            told.setdefault(what, reason)
        await asyncio.sleep(0.02 if clock.speed > 1 else 0.5)
    return CleanSlate(waiting.elapsed_s, tuple(told.values()))


async def _end_ours(ours: Sequence[ServerRecord], clock: Clock) -> None:
    for record in ours:
        if await asyncio.to_thread(read_family, record):
            report = await reap(record, clock, StopLimits(term_s=10.0))
            if not report.clean:
                raise CleanSlateError("; ".join(report.leftovers))


def _obstacles(
    baseline: Baseline,
    gpus: GpuReader,
    port: int | None,
    host_needed_bytes: int,
    limits: SlateLimits,
    read: Callable[[], HostSample],
) -> dict[str, str]:
    """What is in the way now: a sentence for the GPUs, the port and the host each, where there is one."""
    found = {
        "gpus": _gpus_obstacle(baseline, gpus.read(), limits),
        "port": _port_obstacle(port) if port is not None else None,
        "host": _host_obstacle(baseline, read().available_bytes, host_needed_bytes, limits),
    }
    return {what: reason for what, reason in found.items() if reason is not None}


def _port_obstacle(port: int) -> str | None:
    if is_free(port):
        return None
    holders = " and ".join(one.describe() for one in find_listeners(port, read_table()))
    return f"port {port} is held by {holders or 'connections that are still closing'}"


def _gpus_obstacle(baseline: Baseline, samples: Sequence[GpuSample], limits: SlateLimits) -> str | None:
    """The memory decides, not the list of processes: in a container that is empty or holds alien pids."""
    now = {sample.index: sample for sample in samples}
    lost = [one.index for one in baseline.gpus if one.index not in now or now[one.index].lost]
    if lost:
        return f"{_gpus(lost)} not answering: the driver has lost it"
    excess_bytes = {one.index: _excess_bytes(one, now[one.index]) for one in baseline.gpus}
    held = {index: excess for index, excess in excess_bytes.items() if excess > limits.gpu_tolerance_bytes}
    if not held:
        return None
    strangers = [
        process
        for before in baseline.gpus
        if before.index in held
        for process in now[before.index].processes
        if process.pid not in before.pids
    ]
    who = " and ".join(dict.fromkeys(map(_holder, strangers))) or "the driver names no process that holds it"
    most = f"{'up to ' if len(held) > 1 else ''}{max(held.values()) / _GIB:.1f} GiB"
    return f"{_gpus(list(held))} holding {most} more than before the study: {who}"


def _excess_bytes(before: GpuBaseline, now: GpuSample) -> int:
    """0 where the driver gives no figure (unified memory)."""
    if before.used_bytes is None or now.memory_used_bytes is None:
        return 0
    return now.memory_used_bytes - before.used_bytes


def _gpus(indices: Sequence[int]) -> str:
    return f"GPU {indices[0]} is" if len(indices) == 1 else f"GPUs {', '.join(map(str, indices))} are"


def _holder(process: GpuProcess) -> str:
    held = "" if process.used_bytes is None else f" holds {process.used_bytes / _GIB:.1f} GiB"
    return f"{describe(process.pid)}{held}"


def _host_obstacle(baseline: Baseline, available_bytes: int, needed_bytes: int, limits: SlateLimits) -> str | None:
    back_bytes = baseline.host_available_bytes * (1 - limits.host_tolerance_share)
    if available_bytes >= min(back_bytes, needed_bytes):
        return None
    figures = (baseline.host_available_bytes, available_bytes, needed_bytes)
    had, has, needs = (f"{figure / _GIB:.1f}" for figure in figures)
    return (
        f"the host has {has} GiB of memory available, {had} before the study, and this trial needs {needs};"
        f" most is held by {_largest_holder()}"
    )


def _largest_holder() -> str:
    """The process with the most resident memory: who to ask."""
    resident = {process.pid: process.info["memory_info"].rss for process in _with_memory()}
    pid = max(resident, key=lambda one: resident[one])
    return f"{describe(pid)} with {resident[pid] / _GIB:.1f} GiB"


def _with_memory() -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["memory_info"]) if process.info["memory_info"]]
