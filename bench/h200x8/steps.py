"""The steps of one run over several GPUs. Each writes rows; what one cannot do is a row that says so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.h200.truth import plain
from bench.h200x8.box import Box, kvtop_json, rank_pid
from launcher.config import FlagValue
from launcher.failure import Stage
from launcher.host import read_host
from launcher.server import Server
from tuner.daemon.assemble import build_searcher
from tuner.journal import read_study
from tuner.journal.home import find_study
from tuner.journal.view import StudyView
from tuner.memory import HostMemory
from tuner.trial import Setting, TrialResult

CONCURRENCY = 64
LOAD_S = 45.0
RAMP_S = 15.0
STARVED_LEAVE_GIB = 0.2
HICACHE_GB = 20
OVERCOMMITTED = 1.3

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Run:
    """What every step gets."""

    box: Box
    study_path: Path
    out: Path
    budget: str
    write: Callable[[Row], None]

    @property
    def tp_size(self) -> int:
        return self.box.world.study.tp_size

    @property
    def simulated(self) -> bool:
        return self.box.world.study.simulated

    @property
    def best_yaml(self) -> Path:
        return self.out / "best-config.yaml"

    def view(self) -> StudyView:
        """The study of the step `study`."""
        return read_study(find_study((self.out / "name").read_text(encoding="utf-8").strip()))

    def setting(self) -> Setting:
        """What the study exported; without one, 0.85."""
        known = self.view().export_setting if (self.out / "name").exists() else None
        return known or Setting(0.85, "bfloat16")


async def study(run: Run) -> None:
    """kvtune-auto as a user runs it."""
    words = [sys.executable, "-m", "tuner.cli", "--config", str(run.study_path), "--budget", run.budget]
    words += ["--output", str(run.best_yaml), "--name-file", str(run.out / "name")]
    began_s = time.monotonic()
    with open(run.out / "progress.log", "wb") as log:
        code = (await asyncio.to_thread(subprocess.run, words, stdout=log, stderr=log)).returncode
    run.write({"code": code, "budget": run.budget, "wall_s": time.monotonic() - began_s})
    if (run.out / "name").exists():
        view = run.view()
        run.write({"explanation": view.explanation, "best": plain(view.incumbent)})
        for trial in view.trials:
            run.write({"trial": plain(trial)})
    if code:
        raise RuntimeError(f"kvtune-auto ended with code {code}; its last words are in {log.name}")


async def serve(run: Run) -> None:
    """SGLang loads the export; under load both programs count all ranks; then one rank is killed."""
    if not run.best_yaml.is_file():
        raise LookupError(f"there is no {run.best_yaml} to start from")
    server = await run.box.start_yaml(run.best_yaml)
    try:
        run.write({"predicted": _predictions(run), **_seen(run, server)})
        await _watched_load(run, server, _kill_rank)
    finally:
        run.write({"slate": plain(await run.box.end(server))})


async def starved(run: Run) -> None:
    """A stranger takes one GPU's memory after the start: the OOM is one rank's, the end is everybody's."""
    server = await run.box.start(run.setting())
    rank = run.tp_size - 1
    try:
        with _ballast(rank) as taken_gib:
            outcome = await run.box.load(server, CONCURRENCY, LOAD_S)
            run.write({"starved_rank": rank, "taken_gib": taken_gib, "outcome": plain(outcome)})
    finally:
        run.write({"slate": plain(await run.box.end(server))})


async def ranks(run: Run) -> None:
    """DP attention: as many data-parallel ranks as tensor-parallel ones; their sums in both programs."""
    flags: dict[str, FlagValue] = {"dp-size": run.tp_size, "enable-dp-attention": True}
    run.write({"predicted": _predictions(run, flags)})
    server = await run.box.start(run.setting(), flags)
    try:
        run.write(_seen(run, server))
        await _watched_load(run, server)
    finally:
        run.write({"slate": plain(await run.box.end(server))})


async def host(run: Run) -> None:
    """HiCache on every rank: what it takes of the host, a level, and its memory back after SIGKILL."""
    run.write({"ranks": run.tp_size, "hicache_size_gb": HICACHE_GB, "host_available_before_gb": _host_gb(run)})
    began_s = time.monotonic()
    server = await run.box.start(_with_hicache(run, HICACHE_GB))
    run.write({"start_s": time.monotonic() - began_s, "host_available_gb": _host_gb(run), **_seen(run, server)})
    try:
        await _watched_load(run, server)
    finally:
        slate = await run.box.end(server, kill=True)
        run.write({"slate": plain(slate), "host_available_after_gb": _host_gb(run)})


async def overcommit(run: Run) -> None:
    """A HiCache that one rank could pin and all together cannot: what is expected of it, and how its start ends."""
    fits_gb = HostMemory(read_host().available_bytes, run.tp_size, run.box.world.build.version).likely_gb
    setting = _with_hicache(run, round(OVERCOMMITTED * fits_gb))
    survival = build_searcher(run.box.world).knowledge(()).memory.predict(setting).survival[Stage.HOST_POOL]
    run.write({"hicache_size_gb": setting.hicache_size_gb, "fits_gb": fits_gb, "survival_expected": survival})
    began_s = time.monotonic()
    try:
        server = await run.box.start(setting)
    finally:
        run.write({"ended_s": time.monotonic() - began_s, "host_available_after_gb": _host_gb(run)})
    run.write({"slate": plain(await run.box.end(server))})


def _host_gb(run: Run) -> float | None:
    """Free host memory. A simulated box's is not this machine's."""
    return None if run.simulated else read_host().available_bytes / 1e9


def _with_hicache(run: Run, hicache_size_gb: int) -> Setting:
    return replace(run.setting(), hicache_size_gb=hicache_size_gb)


async def _watched_load(run: Run, server: Server, strike: Callable[[Run, Server], float] | None = None) -> None:
    """A level with kvtop beside it; `strike` ends it and tells when it struck."""
    level = asyncio.create_task(run.box.load(server, CONCURRENCY, LOAD_S))
    await asyncio.sleep(RAMP_S)
    gpu_state = run.box.gpu_state if run.simulated else None
    try:
        shown: object = await asyncio.to_thread(kvtop_json, server.url, gpu_state)
    except RuntimeError as error:
        shown = str(error)
    run.write({"kvtop": shown, "nvml_used_bytes": run.box.used_bytes(), "free_gib": run.box.free_gib()})
    struck_s = strike(run, server) if strike is not None else None
    outcome = await level
    row: dict[str, object] = {"outcome": plain(outcome)}
    if struck_s is not None:
        row["death_seen_s"] = time.monotonic() - struck_s
    run.write(row)


def _kill_rank(run: Run, server: Server) -> float:
    os.kill(rank_pid(server, run.tp_size - 1), signal.SIGKILL)
    return time.monotonic()


def _predictions(run: Run, flags: Mapping[str, FlagValue] | None = None) -> Row:
    """What the memory model says of the setting before any start, and after the study's starts where it had the same
    flags.
    """
    world = run.box.world
    study = world.study.model_copy(update={"flags": {**world.study.flags, **(flags or {})}})
    searcher = build_searcher(replace(world, study=study))
    histories = {"before_any_start": (), **({} if flags else {"after_the_study": _history(run)})}
    return {when: plain(searcher.knowledge(told).memory.predict(run.setting())) for when, told in histories.items()}


def _history(run: Run) -> tuple[TrialResult, ...]:
    return run.view().trials if (run.out / "name").exists() else ()


def _seen(run: Run, server: Server) -> Row:
    """What this start showed: in its log, and on each GPU."""
    timeline = server.log.timeline()
    return {"memory": plain(timeline.memory), "ready_s": timeline.ready_s, "free_gib": run.box.free_gib()}


@contextmanager
def _ballast(gpu: int) -> Iterator[float]:
    words = [sys.executable, "-m", "bench.h200x8.ballast", str(gpu), str(STARVED_LEAVE_GIB), str(2 * LOAD_S)]
    stranger = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    try:
        yield float(stranger.stdout.readline())
    finally:
        stranger.kill()
        stranger.wait()


STEPS: Mapping[str, Callable[[Run], Awaitable[None]]] = {
    "study": study,
    "serve": serve,
    "starved": starved,
    "ranks": ranks,
    "host": host,
    "overcommit": overcommit,
}
UNSIMULATED = frozenset({"starved", "ranks", "overcommit"})
"""The simulated engine has no DP attention and none of this host's memory; no stranger can take its GPUs' either."""
