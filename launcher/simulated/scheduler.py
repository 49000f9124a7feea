"""Who runs and who waits: admission, chunked prefill, retraction. Tokens only; time is the engine's business.

The rules are SGLang's (0.5.6-0.5.23, schedule_policy.PrefillAdder, scheduler.get_new_batch_prefill,
schedule_batch.retract_decode): a new request is admitted while its prompt and the whole of its allowed
output fit beside `new_token_ratio` times what the running requests may still generate; the ratio starts at
0.7 times --schedule-conservativeness, decays with every decode step to 14% of that in 600 steps, and jumps up
on a retraction.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from launcher.simulated.events import Finished, SimRequest
from launcher.simulated.options import EngineOptions
from launcher.simulated.radix import Node, RadixCache, Segment

CLIP_MAX_NEW_TOKENS = 4096
"""No request is reckoned with more output than this (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
RETRACT_DECODE_STEPS = 20
_INIT_RATIO, _MIN_RATIO_FACTOR, _DECAY_STEPS = 0.7, 0.14, 600


@dataclass(slots=True, eq=False)
class Live:
    """A request inside the engine."""

    request: SimRequest
    order: int
    submitted_s: float
    max_new_tokens: int
    generated: int = 0
    """Tokens generated when it last joined the running batch."""
    joined_step: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    retractions: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    path: list[Node] = field(default_factory=list)
    fresh: list[Segment] = field(default_factory=list)
    """Segments that this admission computes, to be put behind `path`."""
    private_tokens: int = 0
    """Device tokens that are its own, at `joined_step` (later: plus the steps since)."""
    left_to_prefill: int = 0
    running: bool = False
    abort_message: str | None = None

    def generated_at(self, step: int) -> int:
        return self.generated + (step - self.joined_step if self.running else 0)

    def length_at(self, step: int) -> int:
        return self.request.prompt_tokens + self.generated_at(step)

    def finished(self, now_s: float) -> Finished:
        """The event of its end."""
        request = self.request
        return Finished(
            request_id=request.request_id,
            submitted_s=self.submitted_s,
            started_s=self.submitted_s if self.started_s is None else self.started_s,
            first_token_s=now_s if self.first_token_s is None else self.first_token_s,
            finish_s=now_s,
            prompt_tokens=request.prompt_tokens,
            completion_tokens=request.output_tokens,
            cached_tokens=self.cached_tokens,
            cached_host_tokens=self.cached_host_tokens,
            retractions=self.retractions,
            stopped_at_limit=request.stops_at_limit,
        )

    def may_still_generate(self, step: int) -> int:
        return min(max(self.max_new_tokens - self.generated_at(step), 0), CLIP_MAX_NEW_TOKENS)


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """One prefill step: `complete` requests get their first token at its end, `partial` goes on later."""

    complete: tuple[Live, ...]
    partial: Live | None
    new_tokens: int
    cached_tokens: int
    load_back_tokens: int
    new_requests: int


class Scheduler:
    """The state of one DP rank."""

    def __init__(self, capacity_tokens: int, options: EngineOptions, max_running: int, cache: RadixCache) -> None:
        self.capacity_tokens = capacity_tokens
        self.cache = cache
        self.max_running = max_running
        self.waiting: deque[Live] = deque()
        self.running: dict[str, Live] = {}
        self.chunked: Live | None = None
        self.step = 0
        self.context_tokens = 0
        self.init_ratio = min(_INIT_RATIO * options.schedule_conservativeness, 1.0)
        self.new_token_ratio = self.init_ratio
        self._min_ratio = self.init_ratio * _MIN_RATIO_FACTOR
        self._decay = (self.init_ratio - self._min_ratio) / _DECAY_STEPS
        self._options = options
        self._private_tokens = 0
        self._full = False
        self._finishes: list[tuple[int, int, Live, int]] = []
        self._ticks = count()
        self._page_slack = (options.page_size - 1) / 2

    # -- tokens

    @property
    def used_tokens(self) -> int:
        return self.cache.locked_tokens + self._private_tokens + int(self._page_slack * len(self.running))

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.used_tokens - self.cache.evictable_tokens

    @property
    def available_tokens(self) -> int:
        """Free or evictable."""
        return self.capacity_tokens - self.used_tokens

    def pending_tokens(self) -> int:
        """Prompt tokens that wait to be computed."""
        waiting = sum(live.length_at(self.step) for live in self.waiting)
        return waiting + (self.chunked.left_to_prefill if self.chunked else 0)

    def _take(self, tokens: int) -> None:
        missing = tokens - self.free_tokens
        if missing > 0:
            self.cache.evict(missing)
        self._private_tokens += tokens

    # -- admission

    def wants_prefill(self) -> bool:
        return self.chunked is not None or (bool(self.waiting) and not self._full)

    def admit(self) -> PrefillBatch | None:
        """Form the next prefill batch, allocating its tokens; None when nothing can be admitted now."""
        room = _Room(self)
        batch: list[Live] = []
        cached = load_back = 0
        if self.chunked is not None:
            live, self.chunked = self.chunked, None
            room.continue_chunk(live)
            batch.append(live)
        joined = len(batch)
        while self.waiting and self.chunked is None and room.chunk_left > 0:
            if len(self.running) + len(batch) >= self.max_running:
                self._full = True
                break
            live = self.waiting[0]
            found = room.try_add(live, bool(batch))
            if found is None:
                break
            self.waiting.popleft()
            batch.append(live)
            cached, load_back = cached + found[0], load_back + found[1]
        if not batch:
            return None
        complete = tuple(live for live in batch if live is not self.chunked)
        return PrefillBatch(complete, self.chunked, room.new_tokens, cached, load_back, len(batch) - joined)

    def finish_prefill(self, batch: PrefillBatch) -> None:
        """The step is done: its requests have their first token and join the running batch."""
        if not self.running:
            self._full = False  # an empty running batch is replaced by the new one, which is not full
        for live in batch.complete:
            live.path = self.cache.insert(live.fresh, live.path)
            inserted = sum(tokens for _, tokens in live.fresh)
            live.private_tokens -= inserted
            self._private_tokens -= inserted
            live.fresh = []
            live.generated += 1
            live.private_tokens += 1
            self._take(1)
            live.joined_step, live.running = self.step, True
            self.running[live.request.request_id] = live
            self.context_tokens += live.length_at(self.step)
            last_step = self.step + live.request.output_tokens - live.generated
            heapq.heappush(self._finishes, (last_step, next(self._ticks), live, live.retractions))

    # -- decoding

    def steps_to_next_finish(self) -> int | None:
        while self._finishes:
            step, _, live, retractions = self._finishes[0]
            if live.running and live.retractions == retractions:
                return max(0, step - self.step)
            heapq.heappop(self._finishes)
        return None

    def decode(self, steps: int) -> None:
        """Every running request generates `steps` tokens; the caller has made sure that they fit."""
        tokens = steps * len(self.running)
        self._take(tokens)
        self.context_tokens += tokens
        self.step += steps
        self.new_token_ratio = max(self.new_token_ratio - steps * self._decay, self._min_ratio)

    def pop_finished(self) -> list[Live]:
        """Take out the requests that have generated everything; their KV becomes evictable cache."""
        done: list[Live] = []
        while self.steps_to_next_finish() == 0:
            live = heapq.heappop(self._finishes)[2]
            done.append(live)
            self._leave(live, keep_in_cache=True)
        return done

    def release(self, live: Live) -> None:
        """Take out a request that was aborted, wherever it is."""
        if live.running:
            self._leave(live, keep_in_cache=False)
        elif live is self.chunked:
            self.chunked = None
            self._free(live)
        elif live in self.waiting:
            self.waiting.remove(live)

    def retract(self) -> tuple[list[Live], int]:
        """Take back requests until the rest can decode on: fewest output tokens first, longest prompt first.

        Their prompts stay in the cache as evictable; their output must be prefilled again. Returns them
        and the tokens gained. Nothing is taken from the last one.
        """
        keep = sorted(self.running.values(), key=self._retraction_key, reverse=True)
        before = self.available_tokens
        taken: list[Live] = []
        while len(keep) > 1 and (not taken or self.available_tokens < len(keep) * RETRACT_DECODE_STEPS):
            live = keep.pop()
            self._leave(live, keep_in_cache=False)
            live.retractions += 1
            self.waiting.append(live)
            taken.append(live)
        self.new_token_ratio = min(1.0, self._ratio_seen(keep))
        return taken, self.available_tokens - before

    def reset_ratio(self) -> None:
        """An idle scheduler starts over with its first estimate."""
        self.new_token_ratio = self.init_ratio

    def _retraction_key(self, live: Live) -> tuple[int, int]:
        return live.generated_at(self.step), -live.request.prompt_tokens

    def _ratio_seen(self, keep: list[Live]) -> float:
        decoded = sum(live.generated_at(self.step) for live in keep)
        allowed = sum(live.max_new_tokens for live in keep)
        return (decoded + RETRACT_DECODE_STEPS * len(keep)) / (allowed + 1)

    def _leave(self, live: Live, *, keep_in_cache: bool) -> None:
        steps = self.step - live.joined_step
        self.context_tokens -= live.length_at(self.step)
        live.generated, live.private_tokens = live.generated + steps, live.private_tokens + steps
        live.running = False
        del self.running[live.request.request_id]
        if keep_in_cache and live.private_tokens and not self._options.disable_radix_cache:
            # One node for the answer: only a request that continues exactly this conversation could match it.
            live.path = self.cache.insert(((self._answer_key(live), live.private_tokens),), live.path)
            self._private_tokens -= live.private_tokens
            live.private_tokens = 0
        self._free(live)
        self._full = False

    def _free(self, live: Live) -> None:
        self._private_tokens -= live.private_tokens
        live.private_tokens = 0
        self.cache.unlock(live.path)
        live.path, live.fresh, live.left_to_prefill = [], [], 0
        if self._options.disable_radix_cache:
            self.cache.evict(self.cache.evictable_tokens)

    def _answer_key(self, live: Live) -> int:
        key = live.request.answer_key
        return hash((live.request.request_id, live.order)) if key is None else key


class _Room:
    """The budgets of one prefill batch while it is formed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._s = scheduler
        options = scheduler._options
        self._unlimited = options.chunked_prefill_size <= 0
        self.chunk_left = 1 << 40 if self._unlimited else options.chunked_prefill_size
        self._input_left = max(options.max_prefill_tokens, 1)
        running = scheduler.running.values()
        reserved = sum(live.may_still_generate(scheduler.step) for live in running)
        self._reserved = reserved * scheduler.new_token_ratio
        self.new_tokens = 0

    def continue_chunk(self, live: Live) -> None:
        size = min(self.chunk_left, live.left_to_prefill)
        self._spend(live, size)

    def try_add(self, live: Live, others: bool) -> tuple[int, int] | None:
        """Admit one request, whole or its first chunk: (cached tokens, host tokens among them), or None."""
        s = self._s
        segments = _to_prefill(live)
        total = sum(tokens for _, tokens in segments)
        path, host_tokens = s.cache.match(segments, total - 1)
        cached = sum(node.tokens for node in path)
        extend = total - cached
        if extend + live.may_still_generate(s.step) >= self._left_beside(path) and (s.running or others):
            # With an empty batch there is nobody to wait for: the request fits the pool, so it is let in.
            s._full = True
            return None
        if others and self._unlimited and extend > self._input_left:
            return None
        s.cache.lock(path)
        s._take(0)
        live.path, live.fresh, live.left_to_prefill = path, segments[len(path) :], extend
        if live.retractions == 0:
            live.cached_tokens, live.cached_host_tokens = cached, host_tokens
        self._spend(live, min(self.chunk_left, extend))
        return cached, host_tokens

    def _left_beside(self, path: list[Node]) -> float:
        """Tokens left once `path` is locked (evictable and host-only nodes of it cost room)."""
        newly_locked = sum(node.tokens for node in path if node.locks == 0)
        return self._s.available_tokens - newly_locked - self._reserved

    def _spend(self, live: Live, size: int) -> None:
        s = self._s
        s._take(size)
        live.private_tokens += size
        live.left_to_prefill -= size
        self.new_tokens += size
        self.chunk_left -= size
        self._input_left -= size
        if live.left_to_prefill > 0:
            s.chunked = live
        else:
            self._reserved += live.may_still_generate(s.step)


def _to_prefill(live: Live) -> list[Segment]:
    """The prompt, and after a retraction what had been generated, which is computed again."""
    segments = list(live.request.segments)
    if live.generated:
        segments.append((-1 - live.order, live.generated))
    return segments
