"""GPUs as samples, whoever they belong to: NVML's or the simulated engine's.

The contract alone lives here. `launcher.nvml` reads real GPUs; `launcher.simulated.gpus` reads simulated ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One compute process as the driver sees it. In a container the pid may be foreign or unknown."""

    pid: int
    used_bytes: int | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. None is "the driver does not tell", never zero."""

    index: int
    name: str
    uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_share: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    mig: bool = False
    lost: bool = False
    """The driver has lost it ("GPU is lost", "fallen off the bus"): no other field can be trusted."""
    processes: tuple[GpuProcess, ...] = ()
    simulated: bool = False

    @property
    def memory_free_bytes(self) -> int | None:
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


class GpuReader(Protocol):
    """Reads all GPUs of this box (or the ones it was opened for)."""

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        """One sample per GPU, in index order. `memory_only` skips the dear calls (utilisation, power, processes)."""
        ...

    def close(self) -> None: ...


class ChosenGpus:
    """Some of a box's GPUs, by index: a study on GPUs 0-3 must not see what others do on 4-7."""

    def __init__(self, reader: GpuReader, indices: Collection[int]) -> None:
        self._reader = reader
        self._indices = frozenset(indices)

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        return tuple(gpu for gpu in self._reader.read(memory_only=memory_only) if gpu.index in self._indices)

    def close(self) -> None:
        self._reader.close()
