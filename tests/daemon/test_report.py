"""The report: whole in one file, readable without a network, right with crashes and without an answer."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from launcher.failure import Direction
from launcher.timeline import MemorySeen, Timeline
from tuner.journal.view import BoundaryPoint, Decision, Environment, Incumbent, StudyState, StudyView
from tuner.report import html_page, markdown_page
from tuner.report.advice import advice
from tuner.trial import Interval, Minutes, Proposal, Purpose, Setting, TrialResult, TrialState

GIB = 2**30


def trial(trial_id, fraction, levels, failure=None):
    memory = MemorySeen(before_weights_gib=94.07, weights_gib=72.37, kv_cache_gib=10.4, graphs_gib=3.7)
    return TrialResult(
        trial_id,
        Proposal(Setting(fraction, "bfloat16"), (16, 32), Purpose.EXPLORE, "because", 800.0),
        TrialState.MEASURED if levels else TrialState.FAILED,
        Timeline(memory=memory, ready_s=300.0),
        tuple(levels),
        failure,
        Minutes(8.0, 310.0, 200.0 * len(levels), 12.0),
        4.25,
    )


@pytest.fixture
def view(some_level, oom):
    setting = Setting(0.88, "bfloat16")
    return StudyView(
        directory=Path("/studies/kimi-1"),
        study_id="kimi-1",
        model_path="/models/<kimi> & sons",
        simulated=True,
        state=StudyState.DONE,
        budget_s=7_200.0,
        spent_s=7_100.0,
        created_unix_s=1.79e9,
        trials=(
            trial(1, 0.85, [some_level]),
            trial(2, 0.88, [some_level, replace(some_level, concurrency=32, token_usage_share=0.95)]),
            trial(3, 0.93, [], oom),
        ),
        incumbent=Incumbent(2, setting, 32, Interval(600.0, 580.0, 620.0)),
        runner_up=Incumbent(1, Setting(0.85, "bfloat16"), 16, Interval(590.0, 560.0, 620.0)),
        clear=False,
        boundary=tuple(BoundaryPoint("bfloat16", 0.8 + 0.01 * at, 1.0 - 0.05 * at) for at in range(16)),
        asked={"space": {"concurrency": [8, 32]}, "env": {"HF_TOKEN": "hf_secret_value_of_some_length"}},
        environment=Environment(gpu_names=("G",) * 2, gpu_memory_bytes=(95 * GIB,) * 2),
        decisions=(Decision(1.79e9, "proposal", "0.85: <b>a safe first point</b>", 1),),
        explanation="they are close",
    )


@pytest.fixture
def nothing(view, oom):
    trials = tuple(trial(at, 0.97 + at / 100, [], oom) for at in range(3))
    return replace(
        view, trials=trials, incumbent=None, runner_up=None, clear=None, explanation="", boundary=(), simulated=False
    )


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.images = 0

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.outside.append(f"{tag} {value}")
        self.images += tag == "img"


def test_the_page_needs_no_network_and_no_script(view):
    page = html_page(view)
    links = _Links()
    links.feed(page)
    assert links.outside == []
    assert links.images == 6
    assert "<script" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_what_came_from_outside_is_text_and_no_markup(view):
    page = html_page(view)
    assert "<b>a safe" not in page
    assert "/models/&lt;kimi&gt; &amp; sons" in page


def test_the_page_says_what_was_found_that_it_is_simulated_and_no_secret(view):
    for text in (html_page(view), markdown_page(view)):
        assert "600 tokens/s (580 to 620)" in text
        assert re.search("simulated", text, re.IGNORECASE)
        assert "No clear winner" in text
        assert "hf_secret" not in text
        assert "torch.OutOfMemoryError" in text
        assert "the highest that was allowed (32)" in text


def test_three_crashes_and_no_answer_make_a_page_that_says_what_to_do(nothing):
    for text in (html_page(nothing), markdown_page(nothing)):
        assert "No configuration could be measured in 3 starts." in text
        assert text.count("GPU 3 ran out of memory") == 3
        assert "mem-fraction-static below" in text
        assert "imulated:" not in text


def test_a_study_that_has_not_begun_has_a_page(nothing):
    empty = replace(nothing, trials=(), decisions=(), environment=Environment(), spent_s=0.0)
    assert "No start failed." in html_page(empty)
    assert "Give it more time" in markdown_page(empty)


@pytest.mark.parametrize(
    ("ways", "word"),
    [
        ((Direction.DOWN, Direction.DOWN), "downwards"),
        ((Direction.UP, Direction.UP), "upwards"),
        ((Direction.UP, Direction.DOWN), "Both ends"),
        ((Direction.NONE, Direction.NONE), "by hand"),
    ],
)
def test_advice_follows_the_direction_of_the_failures(nothing, oom, ways, word):
    trials = tuple(trial(1, 0.9, [], replace(oom, mem_fraction_direction=way)) for way in ways)
    assert word in " ".join(advice(replace(nothing, trials=trials)))


def test_advice_names_fp8_only_where_the_pool_binds_and_the_list_lacks_it(view):
    assert any("FP8" in step for step in advice(view))
    allowed = {**view.asked, "space": {"kv-cache-dtype": ["bfloat16", "fp8_e4m3"]}}
    assert not any("FP8" in step for step in advice(replace(view, asked=allowed)))


def test_the_same_study_gives_the_same_page(view):
    assert html_page(view) == html_page(view)


def test_a_markdown_table_survives_bars_and_line_ends(view):
    odd = replace(view, model_path="a|b\nc")
    assert "| a\\|b c |" in markdown_page(odd)


def test_a_rate_that_is_hardly_known_is_not_to_be_relied_on(view):
    best = replace(view.incumbent, completion_rate=Interval(188.0, 25.0, 1_389.0))
    said = advice(replace(view, incumbent=best))
    assert any(sentence.startswith("Do not rely on it: this rate is hardly known (±363%)") for sentence in said)
    assert not any("Do not rely" in sentence for sentence in advice(view))
