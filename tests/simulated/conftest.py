"""Starts simulated server processes for tests, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

_PATIENCE_S = 30.0


@dataclass(slots=True)
class Served:
    """One running server."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path
    gpu_state: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=20)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=20)

    def generate(self, prompt: int = 8, output: int = 4, first_id: int = 1, **more: object) -> httpx.Response:
        ids = list(range(first_id, first_id + prompt))
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": output, "ignore_eos": True}, **more}
        return self.post("/generate", body)

    def scheduler(self) -> psutil.Process:
        """The first rank's, by its title; waits until the child has it."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            children = psutil.Process(self.process.pid).children()
            found[:] = [child for child in children if child.cmdline()[0].startswith("sglang::scheduler")]
            return bool(found)

        Servers.until(is_there)
        return found[0]

    def wait_gone(self) -> int:
        return self.process.wait(_PATIENCE_S)


class Servers:
    """What tests start servers with."""

    QWEN = "qwen2.5-32b-1x-h200"
    KIMI = "kimi-k2.5-8x-rtx-pro-6000"

    @staticmethod
    def until(what: Callable[[], bool]) -> None:
        """Poll until it is so; a test fails when it never is."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            if what():
                return
            time.sleep(0.02)
        raise AssertionError("it never happened")

    @staticmethod
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    @contextlib.contextmanager
    def launched(
        self, tmp_path: Path, *flags: str, preset: str = QWEN, speed: float = 400, port: int | None = None
    ) -> Iterator[Served]:
        """A server process that was launched, in a session of its own; killed at the end with all its children."""
        chosen = port or self.free_port()
        gpu_state, log_path = tmp_path / "gpus", tmp_path / f"server-{chosen}-{time.monotonic_ns()}.log"
        command = [
            *(sys.executable, "-m", "launcher.simulated", "--preset", preset, "--speed", str(speed)),
            *("--gpu-state", str(gpu_state), "--port", str(chosen), "--model-path", "models/test", *flags),
        ]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield Served(process, f"http://127.0.0.1:{chosen}", log_path, gpu_state)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextlib.contextmanager
    def serving(self, tmp_path: Path, *flags: str, preset: str = QWEN, speed: float = 400) -> Iterator[Served]:
        """A server process that is ready."""
        with self.launched(tmp_path, *flags, preset=preset, speed=speed) as server:
            self.until(lambda: "fired up" in server.log or server.process.poll() is not None)
            assert server.process.poll() is None, server.log
            yield server


@pytest.fixture(scope="session")
def servers() -> Servers:
    return Servers()
