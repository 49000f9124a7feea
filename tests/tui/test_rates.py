import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.observe.sample import Histogram, RankSample, ServerFacts, ServerSample, Totals
from tui.panels.look import Look
from tui.panels.servers import one_server
from tui.rates import RateTracker, difference, histogram_difference, quantile, quantiles

BOUNDS = (0.1, 1.0, 10.0, math.inf)


def sample(at_s: float, totals: Totals, running: int = 1, e2e: Histogram | None = None) -> ServerSample:
    ranks = (RankSample(running_requests=running),)
    return ServerSample(at_s, "http://x:1", ranks=ranks, totals=totals, e2e=e2e, sources=("metrics",))


def test_a_counter_that_went_back_has_no_difference() -> None:
    assert difference(5.0, 3.0) is None
    assert difference(None, 3.0) is None
    assert difference(3.0, 5.0) == 2.0


E2E_BOUNDS = (10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0, 1800.0, 2400.0, math.inf)
"""The slow end of SGLang's own buckets of end-to-end latencies."""


def observed(observed_s: list[float], bounds: tuple[float, ...] = E2E_BOUNDS) -> Histogram:
    counts = tuple(float(sum(value <= bound for value in observed_s)) for bound in bounds)
    return Histogram(bounds, counts, sum(observed_s), float(len(observed_s)))


def test_the_mean_says_where_in_a_wide_bucket_the_observations_are() -> None:
    """24 clients whose answers took 100 to 118 s: p50 109 s and p90 116 s, all in the bucket of 100 to 200 s."""
    window = observed([100.1 + 17.9 * place / 23 for place in range(24)])
    assert quantile(window, 0.5) == pytest.approx(109.0, rel=0.02)
    assert quantile(window, 0.9) == pytest.approx(116.0, rel=0.02)
    assert quantile(window, 1.0) == pytest.approx(118.0, rel=0.02)


def test_observations_near_the_upper_bound_of_a_wide_bucket() -> None:
    window = observed([180.0 + 20.0 * place / 23 for place in range(24)])
    assert quantile(window, 0.5) == pytest.approx(190.0, rel=0.02)


@pytest.mark.parametrize(
    ("counts", "sum_s"),
    [((0.0, 10.0, 10.0, 10.0), 0.0), ((0.0, 10.0, 10.0, 10.0), 99.0), ((0.0, 10.0, 10.0, 11.0), 5.0)],
    ids=["no sum", "a sum that contradicts the buckets", "a part of the sum is the unbounded bucket's"],
)
def test_where_the_sum_cannot_tell_observations_fill_their_bucket(counts: tuple[float, ...], sum_s: float) -> None:
    window = Histogram(BOUNDS, counts, sum_s, counts[-1])
    assert quantile(window, 5 / counts[-1]) == pytest.approx(0.1 + 0.9 * 0.5)


@given(st.lists(st.floats(0.5, 2300.0), min_size=1, max_size=60), st.lists(st.floats(0.01, 1.0), min_size=2))
def test_quantiles_keep_bucket_order_and_mean(observed_s: list[float], shares: list[float]) -> None:
    window = observed(observed_s)
    told = [quantile(window, share) or 0.0 for share in sorted(shares)]
    assert told == sorted(told)
    for share, value_s in zip(sorted(shares), told, strict=True):
        place = next(i for i, count in enumerate(window.cumulative_counts) if count >= share * len(observed_s))
        assert (0.0, *E2E_BOUNDS)[place] <= value_s <= E2E_BOUNDS[place]
    size = len(observed_s)
    middles = [quantile(window, (place + 0.5) / size) or 0.0 for place in range(size)]
    assert sum(middles) / size == pytest.approx(sum(observed_s) / size)


def test_a_quantile_in_the_last_bucket_is_its_lower_bound() -> None:
    assert quantile(Histogram(BOUNDS, (0.0, 0.0, 0.0, 4.0), 99.0, 4.0), 0.99) == 10.0


def test_no_observations_no_quantile() -> None:
    assert quantile(Histogram(BOUNDS, (0.0,) * 4, 0.0, 0.0), 0.5) is None


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1.0))
def test_quantiles_stay_inside_the_histogram(counts: list[int], share: float) -> None:
    cumulative = tuple(float(sum(counts[: i + 1])) for i in range(4))
    value = quantile(Histogram(BOUNDS, cumulative, 0.0, cumulative[-1]), share)
    assert value is None if cumulative[-1] == 0 else 0.0 <= (value or 0.0) <= 10.0


def test_histograms_with_other_buckets_are_not_compared() -> None:
    old = Histogram((1.0, math.inf), (1.0, 2.0), 1.0, 2.0)
    assert histogram_difference(old, Histogram(BOUNDS, (1.0, 2.0, 3.0, 4.0), 1.0, 4.0)) is None


def test_the_completion_rate_is_the_growth_of_generation_tokens() -> None:
    tracker = RateTracker()
    for second in range(120):
        rates = tracker.add(sample(second, Totals(generation_tokens=900.0 * second, decoded_tokens=930.0 * second)))
    assert rates.completion_tokens_per_s == pytest.approx(900.0)
    assert rates.gen_tokens_per_s == pytest.approx(930.0)
    assert rates.completion_window_s == pytest.approx(15.0, abs=2.0)


def test_bursts_at_finish_are_averaged_over_several_latencies() -> None:
    """Responses of 60 s that finish together every 60 s: a short window would show 0 or far too much."""
    tracker, shown = RateTracker(), []
    for second in range(1, 1200):
        done = float(second // 60)
        e2e = Histogram(BOUNDS, (0.0, 0.0, 0.0, done), 60.0 * done, done)
        rates = tracker.add(sample(second, Totals(generation_tokens=6000.0 * done), e2e=e2e))
        shown.append(rates.completion_tokens_per_s)
    assert all(rate is not None and 66 < rate < 134 for rate in shown[-300:])


def test_one_sample_has_no_rates() -> None:
    rates = RateTracker().add(sample(5.0, Totals(generation_tokens=1.0)))
    assert rates.completion_tokens_per_s is None
    assert rates.window_s is None


def test_a_restarted_server_does_not_give_negative_rates() -> None:
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals(generation_tokens=9000.0)))
    tracker.add(sample(10.0, Totals(generation_tokens=9900.0)))
    restarted = tracker.add(sample(20.0, Totals(generation_tokens=10.0)))
    assert restarted.completion_tokens_per_s is None
    assert tracker.add(sample(30.0, Totals(generation_tokens=110.0))).completion_tokens_per_s == pytest.approx(10.0)


def test_stalled_only_while_requests_run_and_nothing_moves() -> None:
    tracker, still = RateTracker(), Totals(decoded_tokens=500.0, generation_tokens=400.0)
    for second in range(31):
        rates = tracker.add(sample(second, still))
    assert rates.stalled_s == 30
    assert tracker.add(sample(31.0, replace(still, decoded_tokens=501.0))).stalled_s is None
    assert tracker.add(sample(60.0, replace(still, decoded_tokens=501.0), running=0)).stalled_s is None


def test_hits_come_from_counters_by_source() -> None:
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals(prompt_tokens=100.0, cached_tokens_by_source={"device": 10.0})))
    after = Totals(prompt_tokens=1100.0, cached_tokens_by_source={"device": 210.0, "host": 100.0})
    rates = tracker.add(sample(20.0, after))
    assert rates.hit_share == pytest.approx(0.3)
    assert rates.hit_share_by_source == {"device": pytest.approx(0.2), "host": pytest.approx(0.1)}


def test_without_sources_hits_come_from_the_prefill_counters() -> None:
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals(prefill_cached_tokens=0.0, prefill_computed_tokens=0.0)))
    rates = tracker.add(sample(20.0, Totals(prefill_cached_tokens=800.0, prefill_computed_tokens=200.0)))
    assert rates.hit_share == pytest.approx(0.8)


def test_counters_that_are_not_born_yet_are_zero_where_the_build_has_them() -> None:
    """realtime_tokens_total is there from the first step, the others from their first increment."""
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals(decoded_tokens=0.0)))
    rates = tracker.add(sample(20.0, Totals(decoded_tokens=900.0, generation_tokens=400.0)))
    assert rates.completion_tokens_per_s == pytest.approx(20.0)
    assert rates.retractions_per_s == 0.0


def test_a_server_watched_from_before_its_first_step_began_at_zero() -> None:
    seen = Histogram((1.0, math.inf), (0.0, 4.0), 40.0, 4.0)
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals()))
    rates = tracker.add(sample(20.0, Totals(decoded_tokens=900.0, generation_tokens=400.0), e2e=seen))
    assert rates.completion_tokens_per_s == pytest.approx(20.0)
    assert rates.e2e is not None
    assert rates.e2e.count == 4


def test_counters_of_older_builds_stay_unknown() -> None:
    tracker = RateTracker()
    tracker.add(sample(0.0, Totals(generation_tokens=0.0)))
    assert tracker.add(sample(20.0, Totals(generation_tokens=400.0))).retractions_per_s is None


def test_a_clock_that_runs_faster_gives_rates_of_its_own_seconds() -> None:
    tracker, facts = RateTracker(), ServerFacts(simulated=True, clock_speed=60.0)
    for wall_s in (0.0, 1.0):
        tokens = Totals(generation_tokens=54_000.0 * wall_s)
        rates = tracker.add(replace(sample(wall_s, tokens), facts=facts))
    assert rates.completion_tokens_per_s == pytest.approx(900.0)


@pytest.mark.parametrize(
    ("count", "told"), [(0, None), (1, 0), (4, 0), (5, 1), (9, 1), (10, 2), (19, 2), (20, 3), (99, 3), (100, 4)]
)
def test_a_percentile_of_too_few_is_not_told(count: int, told: int | None) -> None:
    seen = quantiles(histogram_of(0.0), histogram_of(float(count)))
    if told is None:
        assert seen is None
        return
    assert seen is not None
    figures = [seen.p50_s, seen.p90_s, seen.p95_s, seen.p99_s]
    assert [figure is not None for figure in figures] == [place < told for place in range(4)]
    assert seen.count == count


def histogram_of(count: float) -> Histogram:
    return Histogram(BOUNDS, (0.0, count / 2, count, count), count, count)


def test_the_window_that_is_told_is_the_window(feed: SimpleNamespace) -> None:
    """To the nearest second: rates over 29.6 s are no rates "over 20s"."""
    server = feed.watched(feed.ceiling).servers[0]
    shown = replace(server, rates=replace(server.rates, completion_window_s=29.6))
    assert any("over 30s, " in row.text for row in one_server(shown, 160, 5, Look(), False))
