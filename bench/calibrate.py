"""Hold the simulated engine against what real servers showed. Exit 0 only when every figure is within
tolerance.

python -m bench.calibrate
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

from rich.console import Console
from rich.table import Table

from bench.calibration.reference import (
    CLIENTS,
    DECODE_RUNS,
    FIELD_LENGTHS,
    KIMI,
    RESPONSES_BF16,
    RESPONSES_FP8,
    STARTS,
    STATE_A,
    STATE_B,
    STATE_C,
    DecodeRun,
    Lengths,
    Start,
    StateRange,
)
from bench.calibration.replay import Client, decode_rates, start
from bench.figures import figure
from launcher.config import FlagValue, ServerConfig
from launcher.simulated.events import Gauges

STATE_TOLERANCE_SHARE = 0.15
HEADROOM_TOLERANCE_GIB = 0.1
_SEEDS = (1, 2, 3, 4)
_TP8: dict[str, FlagValue] = {"tp-size": 8}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison."""

    what: str
    real: str
    simulated: str
    error: float
    tolerance: float

    @property
    def right(self) -> bool:
        return self.error <= self.tolerance


# -- starts


def check_starts() -> tuple[list[Check], list[Check], list[Check]]:
    """Capacities, headrooms, outcomes."""
    capacities, headrooms, outcomes = [], [], []
    for case in STARTS:
        config = ServerConfig(case.preset, case.mem_fraction, case.dtype, case.hicache_gb, case.flags)
        begun = start(case.preset, config)
        capacity, headroom = _from_summary(begun.log)
        if case.capacity_tokens is not None and case.dies != "at start":
            error = abs(capacity / case.capacity_tokens - 1)
            capacities.append(
                Check(
                    case.name,
                    f"{case.capacity_tokens}",
                    f"{capacity:.0f}",
                    error,
                    case.capacity_tolerance_share,
                )
            )
        if case.headroom_gib is not None:
            error = abs(headroom - case.headroom_gib)
            headrooms.append(Check(case.name, f"{case.headroom_gib}", f"{headroom:.2f}", error, HEADROOM_TOLERANCE_GIB))
        dies, log = "at start", begun.log
        if begun.engine is not None:
            client = Client(begun.engine, _lengths_of(case), seed=1)
            client.begin(200 if case.preset != KIMI else CLIENTS)
            client.run_until(120.0)
            dies = "no" if client.crash is None else "under load"
            log += client.crash.log_text if client.crash else ""
        right = dies == case.dies and case.message in log
        outcomes.append(
            Check(case.name, f"{case.dies} {case.message}", f"{dies} {_last_error(log)}", float(not right), 0.0)
        )
    return capacities, headrooms, outcomes


def _lengths_of(case: Start) -> Lengths:
    """The load under which a start has to live or die."""
    return FIELD_LENGTHS if case.preset == KIMI else Lengths(2066, 1040, 309, 100)


def _from_summary(log: str) -> tuple[float, float]:
    """max_total_num_tokens and available_gpu_mem of the start-up line; nan where the start died before it."""
    for line in log.splitlines():
        if "max_total_num_tokens=" in line:
            words = dict(word.strip(" ,").split("=") for word in line.split("] ", 1)[1].split(", "))
            return float(words["max_total_num_tokens"]), float(words["available_gpu_mem"].split()[0])
    return float("nan"), float("nan")


def _last_error(log: str) -> str:
    errors = [line for line in log.splitlines() if "Error: " in line]
    return errors[-1][:90] if errors else ""


# -- states of the field report


@dataclass(frozen=True, slots=True)
class State:
    """A state as it was simulated."""

    running: float
    queued: float
    usage: float
    gen_tokens_per_s: float


def _mean_state(samples: Iterable[Gauges]) -> State:
    kept = list(samples)
    return State(
        mean(gauges.running_requests for gauges in kept),
        mean(gauges.queued_requests for gauges in kept),
        mean(gauges.token_usage_share for gauges in kept),
        mean(gauges.gen_tokens_per_s for gauges in kept),
    )


@dataclass(frozen=True, slots=True)
class FieldRun:
    """One configuration under 150 clients that start together, for two hours."""

    samples: tuple[Gauges, ...]
    """Every 10 s."""

    def steady(self) -> list[Gauges]:
        return [gauges for gauges in self.samples if gauges.now_s > 1800]

    def responses_per_s(self) -> float:
        first, last = self.steady()[0], self.steady()[-1]
        done = last.counters.finished_requests - first.counters.finished_requests
        return done / (last.now_s - first.now_s)


def field_run(fraction: float, dtype: str, hicache_gb: int, seed: int) -> FieldRun:
    begun = start(KIMI, ServerConfig(KIMI, fraction, dtype, hicache_gb, _TP8))
    assert begun.engine is not None, begun.log
    client = Client(begun.engine, FIELD_LENGTHS, seed)
    client.begin(CLIENTS)
    return FieldRun(tuple(client.sample(7200, 10)))


def state_a(run: FieldRun) -> State:
    """The trough of the first wave, some minutes after the common start."""
    early = [gauges for gauges in run.samples if 120 <= gauges.now_s <= 900]
    return _mean_state([min(early, key=lambda gauges: gauges.running_requests)])


def state_c(run: FieldRun) -> State:
    """While token usage climbs from 0.61 to 0.93 for the first time."""
    climb: list[Gauges] = []
    for gauges in run.samples:
        if gauges.token_usage_share >= 0.93:
            break
        if gauges.token_usage_share >= 0.61:
            climb.append(gauges)
    return _mean_state(climb)


def check_states() -> list[Check]:
    """The three states, the completion rates, and what HiCache and FP8 do to the steady rate."""
    bf16 = [field_run(0.88, "bfloat16", 48, seed) for seed in _SEEDS]
    fp8 = [field_run(0.90, "fp8_e4m3", 48, seed) for seed in _SEEDS]
    plain = [field_run(0.88, "bfloat16", 0, seed) for seed in _SEEDS]
    checks = [
        *_state_checks(STATE_A, [state_a(run) for run in bf16]),
        *_state_checks(STATE_B, [_mean_state(run.steady()) for run in bf16]),
        *_state_checks(STATE_C, [state_c(run) for run in fp8]),
    ]
    rates = [mean(run.responses_per_s() for run in runs) for runs in (bf16, fp8, plain)]
    real = RESPONSES_BF16 / RESPONSES_FP8
    ratio = rates[0] / rates[1]
    gain = rates[0] / rates[2] - 1
    shown = f"{rates[0]:.3f} / {rates[1]:.3f} = {ratio:.2f}"
    checks.append(
        Check(
            "responses/s, bf16 / fp8",
            f"{RESPONSES_BF16} / {RESPONSES_FP8} = {real:.2f}",
            shown,
            abs(ratio / real - 1),
            STATE_TOLERANCE_SHARE,
        )
    )
    checks.append(Check("fp8 raises the steady rate", "yes", f"{1 / ratio - 1:+.0%}", float(ratio >= 1), 0.0))
    checks.append(Check("hicache without shared prefixes", "no gain", f"{gain:+.1%}", max(0.0, gain), 0.01))
    return checks


def _state_checks(real: StateRange, seen: list[State]) -> list[Check]:
    figures = {
        "running": (real.running, [state.running for state in seen]),
        "queued": (real.queued, [state.queued for state in seen]),
        "token usage": (real.usage, [state.usage for state in seen]),
        "gen tok/s": (real.gen_tokens_per_s, [state.gen_tokens_per_s for state in seen]),
    }
    return [_range_check(f"{real.name}: {name}", span, values) for name, (span, values) in figures.items()]


def _range_check(what: str, span: tuple[float, float], values: list[float]) -> Check:
    """Error: the distance to the reported range, as a share of its nearer end."""
    low, high = span
    value = mean(values)
    nearest = min(max(value, low), high)
    shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return Check(what, shown, f"{value:.4g}", abs(value - nearest) / nearest, STATE_TOLERANCE_SHARE)


# -- decode rates on the H200


def check_decode_rates() -> list[Check]:
    checks = []
    for run in DECODE_RUNS:
        pure, mixed = _replay(run)
        if run.first_wave_tokens_per_s is not None:
            checks.append(_rate_check(f"{run.name}: decode alone", run.first_wave_tokens_per_s, pure))
        if run.mixed_tokens_per_s is not None:
            checks.append(_rate_check(f"{run.name}: with prefills", run.mixed_tokens_per_s, mixed))
    return checks


def _replay(run: DecodeRun) -> tuple[float, float]:
    config = ServerConfig(run.preset, run.mem_fraction, run.dtype, run.hicache_gb, run.flags)
    begun = start(run.preset, config)
    assert begun.engine is not None, begun.log
    client = Client(begun.engine, run.lengths, seed=1)
    client.begin(run.concurrency)
    client.run_until(300.0)
    return decode_rates(begun.engine.take_log(), steady_after_s=60.0)


def _rate_check(what: str, real: float, seen: float) -> Check:
    return Check(what, f"{real:.0f} tok/s", f"{seen:.0f} tok/s", abs(seen / real - 1), STATE_TOLERANCE_SHARE)


# -- output


def _print(title: str, checks: list[Check]) -> None:
    table = Table(title=f"{title} (simulated against real)", title_justify="left")
    for heading in ("what", "real", "simulated", "error", "tolerance", ""):
        table.add_column(heading, overflow="fold")
    for check in checks:
        mark = "ok" if check.right else "WRONG"
        table.add_row(check.what, check.real, check.simulated, f"{check.error:.4f}", f"{check.tolerance:g}", mark)
    Console(width=150).print(table)


def main() -> int:
    """Print the tables and the figures; 0 when everything is within tolerance."""
    capacities, headrooms, outcomes = check_starts()
    states, rates = check_states(), check_decode_rates()
    _print("KV capacity, tokens", capacities)
    _print("Left after the graphs, GiB", headrooms)
    _print("Outcomes", outcomes)
    _print("The field report's states", states)
    _print("Decode rate on the H200", rates)
    right = mean(check.right for check in outcomes)
    figure("capacity_error_max_share", max(check.error for check in capacities), "share")
    figure("headroom_error_max_gib", max(check.error for check in headrooms), "GiB")
    figure("state_error_max_share", max(check.error for check in states), "share")
    figure("decode_rate_error_max_share", max(check.error for check in rates), "share")
    figure("outcomes_right_share", right, "share")
    everything = (*capacities, *headrooms, *outcomes, *states, *rates)
    return 0 if all(check.right for check in everything) else 1


if __name__ == "__main__":
    sys.exit(main())
