"""The life of the simulated server process: start-up in scaled time, serving, draining, dying."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from launcher.simulated.boot import KILLED_ITSELF, Boot, plan_boot
from launcher.simulated.box import hash_seed, port_taken_line
from launcher.simulated.engine import Engine
from launcher.simulated.events import Crashed, Finished, LogRecord
from launcher.simulated.faults import Faults, parse_faults, with_noise
from launcher.simulated.gpus import prepare_gpu_state
from launcher.simulated.gpustate import changes_box, holds_box, read_box, read_held, sweep
from launcher.simulated.logtext import Timed, runtime_line
from launcher.simulated.memory import GIB
from launcher.simulated.presets import Preset, load_preset
from launcher.simulated.server.app import build_app
from launcher.simulated.server.arguments import Arguments
from launcher.simulated.server.children import Children
from launcher.simulated.server.driver import Driver, Ticket
from launcher.simulated.server.state import ServerState

_WATCH_S = 1.0
_DRAIN_POLL_S = 5.0


class ServerProcess:
    """One start. `await run()` returns the exit code, unless the process kills itself as SGLang does."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        base = load_preset(arguments.preset)
        self._faults: Faults = parse_faults((*base.faults, *arguments.faults))
        self._preset: Preset = with_noise(base, self._faults)
        self._launched_wall_s = time.monotonic()
        self._launched_unix_s = time.time()
        self._state_dir = self._prepared_state()
        # Strangers, zombies and memory that is not back yet: what others hold on our GPUs is taken.
        held = _taken_gib(self._state_dir, self._preset.box.gpu_count)
        self._boot: Boot = plan_boot(
            self._preset,
            arguments.config,
            faults=replace(self._faults, leftover_gib=held),
            seed=str(arguments.seed),
            version=arguments.version,
        )
        self._state = ServerState(arguments, self._preset, self._faults, self._boot)
        self._children: Children | None = None
        self._terminate = asyncio.Event()
        self._interrupt = asyncio.Event()

    # -- life

    async def run(self) -> int:
        """Start, serve until told to stop, and leave with SGLang's exit code."""
        code = await self._start_up()
        if code is not None:
            return code
        runner = web.AppRunner(
            build_app(self._state, self._access_log),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            return await self._serve(runner)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await runner.cleanup()
            self._end_children()

    async def _start_up(self) -> int | None:
        """Print the start's lines at their times; the exit code if it dies."""
        times = self._boot.times
        for line in self._boot.lines:
            if line.at_s > times.http_s and self._boot.died_s is None:
                continue
            await self._sleep_until(line.at_s)
            if self._children is None and line.at_s >= times.distributed_s:
                self._spawn()
            self._print(line)
            self._hold(self._used_bytes_at(line.at_s), 0.3)
        if self._boot.exit_code is None:
            await self._sleep_until(times.http_s)
            return None
        self._end_children()
        if self._boot.exit_code == KILLED_ITSELF:
            _kill_itself()
        return self._boot.exit_code

    async def _serve(self, runner: web.AppRunner) -> int:
        arguments = self._arguments
        if self._faults.port_taken:
            return self._port_is_taken()
        try:
            await web.TCPSite(runner, arguments.host, arguments.port, backlog=2048).start()
        except OSError:
            return self._port_is_taken()
        self._say(f"INFO:     Uvicorn running on http://{arguments.host}:{arguments.port} (Press CTRL+C to quit)")
        await self._sleep_until(self._boot.times.ready_s)
        driver = self._state.driver = self._open_driver()
        self._state.ready = True
        for line in self._boot.lines:
            if line.at_s > self._boot.times.http_s:
                self._print(line)
        self._handle_signals()
        loop = asyncio.create_task(driver.run())
        watch = asyncio.create_task(self._watch())
        try:
            return await self._until_told(driver)
        finally:
            loop.cancel()
            watch.cancel()

    async def _until_told(self, driver: Driver) -> int:
        told = [asyncio.create_task(self._terminate.wait()), asyncio.create_task(self._interrupt.wait())]
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        for task in told:
            task.cancel()
        self._state.draining = True
        if self._terminate.is_set():
            self._say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        while not self._interrupt.is_set():
            await asyncio.sleep(min(_DRAIN_POLL_S, 0.2 + _DRAIN_POLL_S / self._arguments.speed))
            self._say(
                f"Gracefully exiting... Remaining number of requests {driver.pending}. "
                f"Remaining requests remaining_rids={driver.pending_ids[:5]}."
            )
            if not driver.pending:
                break
        await asyncio.sleep(self._preset.start_up.stop_s / self._arguments.speed)
        self._say(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        return 0

    def _open_driver(self) -> Driver:
        engine = Engine(
            self._preset,
            self._arguments.config,
            seed=hash_seed(f"{self._arguments.seed}"),
            faults=self._faults.engine,
            plan=self._boot.plan,
            record_log=True,
            report_first_tokens=True,
        )
        return Driver(
            engine,
            self._arguments.speed,
            on_log=self._log_record,
            on_finished=self._note_finished,
            on_first_token=self._state.note_first_token,
            on_crash=self._crash,
        )

    # -- children and GPU memory

    def _prepared_state(self) -> Path | None:
        directory = self._arguments.gpu_state
        if directory is None:
            return None
        if changes_box(self._faults) or not holds_box(directory, self._preset):
            prepare_gpu_state(directory, self._preset, self._faults)
        sweep(directory)
        return directory

    def _spawn(self) -> None:
        back_s = self._preset.start_up.memory_back_s
        if self._faults.slow_release_s is not None:
            back_s = self._faults.slow_release_s
        self._children = Children(
            self._state_dir,
            self._boot.options.tp_size,
            max(0.3, back_s / self._arguments.speed),
            zombie=self._faults.zombie,
        )

    def _used_bytes_at(self, at_s: float) -> int:
        """What one rank's GPU shows in use at a moment of the start."""
        plan, times = self._boot.plan, self._boot.times
        free = plan.headroom_gib
        for begin_s, free_gib in (
            (times.pool_s, plan.load_begin_gib),
            (times.prefill_graphs_s, plan.after_weights_gib),
            (times.host_pool_s, plan.after_pool_gib),
        ):
            if at_s < begin_s:
                free = free_gib
                break
        return int((self._preset.box.gpu_memory_gib - max(0.0, free)) * GIB)

    def _hold(self, used_bytes: int, busy_share: float) -> None:
        if self._children is not None:
            self._children.hold(used_bytes, busy_share)

    async def _watch(self) -> None:
        """The subprocess watchdog (>= 0.5.10), and the GPUs' figures."""
        while True:
            await asyncio.sleep(_WATCH_S / min(4.0, self._arguments.speed))
            driver, children = self._state.driver, self._children
            if driver is None or children is None:
                continue
            dead = children.first_dead()
            if dead is not None:
                rank, pid, code = dead
                self._say(
                    f"Subprocess scheduler_{rank} (pid={pid}) crashed with exit code {code}. "
                    "Triggering SIGQUIT for cleanup..."
                )
                self._die_of_child()
            gauges = driver.engine.gauges()
            self._hold(gauges.gpu_memory_used_bytes[0], gauges.utilization_share)

    def _end_children(self) -> None:
        if self._children is not None:
            self._children.kill(spare_zombie=self._faults.zombie)

    # -- dying

    def _crash(self, event: Crashed) -> None:
        rank = 0
        first, _, rest = event.log_text.partition("\n")
        self._print(Timed(0.0, first, rank))
        for line in rest.split("\n"):
            self._say(line) if line.startswith(("SIGQUIT", "Sleeping", "kill_process")) else self._raw(line)
        loop = asyncio.get_running_loop()
        loop.call_later(self._preset.start_up.crash_diagnostics_s / self._arguments.speed, self._kill_all)

    def _die_of_child(self) -> None:
        self._say("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
        self._kill_all()

    def _kill_all(self) -> None:
        self._end_children()
        _kill_itself()

    def _port_is_taken(self) -> int:
        self._raw(port_taken_line(self._arguments.host, self._arguments.port))
        self._say("INFO:     Waiting for application shutdown.")
        return 1

    # -- words

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt.set)

    def _note_finished(self, ticket: Ticket, event: Finished) -> None:
        self._state.note_finished(ticket, event)

    def _log_record(self, record: LogRecord) -> None:
        self._print(Timed(0.0, runtime_line(record), 0))

    def _access_log(self, http: web.Request, status: int) -> None:
        if self._arguments.server_args["log_level_http"] in (None, "info", "debug"):
            peer = http.transport.get_extra_info("peername") if http.transport else None
            address = f"{peer[0]}:{peer[1]}" if peer else "-"
            reason = "OK" if status == 200 else "Error"
            self._say(f'INFO:     {address} - "{http.method} {http.path_qs} HTTP/1.1" {status} {reason}')

    def _print(self, line: Timed) -> None:
        self._raw(self._boot.wording.stamp(self._unix_now_s(), line))

    def _unix_now_s(self) -> float:
        """The log's clock: it starts with the wall's at the launch and runs at the simulation's speed."""
        return self._launched_unix_s + (time.monotonic() - self._launched_wall_s) * self._arguments.speed

    def _say(self, text: str) -> None:
        self._print(Timed(0.0, text))

    def _raw(self, text: str) -> None:
        sys.stderr.write(text + "\n")

    async def _sleep_until(self, at_s: float) -> None:
        due = self._launched_wall_s + at_s / self._arguments.speed
        delay = due - time.monotonic()
        if delay > 0:
            sys.stderr.flush()
            await asyncio.sleep(delay)


def _taken_gib(directory: Path | None, gpu_count: int) -> tuple[tuple[int, float], ...]:
    """What is held on each GPU now, by strangers and by dead or foreign processes."""
    if directory is None:
        return ()
    strangers = [(int(item["gpu"]), float(item["gib"])) for item in read_box(directory)["strangers"]]
    held = [(seen.held.gpu, seen.held.used_bytes / GIB) for seen in read_held(directory)]
    return tuple((gpu, gib) for gpu, gib in (*strangers, *held) if gpu < gpu_count)


def _kill_itself() -> NoReturn:
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(137)
