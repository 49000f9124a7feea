"""The load client against a toy SGLang: streamed and whole, native and OpenAI, and every way to fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.clock import WallClock
from tuner.load import Answer, Failed, LoadClient, Progress, call_for
from tuner.load.answer import BadAnswerError, parse_stream, parse_whole, tokens_so_far
from tuner.workload import Chat, Request, Segment, Synthetic, Text

SYNTHETIC = Request("s", Synthetic((Segment(1, 5), Segment(2, 4))), 9, 6, 6, ignore_eos=True)


async def play(url: str, request: Request, **options: Any) -> tuple[Answer | Failed, Progress]:
    clock = WallClock()
    progress = Progress(clock.now_s())
    async with LoadClient(url, clock, api_key="secret") as client:
        return await client.play(call_for(request, **options), progress), progress


async def test_a_native_stream_is_timed_token_by_token(toy_server: Any) -> None:
    answer, progress = await play(toy_server.url, SYNTHETIC, stream=True)
    assert answer == Answer("length", 9, 6, cached_tokens=3, cached_host_tokens=2, retractions=1)
    assert progress.tokens == 6
    assert progress.first_token_s is not None
    assert progress.first_token_s > progress.submitted_s
    assert len(progress.itl_s) == 5
    body = toy_server.bodies[0]
    assert len(body["input_ids"]) == 9
    assert body["sampling_params"] == {"max_new_tokens": 6, "ignore_eos": True}


async def test_a_whole_answer_tells_the_same(toy_server: Any) -> None:
    answer, progress = await play(toy_server.url, SYNTHETIC, stream=False)
    assert answer == Answer("length", 9, 6, cached_tokens=3, cached_host_tokens=2, retractions=1)
    assert (progress.tokens, progress.first_token_s) == (6, None)


async def test_the_openai_route_counts_by_its_usage(toy_server: Any) -> None:
    answer, progress = await play(toy_server.url, SYNTHETIC, stream=True, openai=True)
    assert answer == Answer("length", 9, 6, cached_tokens=4)
    assert progress.tokens == 6


async def test_a_chat_goes_where_the_template_is_applied(toy_server: Any) -> None:
    chat = Request("c", Chat(({"role": "user", "content": "hi"},)), 1, 5, 5, ignore_eos=True)
    answer, _ = await play(toy_server.url, chat.aged(2), stream=True)
    assert isinstance(answer, Answer)
    body = toy_server.bodies[0]
    assert body["max_tokens"] == 3
    assert body["continue_final_message"] is True
    assert body["messages"][-1]["role"] == "assistant"


async def test_failures_are_named(toy_server: Any) -> None:
    toy_server.abort_first = 1
    assert (await play(toy_server.url, SYNTHETIC, stream=True))[0] == Failed("finish_abort")
    toy_server.fail_with = 503
    assert (await play(toy_server.url, SYNTHETIC, stream=True))[0] == Failed("http_503")
    assert (await play("http://127.0.0.1:9", SYNTHETIC, stream=True))[0] == Failed("connection")


def test_the_same_segment_is_the_same_text() -> None:
    first, second = (call_for(SYNTHETIC, stream=False).body["input_ids"] for _ in range(2))
    longer = Request("t", Synthetic((Segment(1, 5), Segment(3, 4))), 9, 6, 6)
    other = call_for(longer, stream=False).body["input_ids"]
    assert isinstance(first, list)
    assert isinstance(other, list)
    assert first == second
    assert first[:5] == other[:5]
    assert first[5:] != other[5:]


def test_what_was_really_answered_is_repeated() -> None:
    body = call_for(SYNTHETIC, stream=False, texts={2: (7, 7, 7, 7)}).body
    assert isinstance(body["input_ids"], list)
    assert body["input_ids"][5:] == [7, 7, 7, 7]


def test_an_aged_text_carries_its_age_as_words() -> None:
    text = call_for(Request("a", Text("Once"), 1, 10, 10).aged(4), stream=False).body["text"]
    assert isinstance(text, str)
    assert text.startswith("Once ")
    assert len(text.split()) == 5


def test_a_piece_is_counted_without_parsing() -> None:
    assert tokens_so_far(b'data: {"meta_info":{"completion_tokens":41}}\n\n', 3) == 41
    assert tokens_so_far(b'{"completion_tokens": 41, "x": 1}{"completion_tokens": 42, "x"', 3) == 42
    assert tokens_so_far(b'{"completion_tokens":4', 3) == 3
    assert tokens_so_far(b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n', 3) == 5


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_bad_answer(content: bytes) -> None:
    for parse in (parse_whole, parse_stream):
        try:
            found: Answer | str = parse(content)
        except BadAnswerError as bad:
            found = bad.kind
        assert found


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"data: [DONE]\n\n", "disconnected"),
        (b'data: {"error": {"message": "x"}}\n\n', "error_in_stream"),
        (b'data: {"meta_info": {"finish_reason": null}}\n\n', "disconnected"),
        (b'data: {"choices": [{"finish_reason": "stop"}]}\n\n', "no_usage"),
    ],
)
def test_a_stream_without_an_end_is_no_answer(content: bytes, kind: str) -> None:
    with pytest.raises(BadAnswerError, match=kind):
        parse_stream(content)
