"""What can be made to go wrong, by a preset's `faults:` or by `--fault NAME[:VALUE[:VALUE]]`.

leftover:GPU:GIB      another process holds GIB on that GPU, and does not go away
slow-release:S        GPU memory comes back S seconds after the process is gone
zombie                one scheduler outlives the launcher and keeps its GPU memory
stuck:S               S seconds after it is ready nothing finishes any more; /health still answers 200
slow-pin:FACTOR       pinning HiCache takes FACTOR times as long
pin-fails             cudaHostRegister fails while HiCache is pinned
noise:SHARE           standard deviation of the speed from one start to the next
drift:SHARE           standard deviation of the speed's wander within a life
slow-gpu:FACTOR       one GPU is throttled: every step takes FACTOR times as long
lost-gpu:GPU          the driver has lost that GPU
port-taken            the HTTP port is taken when the server wants it, after the whole start
crash-after:MIN       a CUDA error under load, MIN minutes after it was ready
metrics-off           /metrics answers 404
unauthorized          every endpoint that can ask for a key answers 401
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.simulated.presets import Preset


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """Those that change a running engine."""

    speed_factor: float = 1.0
    """Every step takes this many times as long."""
    stuck_after_s: float | None = None
    crash_after_s: float | None = None

    def is_stuck(self, now_s: float) -> bool:
        return self.stuck_after_s is not None and now_s >= self.stuck_after_s

    def crash_is_due(self, now_s: float) -> bool:
        return self.crash_after_s is not None and now_s >= self.crash_after_s


HEALTHY = EngineFaults()


@dataclass(frozen=True, slots=True)
class Faults:
    """All of them; the default is a healthy box."""

    leftover_gib: tuple[tuple[int, float], ...] = ()
    """(GPU index, GiB)."""
    slow_release_s: float | None = None
    zombie: bool = False
    stuck_after_s: float | None = None
    slow_pin_factor: float = 1.0
    pin_fails: bool = False
    noise_share: float | None = None
    drift_share: float | None = None
    slow_gpu_factor: float = 1.0
    lost_gpu: int | None = None
    port_taken: bool = False
    crash_after_min: float | None = None
    metrics_off: bool = False
    unauthorized: bool = False

    @property
    def engine(self) -> EngineFaults:
        crash = None if self.crash_after_min is None else self.crash_after_min * 60
        return EngineFaults(self.slow_gpu_factor, self.stuck_after_s, crash)

    def taken_gib(self, gpu_count: int) -> tuple[float, ...]:
        """What strangers hold on each GPU."""
        return tuple(sum((gib for gpu, gib in self.leftover_gib if gpu == index), 0.0) for index in range(gpu_count))


NO_FAULTS = Faults()
_ARGUMENTS = {
    "leftover": 2, "slow-release": 1, "zombie": 0, "stuck": 1, "slow-pin": 1, "pin-fails": 0, "noise": 1,
    "drift": 1, "slow-gpu": 1, "lost-gpu": 1, "port-taken": 0, "crash-after": 1, "metrics-off": 0,
    "unauthorized": 0,
}  # fmt: skip


def parse_faults(specs: Iterable[str]) -> Faults:
    """Faults from their specs. Raises UsageError naming the spec and what would be right."""
    faults = Faults()
    for spec in specs:
        faults = _with(faults, spec)
    return faults


def with_noise(preset: Preset, faults: Faults) -> Preset:
    """The preset with the noise that the faults ask for."""
    changes = {
        key: value
        for key, value in (("start_sd_share", faults.noise_share), ("drift_sd_share", faults.drift_share))
        if value is not None
    }
    return preset.model_copy(update={"noise": preset.noise.model_copy(update=changes)}) if changes else preset


def _with(faults: Faults, spec: str) -> Faults:
    name, *values = spec.split(":")
    if name not in _ARGUMENTS:
        near = difflib.get_close_matches(name, _ARGUMENTS, n=1, cutoff=0.0)[0]
        raise UsageError(f"fault {spec!r}: unknown; the nearest valid name is {near!r}")
    if len(values) != _ARGUMENTS[name]:
        raise UsageError(f"fault {spec!r}: {name} takes {_ARGUMENTS[name]} value(s), separated by colons")
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        raise UsageError(f"fault {spec!r}: its values must be numbers") from None
    return _applied(faults, name, numbers)


def _applied(faults: Faults, name: str, numbers: list[float]) -> Faults:
    match name:
        case "leftover":
            return replace(faults, leftover_gib=(*faults.leftover_gib, (int(numbers[0]), numbers[1])))
        case "slow-release":
            return replace(faults, slow_release_s=numbers[0])
        case "zombie":
            return replace(faults, zombie=True)
        case "stuck":
            return replace(faults, stuck_after_s=numbers[0])
        case "slow-pin":
            return replace(faults, slow_pin_factor=numbers[0])
        case "pin-fails":
            return replace(faults, pin_fails=True)
        case "noise":
            return replace(faults, noise_share=numbers[0])
        case "drift":
            return replace(faults, drift_share=numbers[0])
        case _:
            return _applied_to_service(faults, name, numbers)


def _applied_to_service(faults: Faults, name: str, numbers: list[float]) -> Faults:
    match name:
        case "slow-gpu":
            return replace(faults, slow_gpu_factor=numbers[0])
        case "lost-gpu":
            return replace(faults, lost_gpu=int(numbers[0]))
        case "port-taken":
            return replace(faults, port_taken=True)
        case "crash-after":
            return replace(faults, crash_after_min=numbers[0])
        case "metrics-off":
            return replace(faults, metrics_off=True)
        case _:
            return replace(faults, unauthorized=True)
