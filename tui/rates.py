"""Rates from two samples of the same server: differences of counters, and quantiles of histogram differences.

`generation_tokens_total` is credited when a response finishes (all SGLang versions), so its rate needs a
window of several end-to-end latencies; `realtime_tokens_total{mode="decode"}` (0.5.9 and later) grows with
every decode step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launcher.observe.sample import Histogram, ServerSample, Totals
from tui.snapshot import Quantiles, Rates

SHORT_WINDOW_S = 5.0
LONG_WINDOW_S = (15.0, 600.0)
"""Bounds of the completion window."""
E2E_PER_WINDOW = 3.0
LEAST_COMPLETION_WINDOW_S = 3.0
"""Over less than this one response more or less changes the rate beyond all meaning."""
LEAST_OBSERVATIONS = {0.50: 5, 0.90: 10, 0.95: 20, 0.99: 100}
"""By quantile: of fewer, not even one is expected beyond it (and a median of four is an anecdote)."""
MARK_EVERY_S = 2.0
"""Samples kept for differences are no closer than this: 300 of them are ten minutes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a later sample is compared with."""

    at_s: float
    totals: Totals
    from_metrics: bool
    """Read from /metrics, where a counter that is missing was never incremented."""
    ttft: Histogram | None
    itl: Histogram | None
    e2e: Histogram | None


def mark_of(sample: ServerSample) -> Mark:
    """Timed by the server's clock, which only the simulated engine's lets run faster than the wall's."""
    at_s = sample.taken_s * sample.facts.clock_speed
    return Mark(at_s, sample.totals, "metrics" in sample.sources, sample.ttft, sample.itl, sample.e2e)


def with_unborn(mark: Mark, later: Mark) -> Mark:
    """SGLang's counters appear in /metrics with their first increment: until then they are zero, not unknown.

    Only where the build is known to have them, which `realtime_tokens_total` (0.5.9 and later) proves, at the mark or
    at any `later` one; and a histogram that the later one has was empty before.
    """
    if later.totals.decoded_tokens is None or not mark.from_metrics:
        return mark
    return replace(
        mark,
        totals=_born(mark.totals),
        ttft=mark.ttft or _empty(later.ttft),
        itl=mark.itl or _empty(later.itl),
        e2e=mark.e2e or _empty(later.e2e),
    )


def _empty(histogram: Histogram | None) -> Histogram | None:
    if histogram is None:
        return None
    return replace(histogram, cumulative_counts=(0.0,) * len(histogram.cumulative_counts), sum_s=0.0, count=0.0)


def _born(totals: Totals) -> Totals:
    return replace(
        totals,
        decoded_tokens=totals.decoded_tokens or 0.0,
        generation_tokens=totals.generation_tokens or 0.0,
        prompt_tokens=totals.prompt_tokens or 0.0,
        finished_requests=totals.finished_requests or 0.0,
        aborted_requests=totals.aborted_requests or 0.0,
        retracted_requests=totals.retracted_requests or 0.0,
        retracted_input_tokens=totals.retracted_input_tokens or 0.0,
        retracted_output_tokens=totals.retracted_output_tokens or 0.0,
        evicted_tokens=totals.evicted_tokens or 0.0,
    )


def difference(old: float | None, new: float | None) -> float | None:
    """`new - old`, or None if either is unknown or the counter went back."""
    if old is None or new is None or new < old:
        return None
    return new - old


def histogram_difference(old: Histogram | None, new: Histogram | None) -> Histogram | None:
    """What was observed between two scrapes; the whole of `new` is never taken for a window."""
    if old is None or new is None or old.upper_bounds_s != new.upper_bounds_s or new.count < old.count:
        return None
    counts = tuple(b - a for a, b in zip(old.cumulative_counts, new.cumulative_counts, strict=True))
    return Histogram(new.upper_bounds_s, counts, new.sum_s - old.sum_s, new.count - old.count)


def quantile(histogram: Histogram, share: float) -> float | None:
    """The `share` quantile in seconds: an estimate inside its bucket; None without observations.

    Observations are taken to lie evenly over the part of their bucket that `mean_position` leaves: their mean is then
    the histogram's own. SGLang's buckets are wide where answers are slow (100 to 200 s): spread over all of such a
    bucket, answers of 100 to 118 s would seem to have a median of 150 s.
    A quantile in the last, unbounded bucket is that bucket's lower bound: all that is known is "at least".
    """
    total = histogram.cumulative_counts[-1] if histogram.cumulative_counts else 0.0
    if total <= 0:
        return None
    wanted, below_s, below = share * total, 0.0, 0.0
    for bound_s, count in zip(histogram.upper_bounds_s, histogram.cumulative_counts, strict=True):
        if count >= wanted:
            if math.isinf(bound_s) or count == below:
                return below_s
            position = _position((wanted - below) / (count - below), mean_position(histogram))
            return min(bound_s, below_s + (bound_s - below_s) * position)
        below_s, below = bound_s, count
    return below_s


def mean_position(histogram: Histogram) -> float:
    """Where in their buckets observations lie on average, 0 (lower bounds) to 1: one figure for all buckets, so that
    the mean it implies is `sum_s / count`.

    0.5, as Prometheus assumes, where the sum cannot tell: there is none, it contradicts the buckets, or a part of it
    belongs to the unbounded bucket.
    """
    at_least_s = widths_s = below_s = below = 0.0
    for bound_s, count in zip(histogram.upper_bounds_s, histogram.cumulative_counts, strict=True):
        here = count - below
        if math.isinf(bound_s) and here > 0:
            return 0.5
        if here > 0:
            at_least_s, widths_s = at_least_s + here * below_s, widths_s + here * (bound_s - below_s)
        below_s, below = bound_s, count
    position = (histogram.sum_s - at_least_s) / widths_s if widths_s > 0 else 0.5
    return position if 0.0 < position <= 1.0 else 0.5


def _position(rank_share: float, mean: float) -> float:
    """Of the observation below which `rank_share` of its bucket's lie: even over the part that is centred on `mean`
    and reaches one of the bucket's bounds. All 0 to 1.
    """
    if mean <= 0.5:
        return 2 * mean * rank_share
    return 1 - 2 * (1 - mean) * (1 - rank_share)


def quantiles(old: Histogram | None, new: Histogram | None) -> Quantiles | None:
    window = histogram_difference(old, new)
    if window is None or round(window.count) < 1:
        return None
    p50, p90, p95, p99 = (
        quantile(window, share) if round(window.count) >= least else None for share, least in LEAST_OBSERVATIONS.items()
    )
    return Quantiles(p50, p90, p95, p99, round(window.count))


class RateTracker:
    """The marks of one server, and the rates that follow from them."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=int(LONG_WINDOW_S[1] / MARK_EVERY_S) + 2)
        self._progress: tuple[float, tuple[float | None, ...]] | None = None

    def add(self, sample: ServerSample) -> Rates:
        """The rates at this sample. A restart of the server (a counter that went back) forgets what was
        before.
        """
        new = mark_of(sample)
        new = with_unborn(new, new)
        if self._marks and _went_back(self._marks[-1].totals, new.totals):
            self._marks.clear()
            self._progress = None
        if not self._marks or new.at_s - self._marks[-1].at_s >= MARK_EVERY_S:
            self._marks.append(new)
        short = self._at_least(new.at_s, SHORT_WINDOW_S)
        long = self._at_least(new.at_s, self._completion_window_s(new))
        return rates_between(short, long, new, self._stalled_s(sample, new))

    def _at_least(self, now_s: float, window_s: float) -> Mark:
        """The newest mark that is `window_s` old, or the oldest there is."""
        later = bisect_right(self._marks, now_s - window_s, key=lambda mark: mark.at_s)
        return self._marks[max(0, later - 1)]

    def _completion_window_s(self, new: Mark) -> float:
        oldest = with_unborn(self._marks[0], new)
        seen = histogram_difference(oldest.e2e, new.e2e)
        if seen is None or seen.count <= 0:
            seen = new.e2e
        mean_s = seen.sum_s / seen.count if seen is not None and seen.count > 0 else 0.0
        low_s, high_s = LONG_WINDOW_S
        return min(high_s, max(low_s, E2E_PER_WINDOW * mean_s))

    def _stalled_s(self, sample: ServerSample, new: Mark) -> float | None:
        totals = new.totals
        progress = (totals.decoded_tokens, totals.prefill_computed_tokens, totals.generation_tokens)
        if progress == (None, None, None) or not any(rank.running_requests for rank in sample.ranks):
            self._progress = None
            return None
        if self._progress is None or self._progress[1] != progress:
            self._progress = (new.at_s, progress)
        stalled_s = new.at_s - self._progress[0]
        return stalled_s if stalled_s > 0 else None


def _went_back(old: Totals, new: Totals) -> bool:
    pairs = (
        (old.generation_tokens, new.generation_tokens),
        (old.decoded_tokens, new.decoded_tokens),
        (old.finished_requests, new.finished_requests),
    )
    return any(a is not None and b is not None and b < a for a, b in pairs)


def rates_between(short: Mark, long: Mark, new: Mark, stalled_s: float | None = None) -> Rates:
    """Rates of `new` against a mark some seconds and one some latencies older; no time between them:
    nothing.
    """
    short, long = with_unborn(short, new), with_unborn(long, new)
    short_s, long_s = new.at_s - short.at_s, new.at_s - long.at_s
    if long_s <= 0:
        return Rates(stalled_s=stalled_s)
    a, b, c = long.totals, new.totals, short.totals
    hits = _hits(a, b)
    whole_s = long_s if long_s >= LEAST_COMPLETION_WINDOW_S else 0.0
    return Rates(
        window_s=short_s if short_s > 0 else None,
        completion_window_s=long_s,
        completion_tokens_per_s=_per_s(a.generation_tokens, b.generation_tokens, whole_s),
        responses_per_s=_per_s(a.finished_requests, b.finished_requests, whole_s),
        finished_prompt_tokens_per_s=_per_s(a.prompt_tokens, b.prompt_tokens, whole_s),
        gen_tokens_per_s=_per_s(c.decoded_tokens, b.decoded_tokens, short_s),
        prefill_tokens_per_s=_per_s(a.prefill_computed_tokens, b.prefill_computed_tokens, long_s),
        hit_share=hits[0],
        hit_share_by_source=hits[1],
        retractions_per_s=_per_s(a.retracted_requests, b.retracted_requests, long_s),
        retracted_tokens_per_s=_retracted_tokens_per_s(a, b, long_s),
        aborted_per_s=_per_s(a.aborted_requests, b.aborted_requests, long_s),
        evicted_tokens_per_s=_per_s(a.evicted_tokens, b.evicted_tokens, long_s),
        load_back_tokens_per_s=_per_s(a.load_back_tokens, b.load_back_tokens, long_s),
        eager_share=_eager_share(a, b),
        ttft=quantiles(long.ttft, new.ttft),
        itl=quantiles(long.itl, new.itl),
        e2e=quantiles(long.e2e, new.e2e),
        stalled_s=stalled_s,
    )


def _per_s(old: float | None, new: float | None, seconds: float) -> float | None:
    grown = difference(old, new)
    return None if grown is None or seconds <= 0 else grown / seconds


def _retracted_tokens_per_s(old: Totals, new: Totals, seconds: float) -> float | None:
    read = _per_s(old.retracted_input_tokens, new.retracted_input_tokens, seconds)
    written = _per_s(old.retracted_output_tokens, new.retracted_output_tokens, seconds)
    return None if read is None or written is None else read + written


def _eager_share(old: Totals, new: Totals) -> float | None:
    eager = difference(old.eager_decode_passes, new.eager_decode_passes)
    graph = difference(old.graph_decode_passes, new.graph_decode_passes)
    if eager is None or graph is None or eager + graph <= 0:
        return None
    return eager / (eager + graph)


def _hits(old: Totals, new: Totals) -> tuple[float | None, Mapping[str, float]]:
    """Share of prompt tokens served from a cache, whole and by source.

    By source the counters are credited at finish, so they are divided by the prompts of finished responses;
    without a source the scheduler's own prefill counters are taken. The `cache_hit_rate` gauge is reset by
    every decode batch up to 0.5.19 and is no average.
    """
    prompts = difference(old.prompt_tokens, new.prompt_tokens)
    sources = {
        name: grown
        for name, value in new.cached_tokens_by_source.items()
        if (grown := difference(old.cached_tokens_by_source.get(name, 0.0), value)) is not None
    }
    if sources and prompts:
        shares = {name: min(1.0, grown / prompts) for name, grown in sources.items()}
        return min(1.0, sum(shares.values())), shares
    cached = difference(old.prefill_cached_tokens, new.prefill_cached_tokens)
    computed = difference(old.prefill_computed_tokens, new.prefill_computed_tokens)
    if cached is None or computed is None or cached + computed <= 0:
        return None, {}
    return cached / (cached + computed), {}
