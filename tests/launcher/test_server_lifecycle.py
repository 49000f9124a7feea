"""A launch, its readiness, its failures and its proved end, on a stand-in that starts at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from launcher.clock import WallClock
from launcher.config import ServerConfig
from launcher.errors import MachineError, StartFailed, UsageError
from launcher.failure import Kind
from launcher.ports import free_port, is_listening
from launcher.process import is_gone, read_process, token_of
from launcher.server import LaunchRequest, Server, ServerRecord, StartLimits, StopLimits, launch, reap
from launcher.version import SglangBuild

STAND_IN = str(Path(__file__).parent / "stand_in.py")
BUILD = SglangBuild("0.5.18")
QUICK = StopLimits(term_s=3.0, kill_s=5.0)


def a_request(tmp_path: Path, *command: str, port: int | None = None) -> LaunchRequest:
    return LaunchRequest(
        command=command,
        config=ServerConfig("/models/none"),
        build=BUILD,
        port=port or free_port(),
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        log_path=tmp_path / "server.log",
    )


@asynccontextmanager
async def launched(tmp_path: Path, *command: str, speed: float = 1.0) -> AsyncIterator[Server]:
    server = await launch(a_request(tmp_path, *command), WallClock(speed))
    try:
        yield server
    finally:
        report = await server.stop(QUICK)
        assert report.clean
        assert not is_listening(server.record.port)


def stand_in(mode: str) -> tuple[str, ...]:
    return (sys.executable, STAND_IN, mode)


async def test_a_server_that_serves_is_ready_alive_and_then_gone(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("worker")) as server:
        timeline = await server.wait_ready(StartLimits(hard_s=20))
        assert timeline.ready_s is not None
        assert server.poll() is None
        assert len(server.record.children) == 1
    report = await server.stop()
    assert not report.killed
    assert set(report.ended) == {server.record.pid, server.record.children[0].pid}
    assert all(is_gone(process) for process in (server.record.root, *server.record.children))


async def test_a_lost_scheduler_that_the_log_tells_of_is_not_waited_for(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("bereaved")) as server:
        await server.wait_ready(StartLimits(hard_s=20))
        assert server.poll() is None
        (child,) = server.record.children
        os.kill(child.pid, signal.SIGKILL)
        while "SIGQUIT" not in server.log.text():
            await asyncio.sleep(0.02)
        failure = server.poll()
        assert failure is not None
        assert failure.kind is Kind.KILLED


async def test_a_child_that_outlives_the_launcher_is_killed_before_the_deadline(tmp_path: Path) -> None:
    server = await launch(a_request(tmp_path, *stand_in("straggler")), WallClock())
    await server.wait_ready(StartLimits(hard_s=20))
    report = await server.stop(StopLimits(term_s=30.0, straggler_s=0.2))
    assert report.killed
    assert report.clean
    assert report.took_s < 30.0


async def test_the_child_has_a_session_a_token_and_no_metrics_directory(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("good")) as server:
        await server.wait_ready(StartLimits(hard_s=20))
        process = read_process(server.record.pid)
        assert process is not None
        assert process.session == process.pgid == process.pid != os.getsid(0)
        assert token_of(process.pid) == server.record.token
        assert b"PROMETHEUS_MULTIPROC_DIR" not in Path(f"/proc/{process.pid}/environ").read_bytes()


async def test_a_shell_script_that_does_not_exec_is_ended_through_its_child(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f'#!/bin/sh\n{sys.executable} {STAND_IN} good "$@"\nexit $?\n')
    script.chmod(0o755)
    async with launched(tmp_path, str(script)) as server:
        await server.wait_ready(StartLimits(hard_s=20))
        assert len(server.record.children) == 1
    assert not (await server.stop()).killed


async def test_a_child_in_a_session_of_its_own_is_found_by_the_token(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("orphan")) as server:
        await server.wait_ready(StartLimits(hard_s=20))
        (child,) = server.record.children
        os.kill(server.record.pid, signal.SIGKILL)
        while server.poll() is None:
            await asyncio.sleep(0.01)
    assert is_gone(child)


async def test_a_death_at_start_is_a_failure_with_its_exit_code(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("dies")) as server:
        with pytest.raises(StartFailed) as failed:
            await server.wait_ready(StartLimits(hard_s=20))
        assert failed.value.failure.exit_code == 7
        assert any("something is wrong" in line for line in failed.value.failure.evidence)


async def test_silence_ends_at_the_quiet_limit(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("mute")) as server:
        with pytest.raises(StartFailed) as failed:
            await server.wait_ready(StartLimits(quiet_s=0.5, hard_s=20))
        assert failed.value.failure.kind is Kind.HANG_STARTUP


async def test_a_log_that_moves_outlives_the_quiet_limit(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("slow")) as server:
        await server.wait_ready(StartLimits(quiet_s=0.8, hard_s=20))


async def test_a_log_that_moves_does_not_outlive_the_hard_limit(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("slow")) as server:
        with pytest.raises(StartFailed) as failed:
            await server.wait_ready(StartLimits(quiet_s=20, hard_s=0.4))
        assert failed.value.failure.kind is Kind.HANG_STARTUP


async def test_a_server_that_answers_nothing_is_not_ready(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("deaf")) as server:
        with pytest.raises(StartFailed) as failed:
            await server.wait_ready(StartLimits(hard_s=20, answer_s=0.5))
        assert failed.value.failure.kind is Kind.HANG_STARTUP
        assert "answered no request" in failed.value.failure.sentence


async def test_a_server_that_could_not_bind_is_not_waited_for(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("bind")) as server:
        with socket.create_server(("127.0.0.1", server.record.port)):
            with pytest.raises(StartFailed) as failed:
                await server.wait_ready(StartLimits(hard_s=20))
            assert failed.value.failure.kind is Kind.PORT_IN_USE
            assert str(os.getpid()) in failed.value.failure.sentence


async def test_sigterm_that_is_ignored_becomes_sigkill(tmp_path: Path) -> None:
    server = await launch(a_request(tmp_path, *stand_in("stubborn")), WallClock())
    await server.wait_ready(StartLimits(hard_s=20))
    report = await server.stop(StopLimits(term_s=0.3, kill_s=5))
    assert report.killed
    assert report.clean
    assert report.exit_code == -signal.SIGKILL


async def test_the_event_loop_runs_on_meanwhile(tmp_path: Path) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    pulse = asyncio.create_task(beat())
    async with launched(tmp_path, *stand_in("slow")) as server:
        await server.wait_ready(StartLimits(hard_s=20))
    pulse.cancel()
    assert beats > 20


RUNNER = """#!/bin/sh
# A container runner: `run` starts the words in a session of their own, without our environment, and waits for them.
home=$(dirname "$0")
case $1 in
    run) shift
        while [ "$1" != image ]; do [ "$1" = --label ] && echo "$2" > "$home/label"; shift; done; shift
        env -i setsid "$@" & echo $! > "$home/pid"; wait ;;
    ps) [ "label=$(cat "$home/label")" = "$4" ] || exit 1
        grep -qs "^State:.[^Z]" "/proc/$(cat "$home/pid")/status" && echo box1 ;;
    stop) kill "$(cat "$home/pid")"; sleep 0.3 ;;
esac
"""


async def test_a_container_that_outlives_its_client_is_stopped_by_its_label(tmp_path: Path) -> None:
    runner = tmp_path / "docker"
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    server = await launch(a_request(tmp_path, str(runner), "run", "--rm", "image", *stand_in("good")), WallClock())
    await server.wait_ready(StartLimits(hard_s=20))
    os.kill(server.record.pid, signal.SIGKILL)
    report = await reap(ServerRecord.from_dict(server.record.as_dict()), WallClock(), QUICK)
    assert report.clean
    assert not is_listening(server.record.port)
    assert server.exit_code == -signal.SIGKILL


async def test_an_orphan_is_reaped_from_its_record_alone(tmp_path: Path) -> None:
    server = await launch(a_request(tmp_path, *stand_in("worker")), WallClock())
    await server.wait_ready(StartLimits(hard_s=20))
    record = ServerRecord.from_dict(server.record.as_dict())
    assert record == server.record
    report = await reap(record, WallClock(), QUICK)
    assert report.clean
    assert server.exit_code is not None


async def test_a_stranger_with_our_pid_is_not_reaped() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    try:
        record = ServerRecord(stranger.pid, time.clock_gettime(time.CLOCK_BOOTTIME) - 50, stranger.pid, "t", 1)
        report = await reap(record, WallClock(), QUICK)
        assert report.clean
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_port_in_use_is_refused_before_the_launch(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(MachineError, match=rf"port {port} is not free: pid {os.getpid()} "):
            await launch(a_request(tmp_path, *stand_in("good"), port=port), WallClock())


async def test_a_command_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no program '/no/such/python'"):
        await launch(a_request(tmp_path, "/no/such/python", "-m", "sglang.launch_server"), WallClock())


async def test_at_a_fast_clock_a_short_limit_still_leaves_python_time_to_start(tmp_path: Path) -> None:
    async with launched(tmp_path, *stand_in("good"), speed=200.0) as server:
        await server.wait_ready(StartLimits(quiet_s=5, hard_s=30))
