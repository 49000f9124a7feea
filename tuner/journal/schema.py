"""The journal's tables, their version, and how an older journal becomes a newer one."""

from __future__ import annotations

import sqlite3

from tuner.errors import JournalError

_TABLES = """
CREATE TABLE facts (                -- what the study is and what is known of it now: one JSON value per name
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE runs (                 -- one row per daemon that worked on the study
    run_id INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL,
    process_start_s REAL NOT NULL,  -- since boot
    began_unix_s REAL NOT NULL,
    seen_unix_s REAL NOT NULL,
    spent_s REAL NOT NULL,          -- study seconds of this run
    ended TEXT                      -- NULL: it runs, or it was killed
);
CREATE TABLE trials (
    trial_id INTEGER PRIMARY KEY,
    began_unix_s REAL NOT NULL,
    remaining_s REAL NOT NULL,      -- of the budget, when it was proposed
    proposal TEXT NOT NULL,
    state TEXT NOT NULL,
    failure TEXT
);
CREATE TABLE starts (               -- a trial may take several: after a kill, or infrastructure's fault
    start_id INTEGER PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials,
    began_unix_s REAL NOT NULL,
    timeline TEXT,
    failure TEXT,
    clean_slate_s REAL NOT NULL DEFAULT 0,
    start_s REAL NOT NULL DEFAULT 0,
    stop_s REAL NOT NULL DEFAULT 0
);
CREATE TABLE servers (              -- every process launched; `gone` once its end was proved
    server_id INTEGER PRIMARY KEY,
    launched_unix_s REAL NOT NULL,
    record TEXT NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE levels (
    level_id INTEGER PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials,
    start_id INTEGER NOT NULL REFERENCES starts,
    began_unix_s REAL NOT NULL,
    concurrency INTEGER NOT NULL,
    result TEXT                     -- NULL: intended, not finished
);
CREATE TABLE samples (
    unix_s REAL NOT NULL,
    trial_id INTEGER,
    gauges TEXT NOT NULL
);
CREATE TABLE decisions (
    decision_id INTEGER PRIMARY KEY,
    unix_s REAL NOT NULL,
    trial_id INTEGER,
    kind TEXT NOT NULL,
    sentence TEXT NOT NULL
);
"""

_MIGRATIONS: dict[int, str] = {1: _TABLES}
"""What brings a journal from the version before to this one."""

VERSION = max(_MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the journal to the present schema, each step in a transaction of its own."""
    version = version_of(connection)
    for step in range(version + 1, VERSION + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {_MIGRATIONS[step]} PRAGMA user_version = {step}; COMMIT;")


def version_of(connection: sqlite3.Connection) -> int:
    """The journal's schema version. Raises JournalError when a newer kvtune wrote it."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise JournalError(f"the journal has schema {version}, this kvtune knows up to {VERSION}; upgrade it")
    return version
