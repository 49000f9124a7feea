"""Workloads: specs, files of every known shape, groups, and sentences for what is wrong."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import WorkloadError
from tuner.workload import Chat, Synthetic, Text, TokenIds, load_workload


def write_lines(path: Path, records: list[object]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def test_a_random_spec_has_the_lengths_it_names() -> None:
    requests = load_workload("random:in=1000,out=500,cv=0.5", seed=1).sample(1000)
    mean_out = sum(request.output_tokens or 0 for request in requests) / len(requests)
    mean_in = sum(request.prompt_tokens for request in requests) / len(requests)
    assert mean_out == pytest.approx(500, rel=0.03)
    assert mean_in == pytest.approx(1000, rel=0.03)
    assert all(request.ignore_eos for request in requests)


def test_shared_prefixes_are_equal_within_a_group_and_private_text_never_is() -> None:
    requests = load_workload("shared-prefix:groups=4,prefix=2000,in=50,out=10", seed=1).sample(64)
    prompts = [request.prompt for request in requests if isinstance(request.prompt, Synthetic)]
    assert len(prompts) == len(requests)
    assert len({prompt.segments[0] for prompt in prompts}) == 4
    assert len({prompt.segments[1].key for prompt in prompts}) == len(requests)
    assert all(request.prefix_tokens == 2000 for request in requests)


def test_each_turn_begins_with_the_turn_before_and_its_answer() -> None:
    first, second, *_ = load_workload("multi-turn:turns=3,in=30,out=20", seed=1).sample(3)
    assert isinstance(first.prompt, Synthetic)
    assert isinstance(second.prompt, Synthetic)
    assert second.prompt.segments[: len(first.prompt.segments)] == first.prompt.segments
    assert second.prompt_tokens == first.prompt_tokens + 20 + 30
    assert (first.session, first.turn, second.turn) == (second.session, 0, 1)


def test_playing_a_request_again_changes_its_private_text_alone() -> None:
    request = load_workload("shared-prefix:groups=2,prefix=100,in=50,out=10", seed=1).sample(1)[0]
    again, other = request.played(1), request.played(2)
    assert isinstance(again.prompt, Synthetic)
    assert isinstance(other.prompt, Synthetic)
    assert again.prompt.segments[0] == other.prompt.segments[0]
    assert again.prompt.segments[1] != other.prompt.segments[1]
    assert again == request.played(1)


def test_an_aged_request_asks_only_for_the_rest() -> None:
    request = load_workload("random:in=10,out=100", seed=1).sample(1)[0].aged(40)
    assert (request.tokens_to_generate, request.max_tokens, request.ignore_eos) == (60, 60, True)


def test_every_shape_of_record_is_understood(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "prompts.jsonl",
        [
            {"text": "x" * 400, "max_tokens": 7},
            {"prompt": "hello there", "sampling_params": {"temperature": 0.5, "max_new_tokens": 9}},
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
            {"input_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True},
            {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}},
            {"timestamp": 1500, "input_length": 700, "output_length": 30, "hash_ids": [1, 2]},
            {"prompt_tokens": 12, "output_tokens": 34},
        ],
    )
    workload = load_workload(path, seed=1)
    requests = sorted(workload.sample(99), key=lambda request: int(request.request_id.split("/")[1]))
    kinds = [type(request.prompt) for request in requests]
    assert kinds == [Text, Text, Chat, TokenIds, Chat, Synthetic, Synthetic]
    assert [request.max_tokens for request in requests] == [7, 9, 3, 4, 5, 30, 34]
    assert [request.output_tokens for request in requests] == [None, None, None, 4, None, 30, 34]
    assert requests[0].prompt_tokens == 100
    assert requests[1].sampling == {"temperature": 0.5}
    assert requests[5].arrival_s == 1.5
    assert isinstance(requests[5].prompt, Synthetic)
    assert [segment.tokens for segment in requests[5].prompt.segments] == [512, 188]
    assert workload.total_requests == 7
    assert workload.total_output_tokens is None


def test_sharegpt_turns_become_a_session_with_recorded_lengths(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 20), ("gpt", "d" * 40)]
    path.write_text(json.dumps([{"conversations": [{"from": who, "value": text} for who, text in turns]}]))
    first, second = load_workload(path, seed=1).sample(9)
    assert (first.output_tokens, second.output_tokens) == (20, 10)
    assert isinstance(second.prompt, Chat)
    assert [message["role"] for message in second.prompt.messages] == ["user", "assistant", "user"]


def test_lengths_of_a_recorded_run_are_taken_over(tmp_path: Path) -> None:
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"text": "a", "max_tokens": 99}, {"text": "b"}])
    recorded = write_lines(tmp_path / "run.jsonl", [{"output_lens": [11, 22], "input_lens": [1, 1]}])
    groups = [{"name": "all", "requests": str(prompts), "lengths": str(recorded)}]
    requests = load_workload(groups, seed=1).sample(9)
    assert sorted(request.output_tokens or 0 for request in requests) == [11, 22]
    assert all(request.ignore_eos for request in requests)


def test_groups_keep_the_proportions_of_their_own_concurrency() -> None:
    spec = "short=random:in=200,out=50@150 + long=random:in=2000,out=2000@32"
    workload = load_workload(spec, seed=1)
    assert workload.concurrency == 182
    assert [lane.slots for lane in workload.lanes(182)] == [150, 32]
    assert [lane.slots for lane in workload.lanes(91)] == [75, 16]
    assert {lane.sessions[0][0].group for lane in workload.lanes(91)} == {"short", "long"}


def test_a_trace_arrives_as_it_did(tmp_path: Path) -> None:
    records = [{"timestamp": at * 500, "input_length": 9, "output_length": 2 + at} for at in range(4)]
    (lane,) = load_workload(write_lines(tmp_path / "trace.jsonl", list(records)), seed=1).lanes(8)
    assert lane.gaps_s == (0.5, 0.5, 0.5, 0.375)
    assert [session[0].output_tokens for session in lane.sessions] == [2, 3, 4, 5]
    (closed,) = load_workload(f"{tmp_path / 'trace.jsonl'}@8", seed=1).lanes(8)
    assert closed.gaps_s == ()


def test_weighted_groups_share_one_lane() -> None:
    workload = load_workload("a=random:in=10,out=10*3 + b=random:in=20,out=20", seed=1)
    (lane,) = workload.lanes(8)
    names = [session[0].group for session in lane.sessions[:40]]
    assert names.count("a") == pytest.approx(30, abs=1)


def test_only_the_lines_that_are_played_are_read_again(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "many.jsonl", [{"text": f"prompt {at}", "output_tokens": 1 + at} for at in range(3000)]
    )
    source = load_workload(path, seed=1).groups[0].source
    path.write_text("")
    assert source.total_requests == 3000
    assert source.output_tokens.sum() == sum(range(1, 3001))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("randm:in=1,out=2", "did you mean random?"),
        ("random:in=1,outt=2", "did you mean out?"),
        ("random:in=1", "needs out=NUMBER"),
        ("random:in=x,out=2", "in=x must be a number of at least 1"),
        ([{"requests": "random:in=1,out=1", "rate": 1, "concurrency": 2}], "a rate and a concurrency"),
        ("nowhere.jsonl", "there is no such file"),
        ("a=random:in=1,out=1@3 + b=random:in=1,out=1", "either every group names a concurrency"),
        ("a=random:in=1,out=1 + a=random:in=1,out=1", "two groups have the same name"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_sentence(source: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words.replace("?", r"\?")) as caught:
        load_workload(source, seed=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: must be a JSON object"),
        ('{"max_tokens": 3}', "record 2: a record needs `text`"),
        ('{"text": "a", "max_tokens": 0}', "record 2: `max_tokens` must be a whole number"),
        ('{"input_ids": ["a"]}', "record 2: `input_ids` must be a list of token ids"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(WorkloadError, match=words):
        load_workload(path, seed=1)


@given(st.text(max_size=60))
def test_any_text_is_a_workload_or_one_sentence(text: str) -> None:
    with contextlib.suppress(WorkloadError):
        assert load_workload(text.replace("/", ""), seed=1).sample(1)
