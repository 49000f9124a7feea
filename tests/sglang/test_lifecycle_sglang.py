"""The launcher on a real SGLang: started, known, killed in every part, ended, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import WallClock
from launcher.errors import StartFailed
from launcher.failure import Culprit, Failure, Kind
from launcher.ports import is_listening
from launcher.process import find_family, is_gone, read_table
from launcher.server import Server, ServerRecord, StartLimits, launch, reap
from launcher.version import detect_build

pytestmark = pytest.mark.sglang

LIMITS = StartLimits(quiet_s=120, hard_s=300)


def assert_nothing_left(record: ServerRecord) -> None:
    assert all(is_gone(process) for process in (record.root, *record.children))
    alive = [one for one in find_family(read_table(), record.root, record.pgid, record.token) if not one.zombie]
    assert alive == []
    assert not is_listening(record.port)


@asynccontextmanager
async def serving(sglang: Any, tmp_path: Path) -> AsyncIterator[Server]:
    server = await launch(sglang.request(tmp_path / "server.log"), WallClock())
    try:
        await server.wait_ready(LIMITS)
        yield server
    finally:
        report = await server.stop()
        assert report.clean
        assert_nothing_left(server.record)


@pytest.fixture
def namesake() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that is called like SGLang's, which nobody may end."""
    words = ["sglang::scheduler_TP0", "-c", "import time; time.sleep(3600)", "-m", "sglang.launch_server"]
    child = subprocess.Popen(words, executable=sys.executable, start_new_session=True)
    yield child
    child.kill()
    child.wait()


def test_the_installed_build_tells_its_version_and_flags(cpu_sglang: Any) -> None:
    build = detect_build(cpu_sglang.command, cpu_sglang.env, timeout_s=60)
    assert build.version == "0.5.18"
    assert build.known_flags is not None
    assert {"mem-fraction-static", "hicache-size", "cuda-graph-max-bs-decode"} <= build.known_flags
    assert {"cuda-graph-max-bs", "disable-cuda-graph"} <= set(build.special)


async def test_three_starts_and_stops_leave_nothing(
    cpu_sglang: Any, tmp_path: Path, namesake: subprocess.Popen[bytes]
) -> None:
    ports = []
    for _ in range(3):
        async with serving(cpu_sglang, tmp_path) as server:
            assert server.poll() is None
            assert {"sglang::schedul", "sglang::detoken"} <= {one.name for one in await server.note_family()}
            ports.append(server.record.port)
        assert not (await server.stop()).killed
    assert len(set(ports)) == 3
    assert namesake.poll() is None


async def _death(server: Server) -> Failure:
    async with asyncio.timeout(60):
        while (failure := server.poll()) is None:
            await asyncio.sleep(0.1)
    return failure


@pytest.mark.parametrize("victim", ["launcher", "sglang::schedul", "sglang::detoken"])
async def test_sigkill_of_any_part_is_a_failure_and_no_fault_of_the_configuration(
    cpu_sglang: Any, tmp_path: Path, victim: str
) -> None:
    async with serving(cpu_sglang, tmp_path) as server:
        named = {one.name: one.pid for one in await server.note_family()}
        os.kill(named.get(victim, server.record.pid), signal.SIGKILL)
        failure = await _death(server)
        assert failure.kind is Kind.KILLED
        assert failure.culprit is not Culprit.CONFIGURATION
        assert not failure.is_gpu_oom


async def test_a_squatter_on_the_port_is_named_and_lives_on(cpu_sglang: Any, tmp_path: Path) -> None:
    server = await launch(cpu_sglang.request(tmp_path / "server.log"), WallClock())
    try:
        with socket.create_server(("127.0.0.1", server.record.port)):
            with pytest.raises(StartFailed) as failed:
                await server.wait_ready(LIMITS)
            assert failed.value.failure.kind is Kind.PORT_IN_USE
            assert f"pid {os.getpid()} " in failed.value.failure.sentence
    finally:
        report = await server.stop()
    assert report.clean
    assert_nothing_left(server.record)


DAEMON = """
import asyncio, json, sys
from pathlib import Path
from launcher.clock import WallClock
from launcher.config import ServerConfig
from launcher.ports import free_port
from launcher.server import LaunchRequest, launch
from launcher.version import detect_build

async def main(told):
    build = detect_build(told["command"], told["env"], timeout_s=60)
    config = ServerConfig(told["model"], flags=told["flags"])
    command, log = tuple(told["command"]), Path(told["log"])
    server = await launch(LaunchRequest(command, config, build, free_port(), told["env"], log), WallClock())
    await asyncio.sleep(12)
    await server.note_family()
    print(json.dumps(server.record.as_dict()), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(json.loads(sys.argv[1])))
"""


async def test_the_orphan_of_a_daemon_killed_in_mid_start_is_reaped(cpu_sglang: Any, tmp_path: Path) -> None:
    told = {"command": cpu_sglang.command, "env": cpu_sglang.env, "model": cpu_sglang.model_path}
    told |= {"flags": cpu_sglang.flags, "log": str(tmp_path / "server.log")}
    words = [sys.executable, "-c", DAEMON, json.dumps(told)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as daemon:
        assert daemon.stdout is not None
        line = await asyncio.to_thread(daemon.stdout.readline)
        daemon.kill()
    record = ServerRecord.from_dict(json.loads(line))
    assert not is_gone(record.root)
    report = await reap(record, WallClock())
    assert report.clean
    assert_nothing_left(record)
