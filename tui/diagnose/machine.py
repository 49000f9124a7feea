"""Rules about GPUs: lost, slow, or shared with a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tui import format as fmt
from tui.diagnose.arithmetic import bytes_per_token
from tui.snapshot import Finding, GpuView, ServerView, Severity

STRANGER_BYTES = 512 * 2**20
"""Smaller than this is a monitor or a desktop, not a tenant."""
SLOW_REASONS = ("thermal", "hardware slowdown", "power brake")
"""A power cap on every GPU is normal under load; these are not."""
LOW_POWER_SHARE = 0.7
BUSY_SHARE = 0.8


def lost_gpus(gpus: tuple[GpuView, ...]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.sample.lost:
            evidence = f"the driver has lost GPU {gpu.sample.index} ({gpu.sample.name})"
            tries = ("look for Xid lines in the kernel log; a reset or a reboot brings it back",)
            yield Finding("gpu_lost", Severity.CRITICAL, "GPU lost", evidence, tries, gpu_index=gpu.sample.index)


def strangers(server: ServerView, gpus: tuple[GpuView, ...]) -> Iterator[Finding]:
    """Memory held on the server's GPUs by processes that are none of its own."""
    each = bytes_per_token(server)
    for gpu in gpus:
        pid, used, name = max(gpu.strangers, key=lambda process: process[1], default=(0, 0, None))
        if used < STRANGER_BYTES:
            continue
        worth = "" if each is None else f": {fmt.count(used / each)} KV tokens' worth"
        who = f"pid {pid}" if name is None else f"pid {pid} ({name})"
        evidence = f"{who} holds {fmt.gib(used)} GiB of GPU {gpu.sample.index}{worth}"
        tries = ("end it, or restart the server after it: every rank is sized by the poorest GPU",)
        yield Finding("stranger", Severity.WARNING, "memory held", evidence, tries, server.url, gpu.sample.index)


def slow_gpu(server: ServerView, gpus: tuple[GpuView, ...]) -> Finding | None:
    """Tensor parallelism runs at the pace of its slowest GPU."""
    throttled = [gpu for gpu in gpus if _slow_reasons(gpu)]
    suspects = throttled if 0 < len(throttled) < len(gpus) else _low_power(gpus)
    if not suspects:
        return None
    sample = suspects[0].sample
    reasons = ", ".join(_slow_reasons(suspects[0])) or "no reason given by the driver"
    evidence = (
        f"GPU {sample.index} draws {_watts(sample.power_w)} at {_degrees(sample.temperature_c)} ({reasons}); "
        f"the median of its group is {_watts(_median_power(gpus))}"
    )
    tries = ("cooling, power cable and clocks of that GPU; all ranks wait for it",)
    return Finding("slow_gpu", Severity.WARNING, "one slow GPU", evidence, tries, server.url, sample.index)


def _slow_reasons(gpu: GpuView) -> list[str]:
    return [reason for reason in gpu.sample.throttle_reasons if any(slow in reason for slow in SLOW_REASONS)]


def _low_power(gpus: tuple[GpuView, ...]) -> list[GpuView]:
    """A GPU that draws far less than its busy siblings, or is far hotter at less power."""
    middle = _median_power(gpus)
    if len(gpus) < 3 or middle is None or not all(_is_busy(gpu) for gpu in gpus):
        return []
    return [gpu for gpu in gpus if gpu.sample.power_w is not None and gpu.sample.power_w < LOW_POWER_SHARE * middle]


def _is_busy(gpu: GpuView) -> bool:
    return (gpu.sample.utilization_share or 0.0) >= BUSY_SHARE


def _median_power(gpus: tuple[GpuView, ...]) -> float | None:
    powers = [gpu.sample.power_w for gpu in gpus if gpu.sample.power_w is not None]
    return median(powers) if powers else None


def _watts(power_w: float | None) -> str:
    return fmt.UNKNOWN if power_w is None else f"{power_w:.0f} W"


def _degrees(temperature_c: float | None) -> str:
    return fmt.UNKNOWN if temperature_c is None else f"{temperature_c:.0f} °C"
