"""Start and end a real SGLang again and again: seconds, and what is left behind.

Needs KVTUNE_SGLANG_PYTHON and KVTUNE_TINY_LLAMA, as `scripts/with-cpu-sglang` sets them:
    sh scripts/with-cpu-sglang .venv/bin/python -m bench.lifecycle [CYCLES]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from bench.figures import figure
from launcher.clock import WallClock
from launcher.config import ServerConfig
from launcher.errors import StartFailed
from launcher.ports import free_port
from launcher.process import find_family, read_table
from launcher.server import LaunchRequest, Server, launch
from launcher.version import detect_build

ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
}
FLAGS = {
    "skip-tokenizer-init": True,
    "device": "cpu",
    "attention-backend": "torch_native",
    "max-total-tokens": 4096,
}


async def start(folder: Path) -> Server:
    command = (os.environ["KVTUNE_SGLANG_PYTHON"], "-m", "sglang.launch_server")
    request = LaunchRequest(
        command=command,
        config=ServerConfig(os.environ["KVTUNE_TINY_LLAMA"], 0.05, flags=dict(FLAGS)),
        build=detect_build(command, ENV, timeout_s=60),
        port=free_port(),
        env=ENV,
        log_path=folder / "server.log",
    )
    return await launch(request, WallClock())


def alive(server: Server) -> int:
    record = server.record
    return sum(not one.zombie for one in find_family(read_table(), record.root, record.pgid, record.token))


async def cycle(folder: Path) -> tuple[float, float, int]:
    """Seconds to start, seconds to stop, processes left."""
    began_s = time.monotonic()
    server = await start(folder)
    try:
        await server.wait_ready()
        ready_s = time.monotonic() - began_s
    finally:
        report = await server.stop()
    return ready_s, report.took_s, alive(server) + len(report.leftovers)


async def death_at_start(folder: Path) -> float:
    """Seconds from SIGKILL of the launcher in mid-start to the StartFailed."""
    server = await start(folder)
    killed_s = [0.0]

    async def kill() -> None:
        await asyncio.sleep(5.0)
        os.kill(server.record.pid, signal.SIGKILL)
        killed_s[0] = time.monotonic()

    killer = asyncio.create_task(kill())
    try:
        await server.wait_ready()
    except StartFailed:
        return time.monotonic() - killed_s[0]
    finally:
        await killer
        await server.stop()
    raise RuntimeError("the server became ready before it was killed")


async def main(cycles: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    # Ended from outside, it still ends its server.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen_s = await death_at_start(folder)
        rows = []
        for number in range(cycles):
            rows.append(await cycle(folder))
            ready_s, stop_s, left = rows[-1]
            print(f"{number + 1}: ready in {ready_s:.1f} s, ended in {stop_s:.1f} s, left {left}", flush=True)
    figure("server_ready_s", statistics.median(row[0] for row in rows), "s")
    figure("server_end_s", statistics.median(row[1] for row in rows), "s")
    figure("processes_left", sum(row[2] for row in rows), "processes")
    figure("death_seen_s", seen_s, "s")


if __name__ == "__main__":
    made = argparse.ArgumentParser("bench.lifecycle")
    made.add_argument("cycles", type=int, nargs="?", default=10)
    asyncio.run(main(made.parse_args().cycles))
