"""How fast the simulated engine is: a scripted two-hour study in virtual time, and the process under load.

python -m bench.simulated
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import aiohttp

from bench.calibration.reference import FIELD_LENGTHS, KIMI, QWEN
from bench.calibration.replay import Client
from bench.figures import figure
from launcher.config import ServerConfig
from launcher.simulated.box import VirtualBox
from launcher.simulated.presets import load_preset

_BUDGET_S = 7200.0
_LEVEL_S = 240.0
_SETTINGS = (
    (0.85, "bfloat16", 0), (0.88, "bfloat16", 0), (0.93, "bfloat16", 0), (0.90, "bfloat16", 20),
    (0.89, "bfloat16", 0), (0.91, "bfloat16", 0), (0.90, "fp8_e4m3", 0), (0.70, "bfloat16", 0),
)  # fmt: skip
_CONCURRENCIES = (48, 100, 150)
_LOAD_WALL_S = 5.0
_CLIENTS = 64


def two_hour_study() -> tuple[float, float, int, int]:
    """Starts and levels for two virtual hours: (wall s, virtual s, starts, finished responses)."""
    began = time.perf_counter()
    box = VirtualBox(load_preset(KIMI), seed=7)
    spent_s, starts, finished = 0.0, 0, 0
    while spent_s < _BUDGET_S:
        fraction, dtype, hicache = _SETTINGS[starts % len(_SETTINGS)]
        begun = box.start(ServerConfig(KIMI, fraction, dtype, hicache, {"tp-size": 8}))
        starts += 1
        spent_s += begun.took_s
        if begun.engine is None:
            continue
        client = Client(begun.engine, FIELD_LENGTHS, seed=starts)
        clients = 0
        for concurrency in _CONCURRENCIES:
            client.begin(concurrency - clients)
            clients = concurrency
            client.run_until(begun.engine.now_s + _LEVEL_S)
        finished += client.finished
        spent_s += begun.engine.now_s + box.stop()
    return time.perf_counter() - began, spent_s, starts, finished


async def server_requests_per_s() -> float:
    """Tiny requests against the process at a speed that makes the engine's own time nothing."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as directory:
        process = await _start(Path(directory), port)
        try:
            url = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession() as session:
                await _until_healthy(session, url)
                return await _load(session, url)
        finally:
            process.terminate()
            await process.wait()


async def _start(directory: Path, port: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "launcher.simulated", "--preset", QWEN, "--speed", "5000"),
        *(
            "--gpu-state",
            str(directory),
            "--port",
            str(port),
            "--model-path",
            "tiny",
            "--log-level-http",
            "error",
        ),
        stdout=DEVNULL,
        stderr=DEVNULL,
    )


async def _until_healthy(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(200):
        try:
            async with session.get(url + "/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the simulated server did not become ready in 20 s")


async def _load(session: aiohttp.ClientSession, url: str) -> float:
    body = {"input_ids": list(range(16)), "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    end, done = time.perf_counter() + _LOAD_WALL_S, 0

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < end:
            async with session.post(url + "/generate", json=body) as response:
                await response.read()
                done += response.status == 200

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    return done / (time.perf_counter() - began)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Print the figures."""
    wall_s, virtual_s, starts, finished = two_hour_study()
    print(f"simulated study: {virtual_s:.0f} s, {starts} starts, {finished} responses")
    rate = asyncio.run(server_requests_per_s())
    figure("two_hour_study_wall_s", wall_s, "s")
    figure("server_requests_per_s", rate, "requests/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
