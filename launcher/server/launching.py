"""Make the process: a session of its own, our token in its environment, everything it says in one log
file."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.clock import Clock
from launcher.command import Wrapper, check_executable, compose, flag_value, unwrap
from launcher.config import ServerConfig
from launcher.errors import MachineError, UsageError
from launcher.flags import to_argv
from launcher.gpus import GpuReader
from launcher.ports import find_listeners, is_free
from launcher.process import TOKEN_VARIABLE, read_process, read_table
from launcher.server.record import ServerRecord
from launcher.server.running import Server
from launcher.version import SglangBuild

LOCAL_HOST = "127.0.0.1"
_UNWANTED = ("PROMETHEUS_MULTIPROC_DIR",)
"""SGLang would write its metrics into that directory and add those of earlier servers to its own."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One server to be started."""

    command: tuple[str, ...]
    config: ServerConfig
    build: SglangBuild
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment."""
    log_path: Path = Path("server.log")
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    gpus: GpuReader | None = None
    """Read when the server fails, to tell its own memory from a stranger's."""


async def launch(request: LaunchRequest, clock: Clock) -> Server:
    """Start it and return at once.

    Raises UsageError when the command is no program or the build lacks a flag, MachineError when the port
    is held or the process cannot be made.
    """
    child, record = await asyncio.to_thread(_start, request)
    return Server(request.config, record, child, request.log_path, clock, api_key=_api_key(request), gpus=request.gpus)


def words_of(request: LaunchRequest) -> tuple[str, ...]:
    """The words of the process, wrapper and all; redact them before they are shown."""
    host = () if "host" in request.config.flags or flag_value(request.command, "host") else ("--host", LOCAL_HOST)
    argv = (*to_argv(request.config, request.build), *host, "--port", str(request.port))
    return compose(request.command, argv, _added(request))


def _start(request: LaunchRequest) -> tuple[subprocess.Popen[bytes], ServerRecord]:
    words, added = words_of(request), _added(request)
    check_executable(words, added.get("PATH"))
    _check_port(request.port)
    env = {name: value for name, value in {**os.environ, **added}.items() if name not in _UNWANTED}
    request.log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(request.log_path, "wb") as log:
        child = _spawn(words, env, log.fileno())
    started = read_process(child.pid)
    start_time = started.start_time if started else time.clock_gettime(time.CLOCK_BOOTTIME)
    record = ServerRecord(
        pid=child.pid,
        start_time=start_time,
        pgid=child.pid,
        token=request.token,
        port=request.port,
        container_runner=_container_runner(request.command),
    )
    return child, record


def _spawn(words: tuple[str, ...], env: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    except PermissionError:
        raise UsageError(f"command: {words[0]!r} is not executable") from None
    except OSError as error:
        raise MachineError(f"{words[0]} cannot be started: {error.strerror}") from None


def _added(request: LaunchRequest) -> dict[str, str]:
    # SPT_NOENV keeps SGLang's process titles from overwriting the environment, where our token is looked for.
    return {**request.env, TOKEN_VARIABLE: request.token, "SPT_NOENV": "1"}


def _check_port(port: int) -> None:
    if is_free(port):
        return
    holders = find_listeners(port, read_table())
    who = " and ".join(holder.describe() for holder in holders) or "connections that are still closing"
    raise MachineError(f"port {port} is not free: {who}")


def _container_runner(command: tuple[str, ...]) -> str:
    wrapped = unwrap(command)
    makes_one = wrapped.wrapper is Wrapper.CONTAINER and wrapped.outer[-1] == "run"
    return shlex.join(wrapped.outer[:-1]) if makes_one else ""


def _api_key(request: LaunchRequest) -> str | None:
    """The key that may end requests: the admin's where there is one."""
    for name in ("admin-api-key", "api-key"):
        value = request.config.flags.get(name) or flag_value(request.command, name)
        if value:
            return str(value)
    return None
