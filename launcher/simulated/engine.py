"""One running engine in virtual time: pure, event-driven, jumping over steps whose batch is unchanged.

    engine = Engine(preset, config, seed=1)
    engine.submit(SimRequest("a", ((1, 1000),), 200))
    events = engine.advance(60.0)      # returns early when a client would notice something

Same preset, configuration, seed and calls: same events, to the last digit.
"""

from __future__ import annotations

import random
from dataclasses import replace

from launcher.config import ServerConfig
from launcher.errors import LauncherError
from launcher.simulated.events import (
    Aborted,
    Counters,
    Crashed,
    Event,
    FirstToken,
    Gauges,
    LogRecord,
    SimRequest,
)
from launcher.simulated.faults import HEALTHY, EngineFaults
from launcher.simulated.logtext import crash_under_load, cuda_crash_under_load
from launcher.simulated.memory import GIB, MemoryPlan, plan_memory
from launcher.simulated.options import EngineOptions, options_of
from launcher.simulated.pace import Pace, Wander
from launcher.simulated.presets import Preset
from launcher.simulated.radix import HostTier, RadixCache
from launcher.simulated.runlog import RunLog
from launcher.simulated.scheduler import Live, PrefillBatch, Scheduler
from launcher.simulated.worst_step import Overflow, WorstStep

_PRE_RESERVED_TOKENS = 6
"""A prompt may be as long as the pool less this (SGLang: max_req_input_len)."""


class Engine:
    """A server that is ready, at `now_s` = 0. Raises LauncherError when this configuration cannot start."""

    def __init__(
        self,
        preset: Preset,
        config: ServerConfig,
        *,
        seed: int,
        faults: EngineFaults = HEALTHY,
        plan: MemoryPlan | None = None,
        record_log: bool = False,
        report_first_tokens: bool = False,
    ) -> None:
        self.preset, self.config = preset, config
        self.options = options_of(preset, config)
        self.plan = plan if plan is not None else plan_memory(preset, self.options)
        if self.plan.death is not None:
            raise LauncherError(f"this configuration does not start: {self.plan.death.value}")
        self.now_s = 0.0
        self.dead: Crashed | None = None
        self.counters = Counters()
        cache = RadixCache(_host_tier(self.options, self.plan), enabled=not self.options.disable_radix_cache)
        self._scheduler = Scheduler(self.plan.capacity_tokens, self.options, self.plan.max_running_requests, cache)
        self._pace = Pace(preset, self.options)
        self._faults = faults
        self._report_first_tokens = report_first_tokens
        self._log = RunLog(self._scheduler, self.options.decode_log_interval, record=record_log)
        self._random = random.Random(f"{preset.name}:{seed}")
        self._speed = Wander(preset.noise, self._random, faults.speed_factor)
        self._worst_step = WorstStep(
            preset.transient,
            self.plan.headroom_gib,
            tp_share=preset.model.tp_size / self.options.tp_size,
            factor=max(0.5, self._random.gauss(1.0, preset.noise.transient_sd_share)),
        )
        self._live: dict[str, Live] = {}
        self._aborting: list[Live] = []
        self._order = 0
        self._flight: tuple[float, PrefillBatch | int] | None = None
        self._outbox: list[Event] = []
        self._debt_s = 0.0
        self._backed_up_tokens = 0

    # -- what a client does

    @property
    def max_prompt_tokens(self) -> int:
        return min(self.options.context_len, self.plan.capacity_tokens) - _PRE_RESERVED_TOKENS

    def submit(self, request: SimRequest) -> None:
        """A request arrives now. A prompt that the pool can never hold ends in an Aborted event (400)."""
        if request.prompt_tokens > self.max_prompt_tokens:
            message = (
                f"Input length ({request.prompt_tokens} tokens) exceeds the maximum allowed length "
                f"({self.max_prompt_tokens} tokens). Use a shorter input or enable --allow-auto-truncate."
            )
            self._outbox.append(Aborted(request.request_id, self.now_s, 0, message, 400))
            return
        limit = self.options.max_queued_requests
        if limit is not None and len(self._scheduler.waiting) >= limit:
            self._outbox.append(Aborted(request.request_id, self.now_s, 0, "The request queue is full.", 503))
            return
        self._order += 1
        self._enqueue(self._fitted(request))

    def _fitted(self, request: SimRequest) -> SimRequest:
        """Output is cut so that prompt and output fit the context and the pool, as SGLang does."""
        room = min(self.options.context_len, self.plan.capacity_tokens) - 1 - request.prompt_tokens - 1
        allowed = min(request.max_new_tokens or request.output_tokens, max(1, room))
        output = max(1, min(request.output_tokens, allowed))
        return replace(request, output_tokens=output, max_new_tokens=allowed)

    def _enqueue(self, request: SimRequest) -> None:
        live = Live(request, self._order, self.now_s, request.max_new_tokens or request.output_tokens)
        self._live[request.request_id] = live
        self._scheduler.waiting.append(live)

    def abort(self, request_id: str) -> None:
        """Take a request back: at once when it waits, else after the current step. Unknown ids: nothing."""
        live = self._live.get(request_id)
        if live is None:
            return
        waits = live in self._scheduler.waiting
        live.abort_message = "Abort in waiting queue" if waits else "Abort requested"
        if waits:
            self._drop(live)
        else:
            self._aborting.append(live)

    def flush_cache(self) -> bool:
        """Forget the prefix cache. False while requests are pending."""
        if self._live:
            return False
        self._scheduler.cache.flush()
        return True

    def limit_running(self, requests: int) -> bool:
        """Change the admission cap live (pp_max_micro_batch_size): 1 to max_running_requests."""
        if not 1 <= requests <= self.plan.max_running_requests:
            return False
        self._scheduler.max_running = requests
        return True

    def progress(self, request_id: str) -> int | None:
        """Tokens generated so far; None when the engine does not hold that request."""
        live = self._live.get(request_id)
        return None if live is None else live.generated_at(self._scheduler.step)

    # -- time

    def advance(self, until_s: float) -> list[Event]:
        """Let time pass to `until_s`, or to the first moment at which a client would notice something."""
        while True:
            if self._outbox:
                events, self._outbox = self._outbox, []
                return events
            if self.dead is not None or self._faults.is_stuck(self.now_s):
                self.now_s = max(self.now_s, until_s)
                return []
            if self._flight is None and not self._begin(until_s):
                self._rest(until_s)
                return []
            if self._flight is None:
                continue
            end_s, work = self._flight
            if end_s > until_s:
                self.now_s = max(self.now_s, until_s)
                return []
            self._flight, self.now_s = None, end_s
            self._complete(work)

    def _rest(self, until_s: float) -> None:
        """Nothing to do: an idle scheduler forgets its estimate and shows no throughput."""
        if until_s > self.now_s:
            self._scheduler.reset_ratio()
            self._log.gen_tokens_per_s = 0.0
        self.now_s = max(self.now_s, until_s)

    def _begin(self, until_s: float) -> bool:
        """Start the next step; False when there is nothing to do before `until_s`."""
        if self.now_s >= until_s:
            return False
        if self._live and self._faults.crash_is_due(self.now_s):
            self._die(cuda_crash_under_load())
            return True
        if self._may_prefill():
            batch = self._scheduler.admit()
            if batch is not None:
                self._begin_prefill(batch)
                return True
        if self._scheduler.running:
            self._begin_decode(until_s)
            return True
        return False

    def _may_prefill(self) -> bool:
        every = self.options.num_continuous_decode_steps
        scheduler = self._scheduler
        due = scheduler.chunked is not None or not scheduler.running or scheduler.step % max(1, every) == 0
        return due and scheduler.wants_prefill()

    def _steps_to_admission(self) -> int:
        """New requests are looked at only every --num-continuous-decode-steps steps."""
        every = max(1, self.options.num_continuous_decode_steps)
        return every - self._scheduler.step % every if self._scheduler.wants_prefill() else 1 << 40

    def _begin_prefill(self, batch: PrefillBatch) -> None:
        requests = len(batch.complete) + (batch.partial is not None)
        if self._died_of(self._worst_step.prefill(batch.new_tokens, requests)):
            return
        took = self._pace.prefill_s(batch.new_tokens, batch.cached_tokens) + self._debt_s
        took += batch.load_back_tokens * self.plan.bytes_per_token / self.preset.hicache.pcie_bytes_per_s
        self._debt_s = 0.0
        for live in (*batch.complete, *((batch.partial,) if batch.partial else ())):
            if live.started_s is None:
                live.started_s = self.now_s
                self.counters.queue_time_s += self.now_s - live.submitted_s
                self.counters.queue_count += 1
        self._log.prefill(self.now_s, batch, graph=self.options.prefill_graphs)
        took *= self._speed.slowness(self.now_s)
        self.counters.prefill_busy_s += took
        self._flight = (self.now_s + took, batch)

    def _begin_decode(self, until_s: float) -> None:
        scheduler = self._scheduler
        running = len(scheduler.running)
        if scheduler.available_tokens < running:
            self._retract()
            return
        if self._died_of(self._worst_step.decode(running, graph=self._pace.uses_graph(running))):
            return
        steps = min(
            scheduler.steps_to_next_finish() or 1,
            max(1, scheduler.available_tokens // running),
            self._log.steps_to_next_line,
            self._steps_to_admission(),
        )
        slowness = self._speed.slowness(self.now_s)
        left_s = (until_s - self.now_s - self._debt_s) / slowness
        steps = max(1, min(steps, self._pace.steps_within(left_s, running, scheduler.context_tokens)))
        took = self._pace.decode_s(steps, running, scheduler.context_tokens) * slowness + self._debt_s
        self._debt_s = 0.0
        self._flight = (self.now_s + took, steps)

    def _complete(self, work: PrefillBatch | int) -> None:
        if isinstance(work, PrefillBatch):
            self._complete_prefill(work)
        else:
            self._complete_decode(work)
        for live in self._scheduler.pop_finished():
            self._finish(live)
        for live in self._aborting:
            if live.request.request_id in self._live:
                self._drop(live)
        self._aborting.clear()
        self._charge_backups()

    def _complete_prefill(self, batch: PrefillBatch) -> None:
        counters = self.counters
        counters.prefill_computed_tokens += batch.new_tokens
        counters.prefill_cached_tokens += batch.cached_tokens
        if self.options.prefill_graphs:
            counters.graph_prefill_passes += 1
        else:
            counters.eager_prefill_passes += 1
        self._scheduler.finish_prefill(batch)
        for live in batch.complete:
            if live.first_token_s is None:
                live.first_token_s = self.now_s
                if self._report_first_tokens:
                    self._outbox.append(FirstToken(live.request.request_id, self.now_s))

    def _complete_decode(self, steps: int) -> None:
        running = len(self._scheduler.running)
        self._scheduler.decode(steps)
        self.counters.decoded_tokens += steps * running
        graph = self._pace.uses_graph(running)
        if graph:
            self.counters.graph_decode_passes += steps
        else:
            self.counters.eager_decode_passes += steps
        self._log.decode(self.now_s, steps, running, graph=graph)

    def _finish(self, live: Live) -> None:
        request, counters = live.request, self.counters
        del self._live[request.request_id]
        counters.finished_requests += 1
        counters.finished_prompt_tokens += request.prompt_tokens
        counters.finished_generation_tokens += request.output_tokens
        counters.cached_device_tokens += live.cached_tokens - live.cached_host_tokens
        counters.cached_host_tokens += live.cached_host_tokens
        self._outbox.append(live.finished(self.now_s))

    def _drop(self, live: Live) -> None:
        generated = live.generated_at(self._scheduler.step)
        self._scheduler.release(live)
        del self._live[live.request.request_id]
        self.counters.aborted_requests += 1
        self._outbox.append(Aborted(live.request.request_id, self.now_s, generated, live.abort_message or ""))

    def _retract(self) -> None:
        scheduler = self._scheduler
        before = scheduler.new_token_ratio
        taken, gained = scheduler.retract()
        if not taken:
            live = next(iter(scheduler.running.values()))
            live.abort_message = (
                "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."
            )
            self._drop(live)
            return
        self.counters.retracted_requests += len(taken)
        self.counters.retracted_input_tokens += sum(live.request.prompt_tokens for live in taken)
        self.counters.retracted_output_tokens += sum(live.generated for live in taken)
        self._log.retract(self.now_s, len(taken), gained, before)

    # -- dying

    def _died_of(self, overflow: Overflow | None) -> bool:
        if overflow is not None:
            self._die(crash_under_load(self.preset, overflow.tried_gib, overflow.free_gib))
        return overflow is not None

    def _die(self, log_text: str) -> None:
        self.dead = Crashed(self.now_s, log_text, -9)
        self._outbox.append(self.dead)

    def _charge_backups(self) -> None:
        """Copies to the host run beside the compute stream and delay it by a share of their time."""
        backed_up = self._scheduler.cache.counters.backup_tokens
        copied = (backed_up - self._backed_up_tokens) * self.plan.bytes_per_token
        self._backed_up_tokens = backed_up
        self._debt_s += self.preset.hicache.interference_share * copied / self.preset.hicache.pcie_bytes_per_s

    # -- what can be seen

    def take_log(self) -> list[LogRecord]:
        """The log records since the last call."""
        records, self._log.records = self._log.records, []
        return records

    def gpu_memory_used_bytes(self) -> int:
        """What the driver shows as used on each of this engine's GPUs."""
        return int((self.preset.box.gpu_memory_gib - self._worst_step.free_gib) * GIB)

    def gauges(self) -> Gauges:
        """The state now, for /metrics, the tuner's driver and the GPUs."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        busy = bool(scheduler.running or scheduler.chunked or self._flight)
        box = self.preset.box
        return Gauges(
            now_s=self.now_s,
            running_requests=len(scheduler.running),
            queued_requests=len(scheduler.waiting),
            retracted_requests=sum(live.retractions > 0 for live in scheduler.waiting),
            used_tokens=scheduler.used_tokens,
            evictable_tokens=cache.evictable_tokens,
            available_tokens=scheduler.free_tokens,
            capacity_tokens=self.plan.capacity_tokens,
            context_tokens=scheduler.context_tokens,
            pending_tokens=scheduler.pending_tokens(),
            gen_tokens_per_s=self._log.gen_tokens_per_s if busy else 0.0,
            new_token_ratio=scheduler.new_token_ratio,
            max_running_requests=scheduler.max_running,
            host_used_tokens=cache.host_used_tokens,
            host_total_tokens=self.plan.host_tokens,
            evicted_tokens=cache.counters.evicted_tokens,
            load_back_tokens=cache.counters.load_back_tokens,
            backup_tokens=cache.counters.backup_tokens,
            gpu_memory_used_bytes=(self.gpu_memory_used_bytes(),) * self.options.tp_size,
            power_w=box.power_busy_w if busy else box.power_idle_w,
            utilization_share=1.0 if busy else 0.0,
            decode_steps=scheduler.step,
            counters=replace(self.counters),
        )


def _host_tier(options: EngineOptions, plan: MemoryPlan) -> HostTier | None:
    return HostTier(plan.host_tokens, options.hicache_write_policy) if options.hicache_on else None
