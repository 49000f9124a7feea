"""What goes into an engine and what comes out of it. Times are the engine's seconds since it became ready."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.simulated.radix import Segment


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request. Prompts with the same leading segments share KV."""

    request_id: str
    segments: tuple[Segment, ...]
    """(key, tokens) runs; the key stands for the text."""
    output_tokens: int
    """How many tokens the model will generate."""
    max_new_tokens: int | None = None
    """What the client allows (max_tokens): admission reserves for it. None is `output_tokens`."""
    answer_key: int | None = None
    """The key of the segment in which the conversation's next turn repeats this answer; None: it has none."""

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.segments)

    @property
    def stops_at_limit(self) -> bool:
        return self.max_new_tokens is None or self.output_tokens >= self.max_new_tokens


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Only when the engine was asked to report it."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A response is complete (stop or length)."""

    request_id: str
    submitted_s: float
    started_s: float
    """When its first prefill chunk began."""
    first_token_s: float
    finish_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache at its first admission, both tiers."""
    cached_host_tokens: int
    retractions: int
    stopped_at_limit: bool


@dataclass(frozen=True, slots=True)
class Aborted:
    """The client took it back, or the server refused it (`message`)."""

    request_id: str
    at_s: float
    completion_tokens: int
    message: str
    status: int = 499


@dataclass(frozen=True, slots=True)
class Crashed:
    """The engine is dead: what it leaves in its log, and the launcher's exit code (-9: killed itself)."""

    at_s: float
    log_text: str
    exit_code: int


Event = FirstToken | Finished | Aborted | Crashed


@dataclass(frozen=True, slots=True)
class PrefillLogged:
    """One "Prefill batch" line."""

    at_s: float
    new_requests: int
    new_tokens: int
    cached_tokens: int
    token_usage: float
    running: int
    queued: int
    pending_tokens: int
    input_tokens_per_s: float
    graph: bool


@dataclass(frozen=True, slots=True)
class DecodeLogged:
    """One "Decode batch" line."""

    at_s: float
    running: int
    tokens: int
    token_usage: float
    graph: bool
    gen_tokens_per_s: float
    queued: int


@dataclass(frozen=True, slots=True)
class RetractLogged:
    """One "KV cache pool is full. Retract requests." line."""

    at_s: float
    retracted: int
    tokens_gained: int
    ratio_before: float
    ratio_after: float


LogRecord = PrefillLogged | DecodeLogged | RetractLogged


@dataclass(slots=True)
class Counters:
    """Totals since the engine became ready; the ones of finished requests are credited when they finish."""

    finished_requests: int = 0
    finished_prompt_tokens: int = 0
    finished_generation_tokens: int = 0
    aborted_requests: int = 0
    decoded_tokens: int = 0
    prefill_computed_tokens: int = 0
    prefill_cached_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    retracted_requests: int = 0
    retracted_input_tokens: int = 0
    retracted_output_tokens: int = 0
    graph_decode_passes: int = 0
    eager_decode_passes: int = 0
    graph_prefill_passes: int = 0
    eager_prefill_passes: int = 0
    prefill_busy_s: float = 0.0
    queue_time_s: float = 0.0
    queue_count: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """One engine at one moment."""

    now_s: float
    running_requests: int
    queued_requests: int
    retracted_requests: int
    """Waiting again after a retraction."""
    used_tokens: int
    """Held by running requests, shared prefixes once; not the evictable cache."""
    evictable_tokens: int
    available_tokens: int
    capacity_tokens: int
    context_tokens: int
    """Sum of the running requests' lengths."""
    pending_tokens: int
    """Prompt tokens waiting to be computed."""
    gen_tokens_per_s: float
    """Of the last "Decode batch" line; 0 when idle."""
    new_token_ratio: float
    max_running_requests: int
    host_used_tokens: int
    host_total_tokens: int
    evicted_tokens: int
    load_back_tokens: int
    backup_tokens: int
    gpu_memory_used_bytes: tuple[int, ...]
    power_w: float
    utilization_share: float
    decode_steps: int
    counters: Counters
    """A copy."""

    @property
    def token_usage_share(self) -> float:
        return self.used_tokens / self.capacity_tokens
