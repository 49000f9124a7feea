"""What a running study tells: the screen's frame, plain lines, JSON lines, and a terminal that goes away."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from tuner.cli.screens import Several
from tuner.journal.view import Decision, Incumbent, StageNow
from tuner.progress import JsonLines, PlainLines, Terminal, TrialNow
from tuner.progress.scene import StudyNow
from tuner.progress.words import setting_words
from tuner.trial import Interval, Proposal, Purpose, Setting

STUDY = StudyNow("kimi-1", "simulated/kimi", simulated=True, budget_s=7_200.0, clock_speed=60.0)
SETTING = Setting(0.88, "bfloat16", 20, {"chunked-prefill-size": 8192})
TRIAL = TrialNow(3, Proposal(SETTING, (16, 32), Purpose.EXPLORE, "because", 840.0), 1)
BEST = Incumbent(2, SETTING, 32, Interval(612.4, 580.0, 640.0))
FAILURE = Decision(time.time(), "failure", "GPU 3 ran out of memory in the first large prefill", 3)


def tell(screen) -> None:
    """A study's usual life."""
    screen.open(STUDY, 0.0)
    screen.stage(StageNow("starting", 3, None, time.time(), None), TRIAL, 600.0)
    screen.decided(FAILURE, 700.0)
    screen.stage(StageNow("measuring", 3, 32, time.time(), 600.0), TRIAL, 900.0)
    screen.best(BEST)
    screen.best(BEST)


@pytest.mark.parametrize("columns", [80, 200])
def test_the_screen_shows_trial_stage_budget_best_failure_and_that_it_is_simulated(columns):
    file = io.StringIO()
    console = Console(file=file, width=columns, force_terminal=True, color_system=None, legacy_windows=False)
    screen = Terminal(console)
    tell(screen)
    console.print(screen._draw())
    screen.close()
    text = file.getvalue()
    for part in (
        "SIMULATED",
        "of 2 h",
        "trial 3  0.880 bf16 hicache 20 GB chunked-prefill-size=8192",
        "measuring concurrency 32",
        "of about 10 min",
        "612 tokens/s",
        "failure  GPU 3 ran out of memory",
    ):
        assert part in text


def test_plain_lines_say_each_thing_once_with_what_is_spent():
    lines: list[str] = []
    tell(PlainLines(lines.append))
    assert lines == [
        "study kimi-1: simulated/kimi on the simulated engine, 2 h to go",
        "[10 min] trial 3: starting",
        "[11 min] trial 3: GPU 3 ran out of memory in the first large prefill",
        "[15 min] trial 3: measuring concurrency 32",
        f"best so far: {setting_words(SETTING)} at concurrency 32: 612 tokens/s (580 to 640)",
    ]


def test_json_lines_are_one_object_each():
    lines: list[str] = []
    tell(JsonLines(lines.append))
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["study", "stage", "decision", "stage", "best", "best"]
    assert events[3]["proposal"]["setting"]["mem_fraction_static"] == 0.88
    assert events[3]["expected_s"] == 600.0
    assert all(not isinstance(value, str) or "\n" not in value for event in events for value in event.values())


def test_a_terminal_that_is_gone_is_forgotten_and_the_log_goes_on():
    def gone(_: str) -> None:
        raise OSError(5, "Input/output error")

    lines: list[str] = []
    tell(Several(PlainLines(gone), PlainLines(lines.append)))
    assert len(lines) == 5
