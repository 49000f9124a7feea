"""The sample stands for the whole, and so does every stretch of its order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.workload import load_workload
from tuner.workload.sample import stratified
from tuner.workload.spec import parse_spec


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=300), st.integers(1, 400))
def test_indices_are_distinct_and_as_many_as_there_can_be(pairs: list[tuple[int, int]], count: int) -> None:
    output, prompt = np.array(pairs).T
    chosen = stratified(output, prompt, count, seed=3)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, len(pairs))
    assert set(chosen.tolist()) <= set(range(len(pairs)))


def test_the_order_is_the_same_for_the_same_seed() -> None:
    first, second = (load_workload("random:in=100,out=100,cv=0.5", seed=4).sample(200) for _ in range(2))
    assert first == second


def test_two_seeds_are_one_workload_even_with_heavy_tails() -> None:
    in_flight = []
    for seed in range(6):
        lengths = parse_spec("random:in=100,out=1000,cv=1.5", seed=seed).output_tokens.astype(float)
        assert lengths.mean() == pytest.approx(1000, rel=0.005)
        in_flight.append((lengths**2).sum() / lengths.sum())
    assert in_flight == pytest.approx([3250] * 6, rel=0.05)


def test_conversations_come_as_unevenly_as_chance_has_it_and_still_stand_for_all() -> None:
    spread = {}
    for name, spec in (
        ("alone", "random:in=100,out=400,cv=0.5"),
        ("turns", "multi-turn:turns=2,in=100,out=200,cv=0.7"),
    ):
        (lane,) = load_workload(spec, seed=2).lanes(8)
        tokens = [sum(request.output_tokens or 0 for request in session) for session in lane.sessions]
        parts = np.array_split(np.array(tokens), 32)
        spread[name] = float(np.std([part.mean() for part in parts]) / np.std(tokens) * 32**0.5)
        assert np.mean(tokens) == pytest.approx(400, rel=0.02)
    assert spread["alone"] < 0.5
    assert spread["turns"] == pytest.approx(1.0, abs=0.35)


def test_stretches_are_more_even_than_chance_makes_them() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 0.5, 8000).astype(np.int64)
    played = lengths[stratified(lengths, lengths[::-1], 1024, seed=1)]
    chance = np.random.default_rng(1).choice(lengths, 1024)
    spread = [np.std([part.mean() for part in np.array_split(values, 32)]) for values in (played, chance)]
    assert spread[0] < spread[1] / 2
    assert abs(played.mean() / lengths.mean() - 1) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_holds_the_tokens_of_the_whole_even_with_heavy_tails(seed: int) -> None:
    whole = parse_spec("random:in=1000,out=1000,cv=1.5", seed=seed)
    output, prompt = whole.output_tokens.astype(float), whole.prompt_tokens.astype(float)
    chosen = stratified(whole.output_tokens, whole.prompt_tokens, 1024, seed)
    in_flight = [
        float((prompt[at] * output[at] + output[at] ** 2 / 2).sum() / output[at].sum())
        for at in (np.arange(len(output)), chosen)
    ]
    assert in_flight[1] == pytest.approx(in_flight[0], rel=0.015)
    assert output[chosen].mean() == pytest.approx(output.mean(), rel=0.005)
    assert prompt[chosen].mean() == pytest.approx(prompt.mean(), rel=0.005)


def test_a_file_that_is_little_larger_than_the_sample_keeps_its_short_answers() -> None:
    lengths = np.arange(1, 1501)
    chosen = lengths[stratified(lengths, lengths, 1024, seed=0)]
    assert chosen.mean() == pytest.approx(lengths.mean(), rel=0.01)
    assert np.median(chosen) == pytest.approx(np.median(lengths), rel=0.01)
