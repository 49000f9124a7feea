"""A study for a screen: one frozen view, read in one transaction that the writer does not notice."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from launcher.failure import Failure
from tuner.errors import JournalError
from tuner.journal.codec import decode, from_json_value
from tuner.journal.files import connect_to_read
from tuner.journal.home import is_running
from tuner.journal.rows import read_decisions, read_fact, read_fact_as, read_trials
from tuner.journal.schema import version_of
from tuner.journal.view import BoundaryPoint, Environment, Incumbent, StageNow, StudyState, StudyView
from tuner.trial import Setting


def read_study(directory: Path) -> StudyView:
    """The study as it stands. Raises JournalError when the directory holds none or it cannot be read."""
    try:
        with contextlib.closing(connect_to_read(directory)) as connection:
            version_of(connection)
            connection.execute("BEGIN")
            return _view(directory, connection)
    except sqlite3.Error as error:
        raise JournalError(f"{directory}: the journal cannot be read ({error})") from None


def _view(directory: Path, connection: sqlite3.Connection) -> StudyView:
    last_run = connection.execute("SELECT * FROM runs ORDER BY run_id DESC LIMIT 1").fetchone()
    running = is_running(directory)
    stage = read_fact_as(connection, "stage", StageNow) if running else None
    asked = read_fact(connection, "study") or {}
    verdict = read_fact(connection, "verdict") or {}
    environment = read_fact_as(connection, "environment", Environment) or Environment()
    return StudyView(
        directory=directory,
        study_id=directory.name,
        model_path=str(read_fact(connection, "model_path") or ""),
        simulated=asked.get("engine") == "simulated",
        state=_state(running, stage, read_fact(connection, "done")),
        budget_s=float(asked.get("budget") or 0.0),
        spent_s=float(connection.execute("SELECT TOTAL(spent_s) FROM runs").fetchone()[0]),
        created_unix_s=float(read_fact(connection, "created_unix_s") or 0.0),
        clock_speed=float(asked.get("clock_speed") or 1.0),
        sglang_version=environment.sglang_version or None,
        daemon_pid=last_run["pid"] if running and last_run is not None else None,
        stage=stage,
        trials=read_trials(connection),
        incumbent=_incumbent(verdict.get("incumbent")),
        last_failure=_last_failure(connection),
        boundary=tuple(BoundaryPoint(**point) for point in read_fact(connection, "boundary") or ()),
        asked=asked,
        environment=environment,
        runner_up=_incumbent(verdict.get("runner_up")),
        clear=verdict.get("clear"),
        explanation=str(verdict.get("explanation") or ""),
        decisions=read_decisions(connection),
        export_setting=read_fact_as(connection, "export_setting", Setting),
        build=read_fact(connection, "build") or {},
        unwritten=read_fact(connection, "unwritten"),
        ended=last_run["ended"] if last_run is not None else None,
        spent_at_unix_s=last_run["seen_unix_s"] if running and last_run is not None else None,
        server_ports=_server_ports(connection),
    )


def _state(running: bool, stage: StageNow | None, done: Any) -> StudyState:
    if running:
        paused = stage is not None and stage.name.startswith("paused")
        return StudyState.PAUSED if paused else StudyState.RUNNING
    return StudyState.DONE if done else StudyState.INTERRUPTED


def _incumbent(told: Any) -> Incumbent | None:
    return None if told is None else from_json_value(Incumbent, told)


def _server_ports(connection: sqlite3.Connection) -> tuple[int, ...]:
    left = connection.execute("SELECT json_extract(record, '$.port') AS port FROM servers WHERE NOT gone")
    return tuple(int(row["port"]) for row in left if row["port"])


def _last_failure(connection: sqlite3.Connection) -> str | None:
    row = connection.execute(
        "SELECT failure FROM starts WHERE failure IS NOT NULL ORDER BY start_id DESC LIMIT 1"
    ).fetchone()
    return None if row is None else decode(Failure, row["failure"]).sentence
