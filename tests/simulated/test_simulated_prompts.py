"""From HTTP bodies to requests: every token is counted once, and equal beginnings share segments."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from launcher.simulated.presets.schema import Answers
from launcher.simulated.server.prompts import (
    BLOCK_TOKENS,
    Sampling,
    ids_prompt,
    native_prompt,
    native_sampling,
    request_of,
    text_prompt,
)


def _segments(prompt: bytes, tokens: int) -> tuple[tuple[int, int], ...]:
    return request_of({}, prompt, tokens, Sampling(1, True), Answers()).segments


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=400))
def test_ids_are_counted_once(ids: list[int]) -> None:
    segments = _segments(*ids_prompt(ids))
    assert sum(tokens for _, tokens in segments) == len(ids)
    assert all(tokens > 0 for _, tokens in segments)
    assert segments == _segments(*ids_prompt(ids))


@given(st.text(min_size=1, max_size=3000))
def test_text_is_counted_once(text: str) -> None:
    prompt, tokens = text_prompt(text)
    assert sum(size for _, size in _segments(prompt, tokens)) == tokens


@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 100))
def test_equal_beginnings_share_whole_blocks(shared: int, first: int, second: int) -> None:
    beginning = list(range(shared))
    one = _segments(*ids_prompt([*beginning, *[-1] * first]))
    other = _segments(*ids_prompt([*beginning, *[-2] * second]))
    pairs = zip(one, other, strict=False)
    common = sum(mine[1] for mine, yours in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert shared // BLOCK_TOKENS * BLOCK_TOKENS <= common <= shared


def test_answers_end_by_themselves_about_as_long_as_the_preset_says() -> None:
    answers = Answers(mean_tokens=500, sd_share=0.3)
    lengths = [
        request_of({"rid": str(number)}, b"hello", 2, Sampling(10_000, False), answers).output_tokens
        for number in range(400)
    ]
    assert 470 < sum(lengths) / len(lengths) < 530
    assert request_of({}, b"hello", 2, Sampling(77, True), answers).output_tokens == 77
    assert request_of({"rid": "a"}, b"hello", 2, Sampling(3, False), answers).output_tokens == 3


def test_native_bodies() -> None:
    assert native_prompt({"input_ids": [[1, 2, 3]]})[1] == 3
    assert native_prompt({"text": "abcdefgh"})[1] == 2
    assert native_sampling({}).max_new_tokens == 128
