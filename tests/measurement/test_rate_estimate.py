"""The estimate: unbiased where the truth is known, wide where little is known, and not fooled by a ramp."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.steady.estimate import Point, Pool, drifts, estimate, settling, standard_error, truncation


def steady_points(rate: float, seconds: int, *, noise: float = 0.0, seed: int = 0) -> list[Point]:
    chance = np.random.default_rng(seed)
    gained = rate * 2 * (1 + noise * chance.standard_normal(seconds // 2))
    totals = np.concatenate(([0.0], np.cumsum(gained)))
    return [Point(2.0 * at, float(total), running=20.0, queued=0.0) for at, total in enumerate(totals)]


def test_too_little_is_no_estimate() -> None:
    assert estimate(steady_points(100, 30), None) is None


def test_a_steady_count_gives_its_rate() -> None:
    found = estimate(steady_points(100, 200), None)
    assert found is not None
    assert found.rate == pytest.approx(100)
    assert found.steady
    assert 0 < found.half_width() < 0.03 * found.rate


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    found = [estimate(steady_points(100, 120, noise=0.2, seed=seed), None) for seed in range(200)]
    covered = [each is not None and abs(each.rate - 100) <= each.half_width() for each in found]
    assert 0.90 <= np.mean(covered) <= 1.0


def test_a_slow_start_is_left_out() -> None:
    slow = [Point(2.0 * at, 4.0 * at, running=20.0, queued=0.0) for at in range(20)]
    rest = [Point(40.0 + each.now_s, 80.0 + each.generated_tokens, 20.0, 0.0) for each in steady_points(100, 200)]
    found = estimate([*slow, *rest], None)
    assert found is not None
    assert found.rate == pytest.approx(100, rel=0.02)
    assert found.begin_s >= 35


def test_a_ramp_is_never_steady() -> None:
    ramp = [Point(2.0 * at, 0.5 * at**2, running=20.0, queued=0.0) for at in range(120)]
    found = estimate(ramp, None)
    assert found is not None
    assert not found.steady


def test_a_pool_that_happens_to_hold_long_answers_is_read_at_its_mean() -> None:
    # 40 requests of 1,250 tokens fill the pool; in the long run they hold 1,000 each, so that 50 fit.
    points = [Point(2.0 * at, 2.0 * 400 * at, 40.0, 30.0, 50_000.0) for at in range(300)]
    found = estimate(points, Pool(tokens_each=1_000))
    assert found is not None
    assert found.rate == pytest.approx(400 * (50 / 40) ** 0.65, rel=0.01)


def test_without_a_queue_the_pool_is_not_the_limit() -> None:
    points = [Point(2.0 * at, 2.0 * 400 * at, 40.0, 0.0, 50_000.0) for at in range(300)]
    found = estimate(points, Pool(tokens_each=1_000))
    assert found is not None
    assert found.rate == pytest.approx(400)


def test_the_admission_reserve_is_waited_out_where_requests_queue() -> None:
    queue = [Point(2.0 * at, 20.0 * 40 * at, 40.0, 9.0) for at in range(100)]  # 20 steps between two points
    calm = [Point(2.0 * at, 20.0 * 40 * at, 40.0, 0.0) for at in range(100)]
    assert settling(queue) == 30
    assert settling(calm) == 0


def test_correlated_batches_widen_the_error() -> None:
    chance = np.random.default_rng(1).standard_normal(240)
    slow = np.convolve(chance, np.ones(60) / 60**0.5, mode="same")
    assert standard_error(slow)[0] > standard_error(chance)[0]


@given(st.lists(st.floats(0, 1e6), min_size=8, max_size=60))
def test_any_series_is_cut_by_a_third_at_most(values: list[float]) -> None:
    assert 0 <= truncation(np.array(values)) <= len(values) // 3


def test_a_step_drifts_and_a_constant_does_not() -> None:
    assert drifts(np.array([1.0] * 8 + [1.2] * 8))
    assert not drifts(np.ones(16))
