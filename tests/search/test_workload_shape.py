"""What a sample of requests tells the search."""

from __future__ import annotations

import pytest

from tuner.search import shape_of
from tuner.workload import Request, Text, load_workload


def test_constant_lengths_hold_the_prompt_and_half_the_answer() -> None:
    shape = shape_of(load_workload("random:in=1000,out=600", seed=1).sample(64))
    assert shape.tokens_in_flight == pytest.approx(1300)
    assert shape.reused_prefix_share == 0.0
    assert shape.longest_request_tokens == 1600


def test_long_answers_run_longer_and_weigh_more() -> None:
    spread = shape_of(load_workload("random:in=1000,out=600,cv=0.8", seed=1).sample(512))
    assert spread.tokens_in_flight is not None
    assert spread.tokens_in_flight > 1350


def test_shared_prefixes_and_earlier_turns_are_reused() -> None:
    shared = shape_of(load_workload("shared-prefix:groups=4,prefix=3000,in=1000,out=100", seed=1).sample(64))
    assert shared.reused_prefix_share == pytest.approx(0.75, abs=0.05)
    turns = shape_of(load_workload("multi-turn:turns=4,in=300,out=300", seed=1).sample(64))
    assert turns.reused_prefix_share == pytest.approx(0.75, abs=0.05)


def test_texts_of_unknown_length_tell_little() -> None:
    request = Request("0", Text("what is a radix cache?"), 6, 100, None)
    shape = shape_of([request])
    assert shape.tokens_in_flight is None
    assert shape.reused_prefix_share is None
    assert shape.longest_request_tokens == 106
