"""From what was seen of a level to its LevelResult. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from scipy import stats

from launcher.observe.sample import RankSample, Totals
from tuner.steady.estimate import Estimate
from tuner.steady.filling import SOME_QUEUE
from tuner.steady.response import Moment, Response, Slo
from tuner.trial import WIDEST_SHARE, Interval, LevelEnd, LevelResult, Percentiles
from tuner.workload import Request

GIB = 2**30
FEWEST_TURNED_SHARE = 0.25
"""Of the requests that run at once: so many must have finished before a rate is claimed. In the long run that takes a
quarter of an answer's time."""
FEWEST_RESPONSES = 20
"""Of fewer, the 95th percentile, by which an SLO judges, would be the largest value and no more."""
_FEWEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of a request that began here."""

    waited_s: float
    sent_after: int | None
    """Of the first wave: how many of it were sent after this one; None for later requests."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a level showed. Times in study seconds of one clock."""

    concurrency: int
    end: LevelEnd
    began_s: float
    ended_s: float
    estimate: Estimate | None
    responses: tuple[Response, ...]
    moments: tuple[Moment, ...]
    requests: tuple[Request, ...]
    """The sample of the workload that was played."""
    first_tokens: tuple[FirstToken, ...]
    unfinished_requests: int
    errors_by_kind: Mapping[str, int]
    kept_share: float
    """Of the generated tokens: those of answers that did not fail."""
    generated_tokens: float
    slo: Slo
    total_output_tokens: int | None
    turned_share: float = 1.0
    """Finished responses over the requests that ran at once."""
    same_few: bool = False
    """A few long answers held much of what was in flight, the same ones all the time."""
    began_empty: bool = False
    """Nobody knew what would be in flight in mid-life: answers of unknown length, or a short open loop."""
    arrival_variance: float = 0.0
    """Of the tokens that open loops ask for, per second of the window."""

    @property
    def begin_s(self) -> float:
        """Where the steady window begins; the level's beginning when there is none."""
        return self.estimate.begin_s if self.estimate else self.began_s

    @property
    def window(self) -> tuple[Moment, ...]:
        return tuple(moment for moment in self.moments if moment.now_s >= self.begin_s)

    @property
    def measured_s(self) -> float:
        return max(self.ended_s - self.begin_s, 1e-9)

    @property
    def output_tokens(self) -> float | None:
        """Mean length of an answer, if every length is known."""
        lengths = [request.output_tokens for request in self.requests]
        return None if None in lengths else float(np.mean([length for length in lengths if length]))


def level_result(seen: Observed) -> LevelResult:
    """The numbers of a level, each from the source that knows it best; None where nothing does."""
    rate = _completion_rate(seen)
    responses_per_s = _responses_per_s(seen, rate.value)
    times = response_times(seen, responses_per_s)
    good_tokens, good_responses = _goodput_shares(seen, times)
    running = _gauge(seen, lambda rank: rank.running_requests)
    used = _gauge(seen, lambda rank: rank.used_tokens)
    doubt = _doubt(seen, rate)
    power = _mean([sum(gpu.power_w or 0.0 for gpu in moment.gpus) for moment in seen.window if moment.gpus])
    computed, cached = _growth(seen, "prefill_computed_tokens"), _growth(seen, "prefill_cached_tokens")
    return LevelResult(
        concurrency=seen.concurrency,
        end=seen.end,
        completion_rate=rate,
        measured_s=seen.measured_s,
        spent_s=seen.ended_s - seen.began_s,
        responses_per_s=responses_per_s,
        finished_requests=len(seen.responses),
        gen_tokens_per_s=_gen_rate(seen),
        prompt_tokens_per_s=None if computed is None else (computed + (cached or 0.0)) / seen.measured_s,
        running_requests=running,
        queued_requests=_gauge(seen, lambda rank: rank.queued_requests),
        token_usage_share=_usage(seen),
        tokens_in_flight_each=used / running if used is not None and running else None,
        retracted_share=_retracted_share(seen),
        wasted_prefill_share=_wasted_share(seen, computed),
        cache_hit_share=_hit_share(seen, computed, cached),
        cache_hit_host_share=_host_hit_share(seen),
        ttft_s=_percentiles(times.ttft_s, len(times.ttft_s)) or _from_histogram(seen, "ttft"),
        itl_s=_percentiles(times.itl_s, times.paced_responses) or _from_histogram(seen, "itl"),
        e2e_s=_percentiles(times.e2e_s, times.ended_responses) or _from_histogram(seen, "e2e"),
        goodput_tokens_per_s=None if good_tokens is None else good_tokens * rate.value,
        slo_attainment_share=good_responses,
        unfinished_requests=seen.unfinished_requests,
        errors_by_kind=dict(seen.errors_by_kind),
        headroom_min_gib=_headroom(seen),
        power_w=power or None,
        tokens_per_joule=rate.value / power if power else None,
        remaining_s=_remaining(seen, rate, times),
        steady=doubt is None,
        doubt=doubt,
        group_rates=_group_rates(seen, rate.value),
    )


def _completion_rate(seen: Observed) -> Interval:
    """The steady estimate; without one, tokens over time, with no claim beyond +-100%."""
    elapsed_s = max(seen.ended_s - seen.began_s, 1e-9)
    counted = seen.generated_tokens / elapsed_s if seen.estimate is None else seen.estimate.rate
    if seen.turned_share < FEWEST_TURNED_SHARE:
        # Of an answer that takes longer than the level, each client gets one in it at the most.
        most = seen.concurrency * _asked_tokens(seen) / elapsed_s
        return Interval(seen.kept_share * counted, 0.0, max(2 * seen.kept_share * counted, most))
    if seen.estimate is None:
        rate = seen.kept_share * counted
        return Interval(rate, 0.0, 2 * rate)
    value, half = seen.estimate.rate * seen.kept_share, seen.estimate.half_width() * seen.kept_share
    if (_gauge(seen, lambda rank: rank.queued_requests) or 0.0) < SOME_QUEUE:
        # What arrives decides: in another stretch of the same length it would be so much more or less.
        half = float(np.hypot(half, stats.norm.ppf(0.975) * (seen.arrival_variance / seen.measured_s) ** 0.5))
    return Interval(value, max(0.0, value - half), value + half)


def _asked_tokens(seen: Observed) -> float:
    """Mean answer length, its limit where it is unknown."""
    return float(np.mean([request.output_tokens or request.max_tokens for request in seen.requests]))


def _doubt(seen: Observed, rate: Interval) -> str | None:
    """Why the rate is not to be relied on."""
    if seen.turned_share < FEWEST_TURNED_SHARE:
        return f"only {len(seen.responses)} responses finished: an answer takes longer than this level had"
    if seen.estimate is None:
        return "too few readings for an interval: the rate is all tokens over all the time, the ramp-up included"
    if not rate.is_measurement:
        return f"the interval is wider than +-{WIDEST_SHARE:.0%} of the rate"
    if seen.same_few:
        return "a few long answers hold much of the pool, and the level was shorter than they take"
    if seen.estimate.steady:
        return None
    if seen.began_empty:
        return "it began with nothing in flight, and ended before that was made up for"
    return "it was not shown to be steady before the level ended"


def _responses_per_s(seen: Observed, rate: float) -> float:
    """Rate over the workload's mean length; counted where lengths are the model's own."""
    if seen.output_tokens:
        return rate / seen.output_tokens
    return sum(response.finished_s >= seen.begin_s for response in seen.responses) / seen.measured_s


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies in seconds. `e2e_s` has one entry for each request of the sample."""

    ttft_s: list[float]
    itl_s: list[float]
    itl_mean_s: list[float]
    e2e_s: list[float]
    output_tokens: list[int]
    ended_responses: int
    """Responses that `e2e_s` rests on."""
    paced_responses: int
    """Responses that `itl_s` rests on."""


def response_times(seen: Observed, responses_per_s: float) -> Times:
    """Latencies without the bias of a short window, in which only short answers and short waits end.

    TTFT: those of the first wave that waited would have been waiting already when it was sent: the k-th
    from the end of the queue for k / X seconds, at X responses a second. E2E: where lengths are known,
    every request of the sample at the pace seen.
    """
    ttfts = [_ttft(first, responses_per_s) for first in seen.first_tokens]
    paces = [pace for response in seen.responses if (pace := _pace(response)) is not None]
    gaps = [gap for response in seen.responses for gap in response.itl_s] or paces
    paced = sum(bool(response.itl_s) for response in seen.responses) or len(paces)
    lengths = [request.output_tokens for request in seen.requests if request.output_tokens]
    if len(lengths) < len(seen.requests) or not ttfts or not paces:
        fresh = [each for each in seen.responses if not each.request.age_tokens]
        e2e = [each.finished_s - each.submitted_s for each in fresh]
        return Times(ttfts, gaps, paces, e2e, [each.completion_tokens for each in fresh], len(fresh), paced)
    triples = zip(lengths, cycle(ttfts), cycle(paces), strict=False)
    e2e = [first + pace * (length - 1) for length, first, pace in triples]
    return Times(ttfts, gaps, paces, e2e, lengths, min(len(ttfts), len(paces)), paced)


def _ttft(first: FirstToken, responses_per_s: float) -> float:
    if first.sent_after is None or responses_per_s <= 0:
        return first.waited_s
    return first.waited_s + first.sent_after / responses_per_s


def _pace(response: Response) -> float | None:
    """A response's mean time between tokens; None for so few tokens that one prefill beside them decides."""
    if response.first_token_s is None or response.completion_tokens < _FEWEST_TOKENS:
        return None
    return (response.finished_s - response.first_token_s) / (response.completion_tokens - 1)


def _goodput_shares(seen: Observed, times: Times) -> tuple[float | None, float | None]:
    """Shares of tokens and of responses that keep every SLO; None where there is no SLO, or nothing to judge by.

    Answers too short to have a pace keep any limit on it.
    """
    judged = times.ttft_s if seen.slo.ttft_p95_s is not None else [0.0]
    if not seen.slo.any or not times.e2e_s or not judged:
        return None, None
    rows = zip(times.e2e_s, times.output_tokens, cycle(judged), cycle(times.itl_mean_s or [0.0]), strict=False)
    kept = [(tokens, seen.slo.met(ttft, itl, e2e)) for e2e, tokens, ttft, itl in rows]
    good = sum(tokens for tokens, met in kept if met)
    return good / sum(tokens for tokens, _ in kept), sum(met for _, met in kept) / len(kept)


def _remaining(seen: Observed, rate: Interval, times: Times) -> Interval | None:
    """The whole job at this rate, and its tail: half an answer's time, when no more is sent."""
    if seen.total_output_tokens is None or rate.low <= 0:
        return None
    tail = float(np.median(times.e2e_s)) / 2 if times.e2e_s else 0.0
    spans = [seen.total_output_tokens / each + tail for each in (rate.value, rate.high, rate.low)]
    return Interval(*spans)


def _group_rates(seen: Observed, rate: float) -> dict[str, float]:
    """The rate split by group, in proportion to the tokens of what finished."""
    tokens: dict[str, float] = defaultdict(float)
    for response in seen.responses:
        tokens[response.request.group] += response.completion_tokens + response.request.age_tokens
    total = sum(tokens.values())
    return {group: rate * share / total for group, share in tokens.items()} if total and len(tokens) > 1 else {}


def _gen_rate(seen: Observed) -> float | None:
    window = [moment for moment in seen.window if moment.generated_tokens is not None]
    if len(window) < 2 or window[-1].now_s <= window[0].now_s:
        return None
    grown = (window[-1].generated_tokens or 0.0) - (window[0].generated_tokens or 0.0)
    return grown / (window[-1].now_s - window[0].now_s)


def _gauge(seen: Observed, read: Callable[[RankSample], float | None]) -> float | None:
    """Mean over the window of a gauge summed over DP ranks."""
    totals = []
    for moment in seen.window:
        values = [read(rank) for rank in moment.server.ranks] if moment.server else []
        known = [value for value in values if value is not None]
        if known:
            totals.append(float(sum(known)))
    return _mean(totals)


def _usage(seen: Observed) -> float | None:
    """Mean token usage of the fullest DP rank."""
    shares = []
    for moment in seen.window:
        ranks = moment.server.ranks if moment.server else ()
        known = [rank.token_usage_share for rank in ranks if rank.token_usage_share is not None]
        if known:
            shares.append(max(known))
    return _mean(shares)


def _growth(seen: Observed, name: str) -> float | None:
    """How much a server counter grew over the window."""
    totals: list[Totals] = [moment.server.totals for moment in seen.window if moment.server]
    values = [value for total in totals if (value := getattr(total, name)) is not None]
    return float(values[-1] - values[0]) if len(values) > 1 else None


def _retracted_share(seen: Observed) -> float | None:
    """Retractions per response: from the server's counter, else from what the responses said."""
    retracted, finished = _growth(seen, "retracted_requests"), _growth(seen, "finished_requests")
    if retracted is not None and finished:
        return retracted / finished
    if not seen.responses:
        return None
    return sum(response.retractions for response in seen.responses) / len(seen.responses)


def _wasted_share(seen: Observed, computed: float | None) -> float | None:
    """Prefill that computed again what a retraction had thrown away, as a share of all prefill."""
    again = [_growth(seen, f"retracted_{part}_tokens") for part in ("input", "output")]
    if not computed or None in again:
        return None
    return min(1.0, sum(part for part in again if part) / computed)


def _hit_share(seen: Observed, computed: float | None, cached: float | None) -> float | None:
    """Prompt tokens found in the cache, of all: from the counters, else from what the responses said."""
    if computed is not None and cached is not None and computed + cached > 0:
        return cached / (computed + cached)
    fresh = [response for response in seen.responses if response.finished_s >= seen.begin_s]
    prompt = sum(response.prompt_tokens for response in fresh)
    return sum(response.cached_tokens for response in fresh) / prompt if prompt else None


def _host_hit_share(seen: Observed) -> float | None:
    fresh = [response for response in seen.responses if response.finished_s >= seen.begin_s]
    prompt = sum(response.prompt_tokens for response in fresh)
    return sum(response.cached_host_tokens for response in fresh) / prompt if prompt else None


def _headroom(seen: Observed) -> dict[int, float]:
    """Least free memory of each GPU over the whole level, ramp-up included, in GiB."""
    least: dict[int, float] = {}
    for gpu in (gpu for moment in seen.moments for gpu in moment.gpus):
        free = gpu.memory_free_bytes
        if free is not None:
            least[gpu.index] = min(least.get(gpu.index, float("inf")), free / GIB)
    return least


def _percentiles(values: Sequence[float], responses: int) -> Percentiles | None:
    if not values or responses < FEWEST_RESPONSES:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.quantile(values, (0.5, 0.9, 0.95, 0.99)))
    return Percentiles(p50, p90, p95, p99, responses)


def _from_histogram(seen: Observed, name: str) -> Percentiles | None:
    """Percentiles of what the server's own histogram gained, for answers that did not stream."""
    found = [each for moment in seen.window if moment.server and (each := getattr(moment.server, name))]
    if len(found) < 2 or found[-1].upper_bounds_s != found[0].upper_bounds_s:
        return None
    gained = np.subtract(found[-1].cumulative_counts, found[0].cumulative_counts)
    responses = round(min(gained[-1], len(seen.responses)))
    if responses < FEWEST_RESPONSES:
        return None
    bounds = [bound for bound in found[-1].upper_bounds_s if np.isfinite(bound)]
    shares = np.concatenate(([0.0], gained[: len(bounds)] / gained[-1]))
    p50, p90, p95, p99 = (float(np.interp(q, shares, [0.0, *bounds])) for q in (0.5, 0.9, 0.95, 0.99))
    return Percentiles(p50, p90, p95, p99, responses)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
