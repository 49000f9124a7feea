"""One start, worked out before it happens: what it prints and when, and whether and when it dies. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from launcher.config import ServerConfig
from launcher.simulated.faults import Faults
from launcher.simulated.logtext import StageTimes, Timed, Wording, start_death_lines, start_lines
from launcher.simulated.memory import MemoryPlan, StartDeath, plan_memory
from launcher.simulated.options import EngineOptions, options_of
from launcher.simulated.presets import Preset

KILLED_ITSELF = -9
"""SGLang's launcher ends itself with SIGKILL after nearly every failure (shell: 137)."""


@dataclass(frozen=True, slots=True)
class Boot:
    """A start as it will go. Times are seconds after the launch."""

    options: EngineOptions
    plan: MemoryPlan
    times: StageTimes
    wording: Wording
    lines: tuple[Timed, ...]
    died_s: float | None
    exit_code: int | None
    """None when it becomes ready."""

    @property
    def took_s(self) -> float:
        return self.times.ready_s if self.died_s is None else self.died_s

    def text(self, launched_unix_s: float) -> str:
        """The log of the whole start."""
        stamped = [self.wording.stamp(launched_unix_s + line.at_s, line) for line in self.lines]
        return "\n".join(stamped) + "\n"


def version_tuple(version: str) -> tuple[int, ...]:
    """`0.5.17` as (0, 5, 17)."""
    return tuple(int(part) for part in version.split(".")[:3])


def plan_boot(
    preset: Preset,
    config: ServerConfig,
    *,
    faults: Faults,
    seed: str,
    version: str,
    host_available_gb: float | None = None,
) -> Boot:
    """Work out one start. Raises UsageError for what SGLang's own parser refuses (exit code 2)."""
    options = options_of(preset, config)
    numbers = version_tuple(version)
    host_gb = preset.box.host_available_gb if host_available_gb is None else host_available_gb
    taken = faults.taken_gib(preset.box.gpu_count)[: options.tp_size]
    plan = plan_memory(preset, options, numbers, taken, host_gb)
    if faults.pin_fails and options.hicache_on and plan.death is None:
        plan = replace(plan, death=StartDeath.PIN_FAILED)
    times = _stage_times(preset, options, plan, faults, seed)
    wording = Wording(numbers, options.tp_size)
    lines = list(start_lines(preset, config, options, plan, times, wording))
    died_s = _death_s(plan, times)
    if died_s is not None:
        lines += start_death_lines(preset, options, plan, died_s, host_gb)
    exit_code = None if died_s is None else _exit_code(plan, numbers)
    return Boot(options, plan, times, wording, tuple(lines), died_s, exit_code)


def _exit_code(plan: MemoryPlan, version: tuple[int, ...]) -> int:
    """From 0.5.10 on a scheduler that the kernel killed ends the launcher with a RuntimeError."""
    return 1 if plan.death is StartDeath.HOST_OOM_KILLED and version >= (0, 5, 10) else KILLED_ITSELF


def _stage_times(preset: Preset, options: EngineOptions, plan: MemoryPlan, faults: Faults, seed: str) -> StageTimes:
    start = preset.start_up
    chance = random.Random(f"start:{preset.name}:{seed}")
    factor = max(0.5, chance.gauss(1.0, preset.noise.start_time_sd_share))
    distributed = start.import_s * factor
    weights = distributed + start.distributed_s * factor
    pool = weights + (start.dummy_weights_s if options.dummy_weights else start.weights_s) * factor
    prefill = pool + 0.1
    decode = prefill + (start.prefill_graphs_s * factor if options.prefill_graphs else 0.0)
    graph_share = options.graph_max_batch / preset.overhead.graph_max_batch
    host = decode + start.decode_graphs_s * factor * graph_share
    http = host + plan.host_gb * start.pin_s_per_gb * faults.slow_pin_factor + 0.5
    ready = http + (0.2 if options.skip_warm_up else start.warm_up_s * factor)
    return StageTimes(distributed, weights, pool, prefill, decode, host, http, ready)


def _death_s(plan: MemoryPlan, times: StageTimes) -> float | None:
    """When the plan's death strikes; a graph capture fails at its first, largest batch."""
    match plan.death:
        case None:
            return None
        case StartDeath.UNBALANCED:
            return times.weights_s + 0.1
        case StartDeath.WEIGHTS_OOM:
            return (times.weights_s + times.pool_s) / 2
        case StartDeath.FRACTION_TOO_LOW | StartDeath.POOL_OOM | StartDeath.CUBLAS:
            return times.pool_s + 0.2
        case StartDeath.PREFILL_GRAPH_OOM:
            return times.prefill_graphs_s + 2.0
        case StartDeath.DECODE_GRAPH_OOM:
            return times.decode_graphs_s + 2.0
        case StartDeath.HOST_POOL_SMALLER | StartDeath.HOST_TOO_SMALL:
            return times.host_pool_s + 0.5
        case _:
            return (times.host_pool_s + times.http_s) / 2
