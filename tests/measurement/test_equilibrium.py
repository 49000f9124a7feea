"""The first wave is the middle of a long run."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.steady.equilibrium import Room, aged_sessions, in_flight, mix_of, pool_of, running_slots
from tuner.workload import Lane, Request, Text, load_workload


def lane(spec: str, slots: int) -> Lane:
    (only,) = load_workload(spec, seed=2).lanes(slots)
    return only


def test_tokens_in_flight_are_prompt_and_half_the_answer_when_lengths_are_constant() -> None:
    mean = in_flight(lane("random:in=1000,out=4000", 8))
    assert mean is not None
    assert mean.tokens_each == pytest.approx(1000 + 2000)


def test_longer_answers_weigh_more_because_they_stay_longer() -> None:
    mean = in_flight(lane("random:in=1,out=1000,cv=1", 8))
    assert mean is not None
    assert mean.tokens_each == pytest.approx(1000, rel=0.15)  # E[L^2] / (2 E[L]) with cv 1


def test_the_field_report_runs_seventy_two_of_a_hundred_and_fifty() -> None:
    # 159,277 tokens at usage 0.96, prompt and output of ~4 K together: 72 running, 79 queued (mixed ages).
    (running,) = running_slots([lane("random:in=200,out=3850", 150)], Room(159_277, usable_share=0.96))
    assert running == pytest.approx(72, abs=1)


def test_everyone_runs_where_there_is_room() -> None:
    assert running_slots([lane("random:in=10,out=10", 40)], Room(10_000)) == [40.0]
    assert running_slots([lane("random:in=10,out=10", 40)], Room()) == [40.0]


def test_the_servers_own_cap_binds_too() -> None:
    (running,) = running_slots([lane("random:in=10,out=10", 40)], Room(10_000, 16))
    assert running == pytest.approx(16, abs=0.5)


def test_lanes_wait_equally_long() -> None:
    lanes = [lane("random:in=10,out=100", 100), lane("random:in=10,out=1000", 100)]
    short, long = running_slots(lanes, Room(30_000))
    assert short < long
    waits = [100 * length / count - length for length, count in ((100, short), (1000, long))]
    assert waits[0] == pytest.approx(waits[1], rel=0.01)


def test_aged_requests_are_chosen_by_length_at_uniform_ages() -> None:
    whole = lane("random:in=500,out=1000,cv=0.5", 400)
    aged = [session[0] for session in aged_sessions(whole, 400, seed=1)]
    lengths = np.array([request.output_tokens for request in aged])
    ages = np.array([request.age_tokens for request in aged])
    population = np.array([session[0].output_tokens for session in whole.sessions], dtype=float)
    assert lengths.mean() == pytest.approx((population**2).mean() / population.mean(), rel=0.02)
    assert (ages / lengths).mean() == pytest.approx(0.5, abs=0.02)
    assert all(request.tokens_to_generate >= 1 for request in aged)


def test_a_few_dozen_aged_requests_hold_the_mean_number_of_tokens() -> None:
    whole = lane("random:in=1000,out=2000,cv=0.5", 48)
    pool = pool_of([whole], Room())
    assert pool is not None
    held = []
    for seed in range(20):
        aged = [session[0] for session in aged_sessions(whole, 48, seed)]
        held.append(np.mean([request.prompt_tokens + request.age_tokens for request in aged]))
    assert np.mean(held) == pytest.approx(pool.tokens_each, rel=0.02)
    assert np.std(held) < 0.05 * pool.tokens_each


def test_aged_sessions_go_on_with_their_further_turns() -> None:
    tails = aged_sessions(lane("multi-turn:turns=3,in=10,out=10", 30), 30, seed=1)
    assert {len(tail) for tail in tails} == {1, 2, 3}
    assert all(tail[-1].turn == 2 for tail in tails)


def test_unknown_lengths_give_no_pool() -> None:
    unknown = Lane(4, ((Request("a", Text("x"), 1, 64, None),),))
    assert pool_of([unknown], Room(100)) is None
    assert running_slots([unknown], Room(100)) == [0.0]


def test_a_few_long_answers_make_every_draw_another_and_stay_longer() -> None:
    even, heavy = (
        mix_of(load_workload(f"random:in=1000,out=1000,cv={cv}", seed=3).lanes(96), Room(90_000)) for cv in (0.5, 1.5)
    )
    assert even is not None
    assert heavy is not None
    assert even.spread_share < 0.04
    assert heavy.spread_share > 0.1
    assert even.memory_tokens == pytest.approx(1250, rel=0.02)
    assert heavy.memory_tokens == pytest.approx(3250, rel=0.05)
