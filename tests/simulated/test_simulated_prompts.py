"""From HTTP bodies to requests: every token is counted once, and equal beginnings share segments."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from launcher.simulated.presets.schema import Answers
from launcher.simulated.server.conversations import BLOCK_TOKENS, Conversations
from launcher.simulated.server.prompts import (
    Prompt,
    Sampling,
    answer_ids,
    chat_prompt,
    ids_prompt,
    native_prompt,
    native_sampling,
    request_of,
    text_prompt,
)


def _segments(prompt: Prompt) -> tuple[tuple[int, int], ...]:
    return request_of({}, prompt, Sampling(1, True), Answers(), Conversations()).segments


def _output_tokens(body: dict[str, str], sampling: Sampling, answers: Answers) -> int:
    return request_of(body, text_prompt("hello"), sampling, answers, Conversations()).output_tokens


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=400))
def test_ids_are_counted_once(ids: list[int]) -> None:
    segments = _segments(ids_prompt(ids))
    assert sum(tokens for _, tokens in segments) == len(ids)
    assert all(tokens > 0 for _, tokens in segments)
    assert segments == _segments(ids_prompt(ids))


@given(st.text(min_size=1, max_size=3000))
def test_text_is_counted_once(text: str) -> None:
    prompt = text_prompt(text)
    assert sum(size for _, size in _segments(prompt)) == prompt.tokens


@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 100))
def test_equal_beginnings_share_whole_blocks(shared: int, first: int, second: int) -> None:
    beginning = list(range(shared))
    one = _segments(ids_prompt([*beginning, *[-1] * first]))
    other = _segments(ids_prompt([*beginning, *[-2] * second]))
    pairs = zip(one, other, strict=False)
    common = sum(mine[1] for mine, yours in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert shared // BLOCK_TOKENS * BLOCK_TOKENS <= common <= shared


def test_answers_end_by_themselves_about_as_long_as_the_preset_says() -> None:
    answers = Answers(mean_tokens=500, sd_share=0.3)
    lengths = [_output_tokens({"rid": str(number)}, Sampling(10_000, False), answers) for number in range(400)]
    assert 470 < sum(lengths) / len(lengths) < 530
    assert _output_tokens({}, Sampling(77, True), answers) == 77
    assert _output_tokens({"rid": "a"}, Sampling(3, False), answers) == 3


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 700)), min_size=1, max_size=5))
def test_a_turn_begins_with_the_turns_before_it_and_their_answers(turns: list[tuple[int, int]]) -> None:
    conversations = Conversations()
    ids: list[int] = []
    before: tuple[tuple[int, int], ...] = ()
    for at, (asked, answered) in enumerate(turns):
        ids += [-1 - at] * asked
        request = request_of({}, ids_prompt(ids), Sampling(answered, True), Answers(), conversations)
        assert request.segments[: len(before)] == before
        assert request.prompt_tokens == len(ids)
        assert request.answer_key is not None
        before = (*request.segments, (request.answer_key, answered))
        ids += answer_ids(answered)


def test_a_chat_goes_on_from_its_answer_and_a_text_from_its_own() -> None:
    conversations, sampling = Conversations(), Sampling(20, True)
    user, said = {"role": "user", "content": "hello " * 40}, {"role": "assistant", "content": " word" * 20}
    for first, second in (
        (chat_prompt([user]), chat_prompt([user, said, user])),
        (text_prompt("go on " * 40), text_prompt("go on " * 40 + " word" * 20 + " and then?")),
    ):
        before = request_of({}, first, sampling, Answers(), conversations)
        after = request_of({}, second, sampling, Answers(), conversations)
        assert after.segments[: len(before.segments) + 1] == (*before.segments, (before.answer_key, 20))


def test_turns_long_past_are_forgotten_and_late_ones_are_not() -> None:
    conversations = Conversations()
    keys = [conversations.remember(b"%d" % number, ((1, 1),), b"!", 1) for number in range(20_000)]
    assert (keys[-1], 1) in conversations.segments(b"19999!?", 3)
    assert (keys[0], 1) not in conversations.segments(b"0!?", 3)


def test_native_bodies() -> None:
    assert native_prompt({"input_ids": [[1, 2, 3]]}).tokens == 3
    assert native_prompt({"text": "abcdefgh"}).tokens == 2
    assert native_sampling({}).max_new_tokens == 128
