"""From rows to values: trials, their levels and starts, as every reader and the daemon itself see them."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.failure import Failure
from launcher.timeline import Timeline
from tuner.journal.codec import decode
from tuner.journal.view import Decision
from tuner.trial import LevelResult, Minutes, Proposal, TrialResult, TrialState

T = TypeVar("T")
Grouped = dict[int, list[sqlite3.Row]]


@dataclass(frozen=True, slots=True)
class OpenTrial:
    """A trial that was begun and not ended: what a restart goes on with."""

    trial_id: int
    proposal: Proposal
    levels: tuple[LevelResult, ...]
    timeline: Timeline | None
    attempts: int
    """Starts that failed through no fault of the configuration."""


def read_trials(connection: sqlite3.Connection) -> tuple[TrialResult, ...]:
    """Every trial in order, the running one last with what it has so far."""
    starts = _by_trial(connection.execute("SELECT * FROM starts ORDER BY start_id"))
    levels = _by_trial(connection.execute("SELECT * FROM levels WHERE result IS NOT NULL ORDER BY level_id"))
    trials = connection.execute("SELECT * FROM trials ORDER BY trial_id")
    return tuple(_trial(row, starts[row["trial_id"]], levels[row["trial_id"]]) for row in trials)


def read_open_trial(connection: sqlite3.Connection) -> OpenTrial | None:
    trials = [trial for trial in read_trials(connection) if trial.state is TrialState.RUNNING]
    if not trials:
        return None
    trial = trials[-1]
    counted = connection.execute(
        "SELECT COUNT(*) FROM starts WHERE trial_id = ? AND failure IS NOT NULL", (trial.trial_id,)
    ).fetchone()
    return OpenTrial(trial.trial_id, trial.proposal, trial.levels, trial.timeline, int(counted[0]))


def read_decisions(connection: sqlite3.Connection) -> tuple[Decision, ...]:
    rows = connection.execute("SELECT unix_s, kind, sentence, trial_id FROM decisions ORDER BY decision_id")
    return tuple(Decision(**dict(row)) for row in rows)


def read_fact(connection: sqlite3.Connection, name: str) -> Any:
    """A JSON value by name, or None."""
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else json.loads(row["value"])


def read_fact_as(connection: sqlite3.Connection, name: str, kind: type[T]) -> T | None:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None or row["value"] == "null" else decode(kind, row["value"])


def _by_trial(rows: Iterable[sqlite3.Row]) -> Grouped:
    grouped: Grouped = defaultdict(list)
    for row in rows:
        grouped[row["trial_id"]].append(row)
    return grouped


def _trial(row: sqlite3.Row, starts: list[sqlite3.Row], levels: list[sqlite3.Row]) -> TrialResult:
    results = tuple(decode(LevelResult, level["result"]) for level in levels)
    timelines = [start["timeline"] for start in starts if start["timeline"] is not None]
    headroom = [gib for level in results for gib in level.headroom_min_gib.values()]
    return TrialResult(
        trial_id=row["trial_id"],
        proposal=decode(Proposal, row["proposal"]),
        state=TrialState(row["state"]),
        timeline=decode(Timeline, timelines[-1]) if timelines else None,
        levels=results,
        failure=None if row["failure"] is None else decode(Failure, row["failure"]),
        minutes=Minutes(
            clean_slate_s=sum(start["clean_slate_s"] for start in starts),
            start_s=sum(start["start_s"] for start in starts),
            measure_s=sum(level.spent_s for level in results),
            stop_s=sum(start["stop_s"] for start in starts),
        ),
        headroom_min_gib=min(headroom, default=None),
    )
