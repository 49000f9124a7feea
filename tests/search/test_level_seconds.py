"""A level is given the seconds that its answers take, or is left out: a pure function of the history."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tuner.memory import MemoryPrior
from tuner.search import Searcher, SearchOptions
from tuner.search.points import points_of
from tuner.space import Space
from tuner.trial import Interval, LevelEnd, LevelResult, Proposal, Purpose, Setting, TrialResult, TrialState

CHOSEN = Setting(0.90, "bfloat16")
START = Proposal(CHOSEN, (44, 92, 224), Purpose.FIRST, "a safe first point", 260.0)
LOW = LevelResult(
    concurrency=44,
    end=LevelEnd.TIME,
    completion_rate=Interval(966.0, 892.0, 1040.0),
    measured_s=23.6,
    spent_s=30.0,
    responses_per_s=3.21,
    finished_requests=75,
    running_requests=42.9,
    queued_requests=0.0,
    token_usage_share=0.13,
    tokens_in_flight_each=1189.0,
)
"""A 70B shape on two H200s: 1,000 tokens in, 300 out."""
NOTHING = replace(
    LOW,
    concurrency=224,
    completion_rate=Interval(7.2, 0.0, 2240.0),
    measured_s=19.7,
    spent_s=30.2,
    responses_per_s=0.024,
    finished_requests=0,
    running_requests=124.6,
    queued_requests=84.0,
    steady=False,
    doubt="only 0 responses finished",
)


def search(level_budget_s: float, *, black_box: bool = False) -> Searcher:
    options = SearchOptions(
        level_budget_s=level_budget_s, expected_level_s=level_budget_s, probes=False, black_box=black_box
    )
    space = Space((0.80, 0.98), ("bfloat16",), (0,), (32, 224))
    return Searcher(space, prior=MemoryPrior(gpu_total_gib=139.8, tp_size=2), options=options)


def measured(*levels: LevelResult) -> TrialResult:
    return TrialResult(1, START, TrialState.MEASURED, None, levels)


@pytest.mark.parametrize("black_box", [False, True])
def test_a_level_gets_the_seconds_that_its_answers_take(*, black_box: bool) -> None:
    """An answer stays 13 s at 44 clients; its own level of 30 s was long enough."""
    needs = [search(600.0, black_box=black_box).needed_s([], START, [LOW], rung) for rung in (44, 128, 224)]
    assert needs[0] < LOW.spent_s
    assert needs[0] < needs[1] < needs[2]
    assert 60 < needs[2] < 5 * LOW.spent_s


def test_nothing_is_needed_before_anything_is_known() -> None:
    assert search(30.0).needed_s([], START, [], 224) == 0.0


def test_a_short_budget_does_not_climb_to_what_it_cannot_measure() -> None:
    following = {budget_s: search(budget_s).next_concurrency([], START, [LOW], 10_000.0) for budget_s in (7, 30, 600)}
    assert following[7] is None or following[7] <= 44
    assert (following[30] or 0) > 44
    assert (following[600] or 0) >= 128


def test_what_is_left_of_the_budget_limits_the_climb_too() -> None:
    short = search(30.0)
    climbed = short.next_concurrency([], START, [LOW], 55.0)
    assert climbed is None or short.needed_s([], START, [LOW], climbed) <= 55.0


def test_the_last_seconds_belong_to_the_server_that_runs() -> None:
    """Five minutes on an H200 ended with 110 s too short for another start, and 224 clients left out for their 91."""
    short = search(8.0)
    assert short.next_concurrency([], START, [LOW], 10_000.0) in (None, 32)
    last = short.next_concurrency([], START, [LOW], 150.0)
    assert last is not None
    assert last > 44
    assert 24 < short.needed_s([], START, [LOW], last, remaining_s=150.0) <= 150.0


def test_the_answer_says_what_was_left_out_for_its_seconds() -> None:
    words = search(8.0).verdict([measured(LOW)]).explanation
    assert "promises more, but a response takes about" in words
    assert re.search(r"a level needs \d+ s, and this budget gives it 24 s: a budget of \d+ min has room for it", words)
    assert "promises more" not in search(600.0).verdict([measured(LOW)]).explanation


def test_a_pool_that_is_nearly_empty_does_not_bind() -> None:
    """A few requests wait for their prefill in any busy server; 24 of 256 did, with a fifth of the pool in use."""
    waiting = replace(LOW, concurrency=128, running_requests=119.0, queued_requests=8.0, token_usage_share=0.27)
    assert "The KV pool binds" not in search(600.0).verdict([measured(waiting)]).explanation
    full = replace(waiting, token_usage_share=0.96)
    assert "The KV pool binds" in search(600.0).verdict([measured(full)]).explanation


def test_values_that_no_start_has_had_are_named() -> None:
    space = Space((0.80, 0.98), ("bfloat16", "fp8_e4m3"), (0, 20), (32, 224), {"chunked-prefill-size": (4096, 8192)})
    tried = replace(START, setting=replace(CHOSEN, flags={"chunked-prefill-size": 4096}))
    trial = TrialResult(1, tried, TrialState.MEASURED, None, (LOW,))
    words = Searcher(space, prior=MemoryPrior(gpu_total_gib=139.8, tp_size=2)).verdict([trial]).explanation
    assert "Not tried: fp8_e4m3, hicache-size 20, chunked-prefill-size 8192." in words
    assert "Not tried" not in search(600.0).verdict([measured(LOW)]).explanation


def test_the_best_level_of_a_trial_is_the_highest_that_is_a_measurement() -> None:
    doubtful = replace(LOW, concurrency=128, completion_rate=Interval(1313.0, 1148.0, 1477.0), steady=False)
    assert measured(LOW, doubtful, NOTHING).best_level == doubtful


def test_a_level_without_a_rate_is_no_point_beside_one_that_has_it() -> None:
    both = search(30.0)
    history = [measured(LOW, NOTHING)]
    assert [point.concurrency for point in points_of(history)] == [44]
    best = both.verdict(history).incumbent
    assert best is not None
    assert best.concurrency == 44
    mean, _ = both.knowledge(history).rates([(CHOSEN, 224)])
    assert math.exp(float(mean[0])) > 966
    assert history[0].best_level == LOW


def test_where_nothing_else_was_measured_the_search_goes_down_and_the_verdict_stays_vague() -> None:
    alone = search(30.0)
    lower = alone.next_concurrency([], START, [NOTHING], 10_000.0)
    assert lower is not None
    assert lower < 224
    best = alone.verdict([measured(NOTHING)]).incumbent
    assert best is not None
    assert not best.completion_rate.is_measurement
    assert math.isfinite(best.completion_rate.high)


def test_a_level_in_which_nothing_finished_is_given_twice_its_seconds_next_time() -> None:
    again = search(30.0)
    assert again.needed_s([measured(NOTHING)], START, [], 224) == pytest.approx(2 * NOTHING.spent_s)
    assert again.needed_s([measured(NOTHING)], START, [], 56) == pytest.approx(NOTHING.spent_s / 2)
