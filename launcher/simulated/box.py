"""A box of GPUs in virtual time: one server at a time is started, measured and stopped, and no time passes.

box = VirtualBox(load_preset("kimi-k2.5-8x-rtx-pro-6000"), seed=1)
start = box.start(ServerConfig("model", 0.88, "bfloat16", flags={"tp-size": 8}))
if start.engine is None: ...            # start.log says why; start.took_s is what it cost
events = start.engine.advance(60.0)
took_s = box.stop()
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.config import ServerConfig
from launcher.errors import UsageError
from launcher.gpus import GpuProcess, GpuSample
from launcher.simulated.boot import Boot, plan_boot
from launcher.simulated.engine import Engine
from launcher.simulated.faults import Faults, parse_faults, with_noise
from launcher.simulated.gpus import gpu_sample
from launcher.simulated.memory import GIB
from launcher.simulated.presets import Preset, with_overrides

_EPOCH_UNIX_S = 1_767_225_600.0
"""Virtual time begins on 2026-01-01."""
_USAGE_TOOK_S = 5.0
"""How long SGLang takes to refuse a flag: importing alone takes seconds."""


@dataclass(frozen=True, slots=True)
class BoxStart:
    """How one start went. `exit_code` is None and `engine` there when the server is ready."""

    log: str
    took_s: float
    exit_code: int | None
    engine: Engine | None
    launched_unix_s: float


class VirtualBox:
    """The preset's machine. `hidden` overrides its numbers by dotted key, `faults` are as for `--fault`.

    Same preset, seed, overrides, faults and calls: same results.
    """

    def __init__(
        self,
        preset: Preset,
        *,
        seed: int,
        hidden: Mapping[str, float] | None = None,
        faults: Iterable[str] = (),
        version: str | None = None,
        record_log: bool = False,
    ) -> None:
        self._faults: Faults = parse_faults((*preset.faults, *faults))
        self.preset = with_noise(with_overrides(preset, hidden or {}), self._faults)
        self.version = version or preset.sglang_version
        self.now_s = 0.0
        """Virtual seconds that starts, stops and engines have used."""
        self._seed = seed
        self._starts = 0
        self._boot: Boot | None = None
        self._engine: Engine | None = None
        self._record_log = record_log

    def start(self, config: ServerConfig) -> BoxStart:
        """Start a server, after stopping an earlier one. A start that dies is a result, not an exception."""
        if self._engine is not None:
            self.stop()
        self._starts += 1
        launched = _EPOCH_UNIX_S + self.now_s
        life = f"{self._seed}:{self._starts}"
        try:
            boot = plan_boot(self.preset, config, faults=self._faults, seed=life, version=self.version)
        except UsageError as error:
            self.now_s += _USAGE_TOOK_S
            return BoxStart(f"launch_server.py: error: {error}\n", _USAGE_TOOK_S, 2, None, launched)
        if self._faults.port_taken:
            return self._port_is_taken(boot, launched)
        self.now_s += boot.took_s
        if boot.exit_code is None:
            self._boot = boot
            self._engine = Engine(
                self.preset,
                config,
                seed=hash_seed(life),
                faults=self._faults.engine,
                plan=boot.plan,
                record_log=self._record_log,
                report_first_tokens=True,
            )
        return BoxStart(boot.text(launched), boot.took_s, boot.exit_code, self._engine, launched)

    def _port_is_taken(self, boot: Boot, launched: float) -> BoxStart:
        self.now_s += boot.times.http_s
        log = boot.text(launched).rpartition("INFO:     Application startup complete.")[0]
        log = log.rpartition("\n")[0] + "\n" + port_taken_line("127.0.0.1", 30000) + "\n"
        return BoxStart(log, boot.times.http_s, 1, None, launched)

    def stop(self) -> float:
        """End the server and wait until its GPU memory is back. Returns the seconds; 0 when nothing ran."""
        if self._engine is None:
            return 0.0
        start_up = self.preset.start_up
        back_s = self._faults.slow_release_s
        died = self._engine.dead is not None
        took = start_up.crash_diagnostics_s if died else start_up.stop_s
        took += start_up.memory_back_s if back_s is None else back_s
        self.now_s += self._engine.now_s + took
        self._engine = self._boot = None
        return took

    def gpus(self) -> tuple[GpuSample, ...]:
        """The GPUs as the driver would show them now."""
        gauges = None if self._engine is None or self._engine.dead is not None else self._engine.gauges()
        taken = self._faults.taken_gib(self.preset.box.gpu_count)
        samples = []
        for index in range(self.preset.box.gpu_count):
            ours = gauges is not None and index < len(gauges.gpu_memory_used_bytes)
            used = gauges.gpu_memory_used_bytes[index] if gauges is not None and ours else 0
            samples.append(
                gpu_sample(
                    self.preset.box,
                    index,
                    used_bytes=used + int(taken[index] * GIB),
                    busy_share=gauges.utilization_share if gauges is not None and ours else 0.0,
                    processes=(GpuProcess(1000 + index, used, "sglang::scheduler"),) if ours else (),
                    lost=self._faults.lost_gpu == index,
                    throttled=self._faults.slow_gpu_factor > 1 and index == 0,
                )
            )
        return tuple(samples)


def hash_seed(text: str) -> int:
    """A stable number from a text (Python's own hash() differs from run to run)."""
    return zlib.crc32(text.encode())


def port_taken_line(host: str, port: int) -> str:
    """Uvicorn's words when the HTTP port is taken."""
    where = f"('{host}', {port})"
    return f"ERROR:    [Errno 98] error while attempting to bind on address {where}: address already in use"
