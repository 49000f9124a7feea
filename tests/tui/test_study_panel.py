"""The study panel: one figure for one thing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from tui.build import SnapshotBuilder
from tui.diagnose.card import card
from tui.diagnose.reach import no_server
from tui.panels.binds import binds_rows
from tui.panels.detail import trial_page
from tui.panels.look import Look
from tui.panels.study import spent_at, study_rows
from tui.snapshot import Reach, Snapshot
from tuner.journal.view import StageNow, StudyState
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


def test_an_answer_that_could_not_be_written_is_told(feed: SimpleNamespace) -> None:
    study = replace(feed.STUDY, unwritten="best-config.yaml: cannot be written (No space left on device)")
    snapshot = replace(feed.watched(feed.study_running), study=study)
    lines = [row.text for row in study_rows(snapshot, 160, 20, Look(), 5)]
    assert any(line.startswith("  unwritten best-config.yaml: cannot be written") for line in lines)
    assert any(line.startswith("  failed trial 3") for line in lines)


def test_the_budget_is_that_of_this_moment(feed: SimpleNamespace) -> None:
    """The daemon writes every few seconds; with a clock sixty times as fast those are minutes."""
    study = replace(feed.STUDY, spent_s=300.0, spent_at_unix_s=feed.NOON, clock_speed=60.0)
    assert spent_at(study, feed.NOON + 4) == 540.0
    assert spent_at(study, feed.NOON - 4) == 300.0
    assert spent_at(replace(study, state=type(study.state).PAUSED), feed.NOON + 4) == 300.0
    assert spent_at(replace(study, spent_at_unix_s=None), feed.NOON + 4) == 300.0


def test_without_a_server_the_study_says_why(feed: SimpleNamespace) -> None:
    study = replace(feed.STUDY, stage=StageNow("clean slate", 7))
    states = {state: Snapshot(feed.NOON, study=replace(study, state=state)) for state in StudyState}
    assert no_server(states[StudyState.RUNNING]) == "the study is between starts (clean slate): no server serves now"
    assert no_server(states[StudyState.DONE]) == "the study is done: it runs no server"
    assert "no SGLang server found" in no_server(Snapshot(feed.NOON))
    for snapshot in states.values():
        assert no_server(snapshot) in card(snapshot)
        assert no_server(snapshot) in binds_rows(snapshot, 120, 5, Look(), 1)[1].text


def test_a_server_that_the_study_has_stopped_is_not_down(feed: SimpleNamespace) -> None:
    """The study's own leaves the screen; one that the study never had is down, and so is its own that just died."""
    up = feed.frame(1000.0, feed.Feed(), feed.SECOND, study=replace(feed.STUDY, server_ports=(30000,)))
    gone = tuple(replace(reading, problem="refused", problem_kind="Unreachable") for reading in up.servers)
    measuring = replace(up, taken_unix_s=up.taken_unix_s + 60, servers=gone)
    stopping = replace(measuring, study=replace(up.study, stage=StageNow("stopping", 7)))
    between = replace(measuring, study=replace(up.study, server_ports=()))
    shown = []
    for later in (measuring, stopping, between):
        builder = SnapshotBuilder()
        builder.add(up)
        shown.append([(server.url[-1], server.reach) for server in builder.add(later).servers])
    assert shown == [[("0", Reach.DOWN), ("1", Reach.DOWN)], [("1", Reach.DOWN)], [("1", Reach.DOWN)]]
