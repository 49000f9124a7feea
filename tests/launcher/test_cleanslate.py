"""A clean slate: waited for, and refused with the name of who is in the way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cleanslate import SlateLimits, prove, take_baseline
from launcher.clock import WallClock
from launcher.errors import CleanSlateError
from launcher.gpus import GpuProcess, GpuSample
from launcher.host import HostSample
from launcher.ports import free_port
from launcher.process import TOKEN_VARIABLE, read_process
from launcher.server import ServerRecord

GIB = 2**30
SOON = SlateLimits(wait_s=0.3)
IDLE = GpuSample(index=3, name="H200", memory_total_bytes=140 * GIB, memory_used_bytes=GIB // 2)


class Gpus:
    """Shows one sample after the other, and the last one for ever."""

    def __init__(self, *shown: GpuSample) -> None:
        self.shown = list(shown)

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:  # noqa: ARG002
        return (self.shown.pop(0) if len(self.shown) > 1 else self.shown[0],)

    def close(self) -> None:
        """Nothing is held."""


def host(available_gib: float) -> HostSample:
    return HostSample(2048 * GIB, int(available_gib * GIB), 0, 0, None, None, None, ())


def holding(gib: float, *processes: GpuProcess) -> GpuSample:
    return replace(IDLE, memory_used_bytes=int(GIB / 2 + gib * GIB), processes=processes)


async def test_an_idle_machine_is_clean_at_once() -> None:
    gpus = Gpus(IDLE)
    slate = await prove(take_baseline(gpus), gpus, WallClock(), port=free_port())
    assert slate.waited_for == ()


async def test_memory_that_comes_back_is_waited_for_and_the_reason_told_once() -> None:
    baseline = take_baseline(Gpus(IDLE))
    gpus = Gpus(holding(37), holding(20), holding(0.2))
    told: list[str] = []
    slate = await prove(baseline, gpus, WallClock(speed=100), on_wait=told.append)
    assert told == list(slate.waited_for)
    assert told == ["GPU 3 is holding 37.0 GiB more than before the study: the driver names no process that holds it"]


async def test_several_gpus_make_one_sentence() -> None:
    class Box(Gpus):
        def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
            (one,) = super().read(memory_only=memory_only)
            return (one, replace(one, index=4))

    with pytest.raises(CleanSlateError, match=r"^GPUs 3, 4 are holding up to 37\.0 GiB more than before the study: "):
        await prove(take_baseline(Box(IDLE)), Box(holding(37)), WallClock(), limits=SOON)


async def test_a_stranger_on_the_gpu_is_named_with_what_it_holds_and_lives_on() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "sglang::scheduler"])
    try:
        gpus = Gpus(holding(98.6, GpuProcess(stranger.pid, int(98.6 * GIB))))
        with pytest.raises(
            CleanSlateError, match=rf"GPU 3 is holding 98\.6 GiB .*pid {stranger.pid} .*holds 98\.6 GiB"
        ):
            await prove(take_baseline(Gpus(IDLE)), gpus, WallClock(), limits=SOON)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_in_a_container_the_memory_decides_and_an_alien_pid_is_unknown(shared: Path) -> None:
    """Field case 77."""
    told = json.loads((shared / "cases" / "77-nvml-container-pid-namespace" / "nvml.json").read_text())
    (alien,) = told["compute_procs"]
    used_bytes = told["mem_used_mib"] * 2**20
    process = GpuProcess(2**22 - 7, alien["used_mib"] * 2**20)
    gpus = Gpus(replace(IDLE, memory_used_bytes=used_bytes, processes=(process,)))
    with pytest.raises(CleanSlateError, match=r"unknown here: a process of the host"):
        await prove(take_baseline(Gpus(IDLE)), gpus, WallClock(), limits=SOON)
    gpus = Gpus(replace(IDLE, memory_used_bytes=used_bytes))
    with pytest.raises(CleanSlateError, match="names no process"):
        await prove(take_baseline(Gpus(IDLE)), gpus, WallClock(), limits=SOON)


async def test_what_was_there_before_the_study_may_stay() -> None:
    gpus = Gpus(holding(40, GpuProcess(os.getpid(), 40 * GIB)))
    await prove(take_baseline(gpus), gpus, WallClock(), limits=SOON)


@pytest.mark.parametrize("sample", [replace(IDLE, lost=True), replace(IDLE, index=5)])
async def test_a_gpu_that_is_lost_is_not_clean(sample: GpuSample) -> None:
    with pytest.raises(CleanSlateError, match="GPU 3 is not answering"):
        await prove(take_baseline(Gpus(IDLE)), Gpus(sample), WallClock(), limits=SOON)


async def test_a_unified_memory_gpu_has_nothing_to_compare() -> None:
    gpus = Gpus(replace(IDLE, memory_used_bytes=None))
    await prove(take_baseline(gpus), gpus, WallClock(), limits=SOON)


async def test_gpus_outside_the_study_are_not_looked_at() -> None:
    baseline = take_baseline(Gpus(IDLE), indices={0})
    assert baseline.gpus == ()
    await prove(baseline, Gpus(holding(90)), WallClock(), limits=SOON)


@pytest.mark.parametrize(
    ("available", "needed", "clean"), [(1960, 0, True), (1200, 0, True), (1200, 900, True), (1200, 1300, False)]
)
async def test_the_host_must_be_back_or_have_what_the_trial_needs(available: float, needed: float, clean: bool) -> None:
    gpus = Gpus(IDLE)
    baseline = take_baseline(gpus, read=lambda: host(2000))
    proof = prove(
        baseline, gpus, WallClock(), host_needed_bytes=int(needed * GIB), limits=SOON, read=lambda: host(available)
    )
    if clean:
        await proof
    else:
        with pytest.raises(CleanSlateError, match=r"the host has 1200\.0 GiB .* needs 1300\.0; most is held by pid"):
            await proof


async def test_a_port_that_is_held_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        gpus = Gpus(IDLE)
        with pytest.raises(CleanSlateError, match=rf"port {port} is held by pid {os.getpid()} "):
            await prove(take_baseline(gpus), gpus, WallClock(), port=port, limits=SOON)


@pytest.fixture
def leftover() -> Iterator[tuple[subprocess.Popen[bytes], ServerRecord]]:
    words: Sequence[str] = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = subprocess.Popen(words, start_new_session=True, env={**os.environ, TOKEN_VARIABLE: "left"})
    found = read_process(child.pid)
    assert found is not None
    yield child, ServerRecord(child.pid, found.start_time, child.pid, "left", free_port())
    child.kill()
    child.wait()


async def test_our_own_leftover_is_ended(leftover: tuple[subprocess.Popen[bytes], ServerRecord]) -> None:
    child, record = leftover
    gpus = Gpus(IDLE)
    await prove(take_baseline(gpus), gpus, WallClock(), ours=[record])
    assert child.wait(timeout=5) != 0
