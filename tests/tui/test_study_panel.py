"""The study panel: one figure for one thing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tui.panels.detail import trial_page
from tui.panels.look import Look
from tui.panels.study import spent_at, study_rows
from tuner.trial import Interval


def test_the_leaders_row_shows_the_verdicts_figures(feed: SimpleNamespace) -> None:
    """After a confirmation the verdict joins several measurements: no single level has its interval."""
    joined = replace(feed.STUDY.incumbent, concurrency=112, completion_rate=Interval(944.0, 938.0, 950.0))
    snapshot = replace(feed.watched(feed.study_running), study=replace(feed.STUDY, incumbent=joined))
    lines = [row.text for row in study_rows(snapshot, 160, 20, Look(), 5)]
    told = [line for line in lines if "944 ± 6" in line]
    assert len(told) == 2
    assert "  best   944 ± 6.0" in told[0]
    assert "   5 " in told[1]
    assert " 112 " in told[1]
    assert any("least free" in line for line in lines)


def test_the_leaders_page_tells_the_verdict_beside_its_levels(feed: SimpleNamespace) -> None:
    best = replace(feed.STUDY.incumbent, completion_rate=Interval(709.0, 601.0, 817.0))
    pages = {trial.trial_id: trial_page(trial, 160, Look(), best) for trial in feed.STUDY.trials}
    told = {number: [row.text for row in page if "709 ± 108" in row.text] for number, page in pages.items()}
    assert [number for number, rows in told.items() if rows] == [best.trial_id]
    assert "from all measurements together" in told[best.trial_id][0]


def test_one_trial_is_no_trials(feed: SimpleNamespace) -> None:
    one = replace(feed.STUDY, trials=feed.STUDY.trials[:1])
    snapshot = replace(feed.watched(feed.study_running), study=one)
    assert study_rows(snapshot, 160, 20, Look(), 5)[0].text.endswith("1 trial ─")


def test_the_budget_is_that_of_this_moment(feed: SimpleNamespace) -> None:
    """The daemon writes every few seconds; with a clock sixty times as fast those are minutes."""
    study = replace(feed.STUDY, spent_s=300.0, spent_at_unix_s=feed.NOON, clock_speed=60.0)
    assert spent_at(study, feed.NOON + 4) == 540.0
    assert spent_at(study, feed.NOON - 4) == 300.0
    assert spent_at(replace(study, state=type(study.state).PAUSED), feed.NOON + 4) == 300.0
    assert spent_at(replace(study, spent_at_unix_s=None), feed.NOON + 4) == 300.0
