"""One study's simulated machine, in virtual time: what a daemon would see of it, and what the referee knows of it.

Starts and deaths are the simulated engine's own: its log text is read by `launcher.logs`, its failures are classified
by `launcher.failures`. Every level first loads the running engine for real for a minute, which kills it or shows the
driver's minima; the level's rate then comes from the case's table, divided by the seed's speed, times the noise.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np

from bench.contest.cases import LEVEL_NOISE, Hidden, SimulatedCase
from bench.contest.table import Cell, RateTable
from launcher.config import FlagValue, ServerConfig
from launcher.failure import Failure
from launcher.failures import Evidence, classify
from launcher.logs import read_timeline
from launcher.simulated.box import VirtualBox
from launcher.simulated.engine import Engine
from launcher.simulated.events import Crashed, SimRequest
from launcher.simulated.memory import MemoryPlan, plan_memory
from launcher.simulated.options import options_of
from launcher.simulated.presets import Preset, with_overrides
from launcher.timeline import Timeline
from tuner.measure.segments import segments_of
from tuner.testbed import Started
from tuner.trial import Interval, LevelEnd, LevelResult, Setting
from tuner.workload import load_workload

LOADED_S, DRAIN_S = 60.0, 5.0
CLEAN_SLATE_S = 10.0
INTERVAL_SHARE = 0.03


class SimulatedWorld:
    """One simulated box with one seed's truth. One server at a time."""

    def __init__(self, case: SimulatedCase, table: RateTable, hidden: Hidden, seed: int) -> None:
        self.case = case
        self._table = table
        self._hidden = hidden
        self._random = random.Random(f"{case.name}:{seed}:noise")
        noise = {"noise.start_sd_share": 0.0, "noise.drift_sd_share": 0.0}
        self._preset: Preset = with_overrides(case.preset, {**hidden.overrides, **noise})
        self._box = VirtualBox(self._preset, seed=seed)
        self._requests = load_workload(case.workload, seed=seed).sample(case.space.concurrency[1])
        self._engine: Engine | None = None
        self._setting: Setting | None = None
        self._life = 1.0

    def start(self, setting: Setting, *, dummy_weights: bool = False) -> Started:
        """Start a server; its log is all that is read of it."""
        begun = self._box.start(self._config(setting, dummy_weights=dummy_weights))
        timeline = self._shown(read_timeline(begun.log, begun.launched_unix_s), setting)
        failure = None
        if begun.exit_code is not None:
            failure = classify(Evidence(log=begun.log, exit_code=begun.exit_code))
        self._engine, self._setting = begun.engine, setting
        self._life = self._random.gauss(1.0, self._hidden.start_noise)
        return Started(timeline, failure, CLEAN_SLATE_S, begun.took_s)

    def measure(self, concurrency: int, limit_s: float | None = None) -> LevelResult | Failure:
        """One level, or the failure that it caused. Cut at `limit_s`, it knows its rate less well."""
        assert self._engine is not None
        assert self._setting is not None
        crashed = self._load(self._engine, concurrency)
        if crashed is not None:
            return self._failure(crashed)
        shown_gib = self._free_gib(self._engine)
        if shown_gib < self._hidden_gib:
            return self._failure(None)
        return self._level(concurrency, shown_gib, limit_s)

    def _load(self, engine: Engine, concurrency: int) -> Crashed | None:
        """`concurrency` requests at once for a minute, then all taken back; the crash if there was one."""
        until_s = engine.now_s + LOADED_S
        names = [f"{engine.now_s}:{index}" for index in range(concurrency)]
        for name, request in zip(names, itertools.cycle(self._requests), strict=False):
            engine.submit(SimRequest(name, segments_of(request), request.tokens_to_generate))
        while engine.now_s < until_s and engine.dead is None:
            engine.advance(until_s)
        for name in names:
            engine.abort(name)
        engine.advance(until_s + DRAIN_S)
        return engine.dead

    @staticmethod
    def _free_gib(engine: Engine) -> float:
        """The least free memory that the driver has shown: torch keeps what it once took."""
        return engine.preset.box.gpu_memory_gib - max(engine.gauges().gpu_memory_used_bytes) / 2**30

    def stop(self) -> float:
        self._engine = None
        return self._box.stop()

    # -- what the referee knows

    def true_rate(self, setting: Setting, concurrency: int) -> float:
        """The noise-free rate of a setting that lives; 0 for one that does not."""
        if not self.lives(setting, transient_sds=0.0):
            return 0.0
        return self._cell(setting, concurrency).rate

    def lives(self, setting: Setting, *, transient_sds: float) -> bool:
        """Whether a start survives its heaviest step when the transient is that many deviations above its mean."""
        plan = self._plan(setting)
        if plan.death is not None:
            return False
        share = 1 + transient_sds * self._preset.noise.transient_sd_share
        return plan.headroom_gib - self._hidden_gib > share * self._worst_step_gib(setting)

    def oracle(self) -> float:
        """The best true rate among the settings that live with the transient two deviations above its mean."""
        space = self.case.space
        ladder = np.array(space.concurrency_ladder(rungs_per_doubling=4), dtype=float)
        best = 0.0
        for family in space.families():
            settings = [replace(family, mem_fraction_static=fraction) for fraction in space.fractions(0.0025)]
            safe = [setting for setting in settings if self.lives(setting, transient_sds=2.0)]
            held = np.array([self._capacity(setting) for setting in safe])
            cells = self._table.many(
                family.kv_cache_dtype,
                family.hicache_size_gb,
                np.repeat(held, len(ladder)),
                np.tile(ladder, len(held)),
            )
            rates = [self._slowed(Cell(*cell)).rate for cell in cells]
            best = max([best, *rates])
        return best

    def _worst_step_gib(self, setting: Setting) -> float:
        """A full prefill chunk with the logits of its requests, or the logits of a full house, whichever is more."""
        transient, model = self._preset.transient, self._preset.model
        options = options_of(self._preset, self._config(setting))
        per_token = transient.before_bytes_per_token + transient.largest_bytes_per_token
        per_token += transient.after_bytes_per_token
        chunk_gib = options.chunked_prefill_size * per_token / 2**30
        house_gib = self.case.space.concurrency[1] * transient.logits_bytes_per_request / 2**30
        return max(chunk_gib * model.tp_size / options.tp_size + 0.01, house_gib)

    def _plan(self, setting: Setting) -> MemoryPlan:
        return plan_memory(self._preset, options_of(self._preset, self._config(setting)))

    def _config(self, setting: Setting, *, dummy_weights: bool = False) -> ServerConfig:
        flags: dict[str, FlagValue] = {"tp-size": self._preset.model.tp_size, **setting.flags}
        if dummy_weights:
            flags["load-format"] = "dummy"
        return ServerConfig(
            "model", setting.mem_fraction_static, setting.kv_cache_dtype, setting.hicache_size_gb, flags
        )

    # -- measured levels

    def _cell(self, setting: Setting, concurrency: int) -> Cell:
        """The table's cell at this seed's capacity, speed and deliberate errors."""
        held = self._capacity(setting)
        return self._slowed(self._table.at(setting.kv_cache_dtype, setting.hicache_size_gb, held, concurrency))

    def _capacity(self, setting: Setting) -> float:
        return self._plan(setting).capacity_tokens * self._tokens_share(setting)

    def _slowed(self, cell: Cell) -> Cell:
        bend = self._hidden.errors.get("bend", 0.0)
        slower = self._hidden.speed * (1 + bend * (cell.running / 100) ** 2)
        return replace(
            cell,
            rate=cell.rate / slower,
            responses_per_s=cell.responses_per_s / slower,
            spent_s=cell.spent_s * slower,
        )

    def _level(self, concurrency: int, free_gib: float, limit_s: float | None) -> LevelResult:
        assert self._setting is not None
        cell = self._cell(self._setting, concurrency)
        spent_s = cell.spent_s if limit_s is None else min(limit_s, cell.spent_s)
        wider = (cell.spent_s / spent_s) ** 0.5
        rate = cell.rate * self._life * self._random.gauss(1.0, wider * LEVEL_NOISE)
        half_width = wider * INTERVAL_SHARE * rate
        queued = cell.queued > 0.1 * concurrency
        return LevelResult(
            concurrency=concurrency,
            end=LevelEnd.QUEUE_ONLY if queued else LevelEnd.NARROW,
            completion_rate=Interval(rate, rate - half_width, rate + half_width),
            measured_s=0.7 * spent_s,
            spent_s=spent_s,
            responses_per_s=cell.responses_per_s * rate / cell.rate,
            finished_requests=max(50, int(cell.responses_per_s * spent_s)),
            gen_tokens_per_s=rate,
            running_requests=cell.running,
            queued_requests=cell.queued,
            token_usage_share=cell.usage,
            tokens_in_flight_each=cell.in_flight,
            cache_hit_share=cell.hit,
            cache_hit_host_share=cell.host_hit,
            headroom_min_gib={0: free_gib},
        )

    def _failure(self, crashed: Crashed | None) -> Failure:
        log = crashed.log_text if crashed is not None else _silent_oom()
        found = classify(Evidence(log=log, exit_code=-9))
        if found is None:
            raise RuntimeError(f"a crash was not recognised: {log[-400:]}")
        return found

    # -- deliberate errors

    @property
    def _hidden_gib(self) -> float:
        """Memory that neither the log nor the driver shows, and that is missing in the worst step."""
        return self._hidden.errors.get("overhead_gib", 0.0)

    def _tokens_share(self, setting: Setting) -> float:
        eight_bit = setting.kv_cache_dtype != "bfloat16"
        return self._hidden.errors.get("fp8_tokens", 1.0) if eight_bit else 1.0

    def _shown(self, timeline: Timeline, setting: Setting) -> Timeline:
        memory = timeline.memory
        share = self._tokens_share(setting)
        if share == 1.0 or memory.capacity_tokens is None:
            return timeline
        return replace(timeline, memory=replace(memory, capacity_tokens=int(memory.capacity_tokens * share)))


def _silent_oom() -> str:
    """A crash whose text has no figures, as some allocators leave it."""
    stamp = "[2026-01-01 00:00:00"
    return (
        f"{stamp} TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory.\n"
        f"{stamp}] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
    )
