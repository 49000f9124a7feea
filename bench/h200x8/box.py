"""One box and one server at a time, started through the launcher; what is seen of it becomes rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.h200.truth import BACK_S, NEAR_BYTES
from launcher.cleanslate import prove, take_baseline
from launcher.clock import WallClock
from launcher.config import FlagValue, ServerConfig
from launcher.failure import Failure
from launcher.observe.read import ServerReader
from launcher.ports import free_port
from launcher.server import LaunchRequest, Server, launch
from tuner.daemon.assemble import GPU_STATE, World
from tuner.live import LOGS, MEASURED_WITH
from tuner.measure.live import ServerDied, measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult, Setting


@dataclass(frozen=True, slots=True)
class Slate:
    """How one server ended."""

    took_s: float
    """Until its processes were gone."""
    back_s: float
    """Until the driver showed every GPU's memory as free as before, at most a minute."""
    left_bytes: tuple[int, ...]
    """What each GPU still held then, more than before."""


class Box:
    """The study's machine. `start` proves the clean slate before, `end` measures it after."""

    def __init__(self, world: World, out: Path) -> None:
        self.world = world
        self.clock = WallClock(world.study.clock_speed)
        self._out = out
        self._baseline = take_baseline(world.gpus)
        self._before = self.used_bytes()

    async def start(self, setting: Setting, extra: Mapping[str, FlagValue] | None = None) -> Server:
        """Raises StartFailed (the server is ended then), CleanSlateError."""
        config = self.world.study.server_config(setting)
        return await self.launch(replace(config, flags={**config.flags, **(extra or {})}), self._command)

    async def start_yaml(self, best: Path) -> Server:
        """From a configuration file, read by SGLang itself."""
        return await self.launch(ServerConfig(self.world.study.model_path), (*self._command, "--config", str(best)))

    async def launch(self, config: ServerConfig, command: tuple[str, ...]) -> Server:
        await prove(self._baseline, self.world.gpus, self.clock)
        logs = self._out / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        request = LaunchRequest(
            command=command,
            config=replace(config, flags={**MEASURED_WITH, **config.flags}),
            build=self.world.build,
            port=free_port(set()),
            env=self.world.study.server_env(),
            log_path=logs / f"{len(list(logs.iterdir())) + 1:03}.log",
            gpus=self.world.gpus,
        )
        server = await launch(request, self.clock)
        try:
            await server.wait_ready()
        except BaseException:
            await server.stop()
            raise
        return server

    async def load(self, server: Server, concurrency: int, wall_s: float) -> LevelResult | Failure:
        """One level of the study's workload for so long, however narrow its interval; the Failure that it died of."""
        limits = LevelLimits(wall_s * self.clock.speed, target_share=1e-6)
        with ServerReader(server.url, clock=self.clock) as reader:
            result = await measure_level(
                server.url,
                self.world.workload,
                concurrency,
                limits,
                self.clock,
                gpus=self.world.gpus,
                reader=reader,
                is_dead=server.poll,
            )
        return result.failure if isinstance(result, ServerDied) else result

    async def end(self, server: Server, *, kill: bool = False) -> Slate:
        """SIGTERM through the launcher; `kill`: SIGKILL of SGLang's own launcher first."""
        began_s = self.clock.now_s()
        if kill:
            os.kill(server.record.pid, signal.SIGKILL)
        await server.stop()
        took_s = self.clock.now_s() - began_s
        while max(self._left_bytes(), default=0) > NEAR_BYTES and self.clock.now_s() - began_s < BACK_S:
            await asyncio.sleep(0.1)
        return Slate(took_s, self.clock.now_s() - began_s, self._left_bytes())

    def used_bytes(self) -> tuple[int, ...]:
        """What each GPU holds, as the driver tells it."""
        return tuple(gpu.memory_used_bytes or 0 for gpu in self.world.gpus.read(memory_only=True))

    def free_gib(self) -> tuple[float, ...]:
        """What each GPU has free, as the driver tells it."""
        return tuple((gpu.memory_free_bytes or 0) / 2**30 for gpu in self.world.gpus.read(memory_only=True))

    @property
    def gpu_state(self) -> Path:
        """Where a simulated box keeps its GPUs."""
        return self.world.directory / GPU_STATE

    @property
    def _command(self) -> tuple[str, ...]:
        return self.world.study.launch_command(self.gpu_state)

    def _left_bytes(self) -> tuple[int, ...]:
        return tuple(now - before for now, before in zip(self.used_bytes(), self._before, strict=True))


def kvtop_json(url: str, gpu_state: Path | None) -> dict[str, object]:
    """What `kvtop --once --json` shows of one server and all GPUs. Raises RuntimeError with what it said instead."""
    simulated = [] if gpu_state is None else ["--gpus", f"simulated:{gpu_state}"]
    words = [sys.executable, "-m", "tui", "--url", url, "--once", "--json", "--window", "3", *simulated]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    if done.returncode:
        raise RuntimeError(f"kvtop ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    told: dict[str, object] = json.loads(done.stdout)
    return told


def rank_pid(server: Server, rank: int) -> int:
    """The scheduler process of one tensor-parallel rank, found by its title among this server's own processes.

    SGLang 0.5.17 names it "sglang::scheduler_TP1", and plainly "sglang::scheduler" where there is one rank.
    """
    titles = dict(_titles(server))
    schedulers = [pid for pid, title in titles.items() if "scheduler" in title]
    found = schedulers if len(schedulers) == 1 else [p for p in schedulers if re.search(rf"TP{rank}\b", titles[p])]
    if not found:
        raise LookupError(f"no scheduler of rank {rank} among the children of {server.record.pid}")
    return found[0]


def _titles(server: Server) -> Iterator[tuple[int, str]]:
    for child in server.record.children:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield child.pid, " ".join(psutil.Process(child.pid).cmdline())
