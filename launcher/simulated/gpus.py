"""SimulatedGpus: a GpuReader over the state directory of simulated processes (`--gpu-state DIR`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from launcher.errors import UsageError
from launcher.gpus import GpuProcess, GpuSample
from launcher.simulated.gpustate import STRANGER_PID, prepare_gpu_state, read_box, read_held

if TYPE_CHECKING:
    from launcher.simulated.presets.schema import Box

__all__ = ["SimulatedGpus", "gpu_sample", "prepare_gpu_state"]

GIB = 2**30


class SimulatedGpus:
    """The GPUs of a simulated box, as NVML would show them. No box in the directory yet: no GPUs."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        try:
            state = read_box(self._directory)
        except UsageError:
            return ()
        # `prepare_gpu_state` wrote it from a validated preset: whoever only looks needs no validator (10 MiB).
        box = cast("Box", SimpleNamespace(**state["box"]))
        seen = read_held(self._directory)
        samples = []
        for index in range(box.gpu_count):
            here = [holder for holder in seen if holder.held.gpu == index]
            strangers = [stranger for stranger in state["strangers"] if stranger["gpu"] == index]
            stranger_bytes = [int(stranger["gib"] * GIB) for stranger in strangers]
            processes = tuple(
                GpuProcess(holder.held.pid, holder.held.used_bytes, holder.held.title)
                for holder in here
                if holder.alive
            ) + tuple(GpuProcess(STRANGER_PID, used, "stranger (simulated)") for used in stranger_bytes)
            samples.append(
                gpu_sample(
                    box,
                    index,
                    used_bytes=sum(holder.held.used_bytes for holder in here) + sum(stranger_bytes),
                    busy_share=max((holder.held.busy_share for holder in here if holder.alive), default=0.0),
                    processes=() if memory_only else processes,
                    lost=state["lost_gpu"] == index,
                    throttled=state["throttled_gpu"] == index,
                )
            )
        return tuple(samples)

    def close(self) -> None:
        """Nothing is held open."""


def gpu_sample(
    box: Box,
    index: int,
    *,
    used_bytes: int,
    busy_share: float,
    processes: tuple[GpuProcess, ...],
    lost: bool = False,
    throttled: bool = False,
) -> GpuSample:
    """One GPU of a preset's box as a sample."""
    name, uuid = f"{box.gpu_name} (simulated)", f"GPU-simulated-{index}"
    if lost:
        return GpuSample(index=index, name=name, uuid=uuid, lost=True, simulated=True)
    total = int(box.gpu_memory_gib * GIB)
    return GpuSample(
        index=index,
        name=name,
        uuid=uuid,
        memory_total_bytes=total,
        memory_used_bytes=min(total, max(used_bytes, int(box.idle_memory_mib * 2**20))),
        utilization_share=busy_share,
        power_w=box.power_idle_w + busy_share * (box.power_busy_w - box.power_idle_w),
        power_limit_w=box.power_limit_w,
        temperature_c=box.temperature_idle_c + busy_share * (box.temperature_busy_c - box.temperature_idle_c),
        throttle_reasons=("sw_thermal_slowdown",) if throttled and busy_share > 0 else (),
        ecc_uncorrected=0,
        processes=processes,
        simulated=True,
    )
