"""One level on the simulated engine, in virtual time and in process: minutes of load in a fraction of a
second.
"""

from __future__ import annotations

from dataclasses import replace

from launcher.gpus import GpuSample
from launcher.observe.sample import RankSample, ServerFacts, ServerSample, Totals
from launcher.simulated.engine import Engine
from launcher.simulated.events import Aborted, Crashed, Event, Finished, FirstToken, Gauges, SimRequest
from tuner.measure.cap import OUT_TO_CAP
from tuner.measure.segments import segments_of
from tuner.steady import LevelController, Moment, Response, Room, Slo
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import Request, Workload

_DRAIN_S = 30.0
_GIB = 2**30


def measure_level(
    engine: Engine,
    workload: Workload,
    concurrency: int,
    limits: LevelLimits,
    *,
    slo: Slo | None = None,
    seed: int = 0,
) -> LevelResult | Crashed:
    """Measure one level on a running engine; what the engine left behind if it died of it.

    The engine's clock is the study's. Every call plays private text of its own, so that no level finds its
    prompts cached by an earlier one; prefixes that requests share stay warm, as they would be in a long
    run. Where arrivals decide, the engine runs at most `concurrency` of them, as `tuner.measure.live` lets a server.
    """
    before = engine.gauges().max_running_requests
    held = workload.is_open and concurrency <= before and engine.limit_running(concurrency)
    result = _Level(engine, workload, concurrency, limits, slo, seed, capped=held).run()
    engine.limit_running(before)
    if isinstance(result, Crashed) or not held:
        return result
    return replace(result, concurrency=concurrency, admission_cap=concurrency)


class _Level:
    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        concurrency: int,
        limits: LevelLimits,
        slo: Slo | None,
        seed: int,
        *,
        capped: bool,
    ) -> None:
        gauges = engine.gauges()
        self._engine = engine
        self._workload = workload
        self._every_s = limits.sample_every_s
        self._began_s = engine.now_s
        self._generated = 0
        self._out: dict[str, Request] = {}
        self._waiting: dict[str, tuple[Request, float]] = {}
        """Requests without a first token yet, and when they were sent."""
        self._controller = LevelController(
            workload.lanes(concurrency, open_slots=concurrency * OUT_TO_CAP if capped else None),
            limits,
            began_s=engine.now_s,
            room=Room(gauges.capacity_tokens, gauges.max_running_requests),
            slo=slo,
            seed=seed,
            first_play=round(engine.now_s * 1000),
            lengths=workload.lengths,
            total_output_tokens=workload.total_output_tokens,
        )

    def run(self) -> LevelResult | Crashed:
        self._submit(self._controller.first_wave())
        end = None
        while end is None:
            crashed = self._until(self._engine.now_s + self._every_s)
            if crashed:
                return crashed
            self._controller.on_moment(self._moment())
            end = self._controller.verdict(self._engine.now_s)
        result = self._controller.result(end, self._engine.now_s)
        return self._drain() or result

    def _until(self, until_s: float) -> Crashed | None:
        """Let time pass, answering every event; the crash if there is one."""
        while self._engine.now_s < until_s:
            self._submit(self._controller.arriving(self._engine.now_s))
            for event in self._engine.advance(min(until_s, self._controller.next_arrival_s)):
                if isinstance(event, Crashed):
                    return event
                self._submit(self._told(event))
        return self._engine.dead

    def _told(self, event: Event) -> tuple[Request, ...]:
        if isinstance(event, Finished):
            request = self._out.pop(event.request_id)
            self._generated += event.completion_tokens
            if event.request_id in self._waiting:
                self._first_token(event.request_id, event.first_token_s)
            return self._controller.on_finish(_response(request, event))
        if isinstance(event, FirstToken) and event.request_id in self._waiting:
            self._first_token(event.request_id, event.at_s)
        if isinstance(event, Aborted):
            request = self._out.pop(event.request_id)
            self._generated += event.completion_tokens
            kind = f"http_{event.status}"
            self._waiting.pop(event.request_id, None)
            return self._controller.on_error(request, kind, generated_tokens=event.completion_tokens)
        return ()

    def _first_token(self, request_id: str, at_s: float) -> None:
        request, submitted_s = self._waiting.pop(request_id)
        self._controller.on_first_token(request, submitted_s, at_s)

    def _submit(self, requests: tuple[Request, ...]) -> None:
        for request in requests:
            self._out[request.request_id] = request
            self._waiting[request.request_id] = (request, self._engine.now_s)
            self._engine.submit(
                SimRequest(
                    request.request_id,
                    segments_of(request),
                    request.tokens_to_generate,
                    request.max_tokens,
                    request.answer_key,
                )
            )

    def _moment(self) -> Moment:
        gauges = self._engine.gauges()
        started = sum(self._engine.progress(request_id) or 0 for request_id in self._out)
        return Moment(
            now_s=self._engine.now_s,
            generated_tokens=self._generated + started,
            server=sample_of(gauges),
            gpus=gpus_of(self._engine, gauges),
        )

    def _drain(self) -> Crashed | None:
        """Take back what is out, so that the next level begins on an idle server."""
        for request in self._out.values():
            self._controller.on_unfinished(request, self._engine.progress(request.request_id) or 0)
            self._engine.abort(request.request_id)
        until_s = self._engine.now_s + _DRAIN_S
        while self._engine.now_s < until_s and self._engine.gauges().running_requests:
            for event in self._engine.advance(until_s):
                if isinstance(event, Crashed):
                    return event
        return None


def _response(request: Request, event: Finished) -> Response:
    return Response(
        request=request,
        finish_reason="length" if event.stopped_at_limit else "stop",
        completion_tokens=event.completion_tokens,
        prompt_tokens=event.prompt_tokens,
        submitted_s=event.submitted_s,
        finished_s=event.finish_s,
        first_token_s=event.first_token_s,
        cached_tokens=event.cached_tokens,
        cached_host_tokens=event.cached_host_tokens,
        retractions=event.retractions,
    )


def sample_of(gauges: Gauges) -> ServerSample:
    """The engine's gauges in the form in which a real server is read."""
    counters = gauges.counters
    rank = RankSample(
        running_requests=gauges.running_requests,
        queued_requests=gauges.queued_requests,
        retracted_requests=gauges.retracted_requests,
        used_tokens=gauges.used_tokens,
        evictable_tokens=gauges.evictable_tokens,
        available_tokens=gauges.available_tokens,
        capacity_tokens=gauges.capacity_tokens,
        token_usage_share=gauges.token_usage_share,
        gen_tokens_per_s=gauges.gen_tokens_per_s,
        max_running_requests=gauges.max_running_requests,
        hicache_used_tokens=gauges.host_used_tokens,
        hicache_total_tokens=gauges.host_total_tokens,
    )
    totals = Totals(
        generation_tokens=counters.finished_generation_tokens,
        prompt_tokens=counters.finished_prompt_tokens,
        finished_requests=counters.finished_requests,
        aborted_requests=counters.aborted_requests,
        decoded_tokens=counters.decoded_tokens,
        prefill_computed_tokens=counters.prefill_computed_tokens,
        prefill_cached_tokens=counters.prefill_cached_tokens,
        cached_tokens_by_source={
            "device": counters.cached_device_tokens,
            "host": counters.cached_host_tokens,
        },
        retracted_requests=counters.retracted_requests,
        retracted_input_tokens=counters.retracted_input_tokens,
        retracted_output_tokens=counters.retracted_output_tokens,
        evicted_tokens=gauges.evicted_tokens,
        load_back_tokens=gauges.load_back_tokens,
        graph_decode_passes=counters.graph_decode_passes,
        eager_decode_passes=counters.eager_decode_passes,
    )
    return ServerSample(gauges.now_s, "simulated", ServerFacts(simulated=True), (rank,), totals)


def gpus_of(engine: Engine, gauges: Gauges) -> tuple[GpuSample, ...]:
    """The box's GPUs as the driver would show them."""
    box = engine.preset.box
    each_w = gauges.power_w / max(1, len(gauges.gpu_memory_used_bytes))
    return tuple(
        GpuSample(
            index=index,
            name=box.gpu_name,
            memory_total_bytes=round(box.gpu_memory_gib * _GIB),
            memory_used_bytes=used,
            utilization_share=gauges.utilization_share,
            power_w=each_w,
            simulated=True,
        )
        for index, used in enumerate(gauges.gpu_memory_used_bytes)
    )
