"""Real GPUs through NVML, as GpuSamples: what the driver does not tell is None, a lost GPU keeps its place.

Seen: GB10 (unified memory) has no memory figure; a GPU that has fallen off the bus fails at its handle
while the others answer; in a container the process list holds the host's pids or none. Costs on an H200,
per GPU and call: utilisation
2.9 ms, power 1.5 ms, processes 0.5 ms, temperature 0.4 ms, throttle reasons 0.3 ms, memory 0.09 ms; so the
dear ones are asked for once in a while only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pynvml

from launcher.errors import UsageError
from launcher.gpus import GpuProcess, GpuReader, GpuSample

T = TypeVar("T")

SIMULATED_PREFIX = "simulated:"
_FAST_TTL_S = 0.5
_SLOW_TTL_S = 60.0
_LOST = ("NVMLError_GpuIsLost", "NVMLError_Unknown", "NVMLError_ResetRequired", "NVMLError_NotFound")

_THROTTLE_BITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of nvmlClocksEventReasons that cost speed; idle, clock settings and sync boost are no throttling."""


def open_gpus(source: str | None = None) -> GpuReader:
    """A reader for `None` or "nvml" (this box's GPUs; none without a driver) or "simulated:DIR".

    Raises UsageError for any other source.
    """
    if source is None or source == "nvml":
        return NvmlGpus()
    if source.startswith(SIMULATED_PREFIX):
        from launcher.simulated.gpus import SimulatedGpus

        return SimulatedGpus(source.removeprefix(SIMULATED_PREFIX))
    raise UsageError(f"gpus: {source!r} is no source of GPUs; it is nvml or simulated:DIR")


class NvmlGpus:
    """All GPUs that the driver shows, in its index order. `api` is pynvml, or what stands in for it in a
    test."""

    def __init__(self, api: Any = pynvml, now_s: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now_s = now_s
        self._open = False
        self._kept: dict[tuple[int, str], _Kept] = {}
        with suppress(pynvml.NVMLError):
            api.nvmlInit()
            self._open = True

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        """One sample per GPU; `memory_only` leaves out utilisation, power, temperature, throttling and
        ECC."""
        if not self._open:
            return ()
        count = self._ask(self._api.nvmlDeviceGetCount) or 0
        return tuple(self._read_gpu(index, memory_only=memory_only) for index in range(count))

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                self._api.nvmlShutdown()

    def _read_gpu(self, index: int, *, memory_only: bool) -> GpuSample:
        api = self._api
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            memory = self._memory(handle)
        except pynvml.NVMLError as error:
            return GpuSample(index=index, name=f"GPU {index} ({error})", lost=True)
        name = self._keep(index, "name", _SLOW_TTL_S, lambda: api.nvmlDeviceGetName(handle))
        uuid = self._keep(index, "uuid", _SLOW_TTL_S, lambda: api.nvmlDeviceGetUUID(handle))
        read_limit = api.nvmlDeviceGetEnforcedPowerLimit
        limit_mw = self._keep(index, "limit", _SLOW_TTL_S, lambda: read_limit(handle))
        mig = self._keep(index, "mig", _SLOW_TTL_S, lambda: api.nvmlDeviceGetMigMode(handle)[0])
        sample = GpuSample(
            index=index,
            name=_text(name) or f"GPU {index}",
            uuid=_text(uuid),
            memory_total_bytes=memory[0],
            memory_used_bytes=memory[1],
            power_limit_w=_scaled(limit_mw, 1000),
            mig=mig == api.NVML_DEVICE_MIG_ENABLE,
            processes=() if memory_only else self._processes(index, handle),
        )
        return sample if memory_only else self._with_activity(sample, handle)

    def _with_activity(self, sample: GpuSample, handle: object) -> GpuSample:
        api, index = self._api, sample.index
        busy = self._keep(index, "busy", _FAST_TTL_S, lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu)
        power_mw = self._keep(index, "power", _FAST_TTL_S, lambda: api.nvmlDeviceGetPowerUsage(handle))
        celsius = self._keep(index, "temperature", _FAST_TTL_S, lambda: self._temperature(handle))
        bits = self._keep(index, "throttle", _FAST_TTL_S, lambda: self._throttle_bits(handle))
        ecc = self._keep(index, "ecc", _SLOW_TTL_S, lambda: self._ecc_uncorrected(handle))
        return replace(
            sample,
            utilization_share=_scaled(busy, 100),
            power_w=_scaled(power_mw, 1000),
            temperature_c=celsius,
            throttle_reasons=tuple(word for bit, word in _THROTTLE_BITS.items() if (bits or 0) & bit),
            ecc_uncorrected=ecc,
        )

    def _memory(self, handle: object) -> tuple[int | None, int | None]:
        """Total and used bytes; None twice on a unified-memory GPU. Raises where the GPU is lost."""
        try:
            told = self._api.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if type(error).__name__ in _LOST:
                raise
            return None, None
        return int(told.total), int(told.used)

    def _processes(self, index: int, handle: object) -> tuple[GpuProcess, ...]:
        """Compute processes alone: a desktop's graphics processes hold memory too, but are nobody's
        server."""
        read = self._api.nvmlDeviceGetComputeRunningProcesses
        found = self._keep(index, "processes", _FAST_TTL_S, lambda: read(handle)) or ()
        return tuple(GpuProcess(int(one.pid), one.usedGpuMemory) for one in found)

    def _temperature(self, handle: object) -> float:
        return float(self._api.nvmlDeviceGetTemperature(handle, self._api.NVML_TEMPERATURE_GPU))

    def _throttle_bits(self, handle: object) -> int:
        return int(self._api.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def _ecc_uncorrected(self, handle: object) -> int:
        """Since the last driver load."""
        kind, since = self._api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._api.NVML_VOLATILE_ECC
        return int(self._api.nvmlDeviceGetTotalEccErrors(handle, kind, since))

    def _keep(self, index: int, what: str, ttl_s: float, ask: Callable[[], T]) -> T | None:
        """The answer, at most `ttl_s` old. A refusal is kept as well: what is not supported stays so."""
        kept = self._kept.get((index, what))
        now_s = self._now_s()
        if kept is None or now_s - kept.asked_s >= ttl_s:
            kept = _Kept(self._ask(ask), now_s)
            self._kept[index, what] = kept
        return kept.value  # type: ignore[no-any-return]

    def _ask(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except pynvml.NVMLError:
            return None


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    asked_s: float


def _scaled(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
