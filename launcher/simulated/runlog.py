"""What a running server logs, and how it reckons its gen throughput (SGLang 0.5.6-0.5.23)."""

from __future__ import annotations

from launcher.simulated.events import DecodeLogged, LogRecord, PrefillLogged, RetractLogged
from launcher.simulated.scheduler import PrefillBatch, Scheduler


class RunLog:
    """Collects records when asked to; the gen rate is kept either way.

    gen throughput = tokens of the decode steps since the last "Decode batch" line / time since then, so
    that prefills in between lower it; one line every --decode-log-interval steps.
    """

    def __init__(self, scheduler: Scheduler, interval_steps: int, *, record: bool) -> None:
        self.records: list[LogRecord] = []
        self.gen_tokens_per_s = 0.0
        self._scheduler = scheduler
        self._interval_steps = interval_steps
        self._record = record
        self._decoded, self._steps, self._since_s = 0, 0, 0.0
        self._last_prefill_s = 0.0

    @property
    def steps_to_next_line(self) -> int:
        return max(1, self._interval_steps - self._steps)

    def _usage(self) -> float:
        return self._scheduler.used_tokens / self._scheduler.capacity_tokens

    def prefill(self, now_s: float, batch: PrefillBatch, *, graph: bool) -> None:
        if not self._record:
            return
        gap_s, self._last_prefill_s = max(1e-6, now_s - self._last_prefill_s), now_s
        self.records.append(
            PrefillLogged(
                at_s=now_s,
                new_requests=len(batch.complete) + (batch.partial is not None),
                new_tokens=batch.new_tokens,
                cached_tokens=batch.cached_tokens,
                token_usage=self._usage(),
                running=len(self._scheduler.running),
                queued=len(self._scheduler.waiting),
                pending_tokens=self._scheduler.pending_tokens(),
                input_tokens_per_s=batch.new_tokens / gap_s,
                graph=graph,
            )
        )

    def decode(self, now_s: float, steps: int, running: int, *, graph: bool) -> None:
        self._decoded += steps * running
        self._steps += steps
        if self._steps < self._interval_steps:
            return
        self.gen_tokens_per_s = self._decoded / max(1e-9, now_s - self._since_s)
        self._decoded, self._steps, self._since_s = 0, 0, now_s
        if self._record:
            self.records.append(
                DecodeLogged(
                    at_s=now_s,
                    running=running,
                    tokens=self._scheduler.used_tokens,
                    token_usage=self._usage(),
                    graph=graph,
                    gen_tokens_per_s=self.gen_tokens_per_s,
                    queued=len(self._scheduler.waiting),
                )
            )

    def retract(self, now_s: float, retracted: int, gained: int, ratio_before: float) -> None:
        if self._record:
            ratio = self._scheduler.new_token_ratio
            self.records.append(RetractLogged(now_s, retracted, gained, ratio_before, ratio))
