"""The controller on a toy queue: its rate is the long run's, and every end has its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from launcher.observe.sample import RankSample, ServerSample, Totals
from tuner.steady import LevelController, Moment, Response, Room, Slo
from tuner.testbed import LevelLimits
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Lane, LengthBook, Request, Text, load_workload

Drive = Callable[..., LevelResult]


def controller(spec: str, slots: int, capacity: int | None = None, *, seed: int = 0, **limits: Any) -> LevelController:
    lanes = load_workload(spec, seed=seed).lanes(slots)
    bounds = LevelLimits(**{"budget_s": 900.0, **limits})
    return LevelController(lanes, bounds, began_s=0.0, room=Room(capacity), seed=seed, slo=Slo(itl_p95_s=0.2))


def long_run(toy: Any, spec: str, slots: int, hours: float) -> float:
    """Credited tokens per second of a naive closed loop, its first quarter left out."""
    (lane,) = load_workload(spec, seed=99).lanes(slots, 4096)
    deck = [session[0] for session in lane.sessions]
    for at in range(slots):
        toy.submit(deck[at])
    sent, credited = slots, 0
    while toy.now_s < hours * 3600:
        for response in toy.step():
            toy.submit(deck[sent % len(deck)])
            sent += 1
            credited += response.completion_tokens * (toy.now_s > hours * 900)
    return credited / (hours * 2700)


@pytest.mark.parametrize(("slots", "capacity"), [(24, 10**6), (96, 60_000)])
def test_minutes_give_the_rate_of_hours(drive_toy: Drive, toy_queue: Any, slots: int, capacity: int) -> None:
    spec = "random:in=500,out=800,cv=0.4"
    truth = long_run(toy_queue(capacity), spec, slots, hours=2)
    for seed in range(3):
        result = drive_toy(controller(spec, slots, capacity, seed=seed), toy_queue(capacity))
        assert result.end is LevelEnd.NARROW
        assert result.steady
        assert result.doubt is None
        assert result.completion_rate.value == pytest.approx(truth, rel=0.04)
        assert result.spent_s < 600


def test_the_credit_of_first_wave_answers_is_whole() -> None:
    level = controller("random:in=100,out=1000", 4)
    for request in level.first_wave():
        level.on_finish(Response(request, "length", request.tokens_to_generate, 100, 0.0, 5.0))
    level.on_moment(Moment(10.0))
    level.on_moment(Moment(12.0))
    result = level.result(LevelEnd.TIME, 12.0)
    assert result.completion_rate.value == pytest.approx(4 * 1000 / 12)
    assert not result.steady
    assert result.doubt is not None
    assert "too few readings" in result.doubt


def test_a_wide_interval_is_no_measurement() -> None:
    level = controller("random:in=100,out=1000", 4)
    (request, *_) = level.first_wave()
    level.on_finish(Response(request, "length", request.tokens_to_generate, 100, 0.0, 1.0))
    for at in range(1, 90):
        level.on_moment(Moment(2.0 * at, generated_tokens=9000.0 * (at // 12)))
    result = level.result(LevelEnd.TIME, 180.0)
    assert result.completion_rate.half_width > result.completion_rate.value / 2
    assert not result.steady
    assert result.doubt is not None
    assert "wider than +-50%" in result.doubt


def test_percentiles_tell_how_many_responses_they_rest_on_and_few_are_none() -> None:
    level = controller("random:in=100,out=1000", 4)
    (request, *_) = level.first_wave()
    fresh = replace(request, age_tokens=0)
    for count, responses in ((19, None), (20, 20), (57, 57)):
        while len(level._first_tokens) < count:
            level.on_first_token(fresh, 0.0, 3.0)
        told = level.result(LevelEnd.TIME, 12.0).ttft_s
        assert (told and told.responses) == responses


def test_the_first_wave_is_one_request_for_every_client() -> None:
    wave = controller("random:in=500,out=1000,cv=0.3", 96, 60_000).first_wave()
    aged = [request for request in wave if request.age_tokens]
    assert len(wave) == len({request.request_id for request in wave}) == 96
    assert 45 <= len(aged) <= 60
    assert not any(request.age_tokens for request in wave[len(aged) + 2 :])


def test_a_level_that_cannot_reach_the_incumbent_ends_early(drive_toy: Drive, toy_queue: Any) -> None:
    level = controller("random:in=500,out=800,cv=0.4", 24, 10**6, incumbent_rate=1e5, target_share=1e-9)
    result = drive_toy(level, toy_queue(10**6))
    assert result.end is LevelEnd.BEATEN
    assert result.spent_s < 120


def test_more_clients_that_only_wait_are_recognised(drive_toy: Drive, toy_queue: Any) -> None:
    spec = "random:in=500,out=800,cv=0.4"
    lower = drive_toy(controller(spec, 96, 60_000), toy_queue(60_000))
    higher = controller(spec, 192, 60_000, lower_level=lower, target_share=1e-9)
    assert drive_toy(higher, toy_queue(60_000)).end is LevelEnd.QUEUE_ONLY


def test_time_is_up_when_the_budget_is(drive_toy: Drive, toy_queue: Any) -> None:
    level = controller("random:in=500,out=800", 24, target_share=1e-9, budget_s=100.0)
    result = drive_toy(level, toy_queue(10**6))
    assert result.end is LevelEnd.TIME
    assert result.spent_s == pytest.approx(100, abs=3)
    assert result.unfinished_requests == 24


def test_a_server_that_answers_nothing_is_stalled() -> None:
    level = controller("random:in=500,out=800", 4)
    level.first_wave()
    verdicts = []
    for at in range(1, 100):
        level.on_moment(Moment(2.0 * at, generated_tokens=50.0))
        verdicts.append(level.verdict(2.0 * at))
    assert verdicts[50] is None
    assert verdicts[-1] is LevelEnd.STALLED


def test_a_moment_that_could_not_be_read_does_not_bend_the_count() -> None:
    level = controller("random:in=500,out=800", 4)
    (request, *_) = level.first_wave()
    level.on_finish(Response(request, "length", request.tokens_to_generate, 500, 0.0, 1.0))
    for at in range(1, 60):
        level.on_moment(Moment(2.0 * at, generated_tokens=None if at % 7 == 0 else 200.0 * at))
    assert level.verdict(120.0) is LevelEnd.NARROW
    assert level.result(LevelEnd.NARROW, 120.0).completion_rate.value == pytest.approx(100)


def test_errors_are_counted_by_kind_and_their_tokens_taken_out() -> None:
    level = controller("random:in=500,out=800", 4)
    first, second, *_ = level.first_wave()
    level.on_error(first, "http_503")
    level.on_error(second, "disconnected", generated_tokens=300.0)
    for at in range(1, 60):
        level.on_moment(Moment(2.0 * at, generated_tokens=20.0 * at))
    result = level.result(LevelEnd.TIME, 120.0)
    assert result.errors_by_kind == {"http_503": 1, "disconnected": 1}
    assert result.gen_tokens_per_s == pytest.approx(10)
    assert result.completion_rate.value == pytest.approx(10 * (1 - 300 / 1180), rel=0.01)


def test_endless_errors_end_the_level() -> None:
    level = controller("random:in=500,out=800", 1)
    (request,) = level.first_wave()
    for _ in range(50):
        (request,) = level.on_error(request, "connection")
    assert level.verdict(1.0) is None
    assert level.verdict(70.0) is LevelEnd.STALLED


def test_the_same_seed_sends_the_same_requests() -> None:
    waves = [controller("random:in=500,out=800,cv=0.5", 32, 20_000, seed=5).first_wave() for _ in range(2)]
    assert waves[0] == waves[1]


def test_an_open_loop_sends_at_its_rate_and_never_more_than_it_may() -> None:
    level = controller("random:in=10,out=10@2/s", 5)
    assert level.first_wave() == ()
    sent, now_s = 0, 0.0
    while now_s < 500:
        for request in level.arriving(now_s):
            sent += 1
            assert level.on_finish(Response(request, "length", 10, 10, now_s, now_s)) == ()
        now_s = level.next_arrival_s
    assert sent == pytest.approx(1000, rel=0.1)
    assert len(level.arriving(600.0)) == 5
    assert level.next_arrival_s == float("inf")


def test_a_session_goes_on_with_its_next_turn() -> None:
    level = controller("multi-turn:turns=3,in=10,out=10", 2)
    request = next(request for request in level.first_wave() if request.turn < 2)
    (following,) = level.on_finish(Response(request, "length", request.tokens_to_generate, 10, 0.0, 1.0))
    assert (following.session, following.turn) == (request.session, request.turn + 1)


def test_lengths_that_the_model_decides_are_learned_and_then_used() -> None:
    book = LengthBook()
    deck = tuple((Request(f"r{at}", Text("hello"), 2, 500, None, session=f"r{at}"),) for at in range(8))
    level = LevelController([Lane(4, deck)], LevelLimits(900.0), began_s=0.0, lengths=book)
    wave = level.first_wave()
    assert not any(request.age_tokens or request.ignore_eos for request in wave)
    for request in wave:
        level.on_finish(Response(request, "stop", 100, 2, 0.0, 5.0))
    level.on_unfinished(level.out[0], 40)
    assert book.expect(deck[0][0]).output_tokens == 100
    assert book.expect(deck[7][0]).output_tokens == 110  # 440 tokens, 4 finishes


def test_waiting_before_the_level_began_is_part_of_the_first_token_time() -> None:
    level = controller("random:in=500,out=1000", 60, 20_000)
    wave = level.first_wave()
    first_waiting = next(request for request in wave if not request.age_tokens)
    behind = len(wave) - 1 - wave.index(first_waiting)
    for _ in range(20):
        level.on_first_token(first_waiting, 0.0, 3.0)
    for at in range(1, 60):
        level.on_moment(Moment(2.0 * at, generated_tokens=2000.0 * at))
    result = level.result(LevelEnd.TIME, 120.0)
    assert result.ttft_s is not None
    assert result.responses_per_s == pytest.approx(1.0, rel=0.01)
    assert result.ttft_s.p50 == pytest.approx(3.0 + behind, rel=0.02)


def test_a_short_level_without_progress_is_stalled_and_no_measurement() -> None:
    level = controller("random:in=500,out=800", 4, budget_s=100.0)
    level.first_wave()
    for at in range(1, 51):
        level.on_moment(Moment(2.0 * at, generated_tokens=50.0))
    assert level.verdict(100.0) is LevelEnd.STALLED


def test_a_level_that_ends_while_its_first_prompts_are_computed_claims_no_rate() -> None:
    """Two H200s, 224 clients, 30 s: the prompts took all of them; the truth is 1,500 to 2,000 tokens/s."""
    level = controller("random:in=1000,out=300,cv=0.4", 224, 387_000, budget_s=30.0)
    level.first_wave()
    for at in range(1, 121):
        now_s = at / 4
        ranks = (RankSample(running_requests=8 * at // 4, queued_requests=max(0, 224 - 2 * at), used_tokens=1400 * at),)
        # A token for every running request each 20 s: decoding waits for prefill.
        level.on_moment(Moment(now_s, 6.7 * now_s, ServerSample(now_s, "toy", ranks=ranks, totals=Totals())))
    assert level.verdict(29.0) is None
    result = level.result(LevelEnd.TIME, 30.0)
    assert not result.steady
    assert result.doubt == "only 0 responses finished: an answer takes longer than this level had"
    assert result.completion_rate.low == 0.0
    assert result.completion_rate.high > 2_000
    assert not result.completion_rate.is_measurement


@pytest.mark.parametrize(("finished", "sound"), [(2, False), (14, True)])
def test_an_even_count_is_no_rate_until_answers_have_come_and_gone(*, finished: int, sound: bool) -> None:
    """Forty requests run and generate evenly; a few residual ones of the first wave finish."""
    level = controller("random:in=500,out=2000,cv=0.5", 40, incumbent_rate=1e6)
    wave = sorted(level.first_wave(), key=lambda request: request.tokens_to_generate)
    for request in wave[:finished]:
        level.on_finish(Response(request, "length", request.tokens_to_generate, 500, 0.0, 20.0))
    for at in range(1, 60):
        ranks = (RankSample(running_requests=40, queued_requests=0, used_tokens=60_000),)
        level.on_moment(Moment(2.0 * at, 1600.0 * at, ServerSample(2.0 * at, "toy", ranks=ranks, totals=Totals())))
    assert level.verdict(118.0) is (LevelEnd.NARROW if sound else None)
    result = level.result(LevelEnd.TIME, 118.0)
    assert (result.doubt is None) is result.steady is sound
    assert result.completion_rate.is_measurement is sound


@pytest.mark.parametrize(("cv", "sure"), [(0.4, True), (1.5, False)])
def test_a_few_long_answers_in_flight_are_no_long_run(*, cv: float, sure: bool) -> None:
    """The same even count: 30 requests that run for two minutes, in which the longest of a heavy tail never end."""
    level = controller(f"random:in=1000,out=1000,cv={cv}", 30, 75_000)
    wave = sorted(level.first_wave(), key=lambda request: request.tokens_to_generate)
    for request in wave[:15]:
        level.on_finish(Response(request, "length", request.tokens_to_generate, 1000, 0.0, 60.0))
    for at in range(1, 60):
        ranks = (RankSample(running_requests=30, queued_requests=0, used_tokens=70_000),)
        level.on_moment(Moment(2.0 * at, 800.0 * at, ServerSample(2.0 * at, "toy", ranks=ranks, totals=Totals())))
    assert level.verdict(118.0) is (LevelEnd.NARROW if sure else None)
    result = level.result(LevelEnd.TIME, 118.0)
    assert result.steady is sure
    assert sure or "a few long answers" in (result.doubt or "")
    assert (result.completion_rate.half_width < 0.03 * result.completion_rate.value) is sure
