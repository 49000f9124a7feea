"""The study panel: one figure for one thing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tui.panels.look import Look
from tui.panels.study import study_rows
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
