"""The journal as files: opening it, the copy that outlives a damaged tail, and what errors mean.

SQLite drops a damaged tail of its write-ahead log in silence, and with it the last commits. So after every
finished level the log is folded into the database and the database is copied; a damaged database is set aside
and the copy takes its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import DiskFull, JournalError
from tuner.journal.home import JOURNAL

COPY = "journal.copy.sqlite3"
BUSY_S = 10.0


def connect(path: Path) -> sqlite3.Connection:
    """The writer's connection: durable at every commit, in the mode in which readers do not block it."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def connect_to_read(directory: Path) -> sqlite3.Connection:
    """A reader's connection. Raises JournalError when there is no journal."""
    path = directory / JOURNAL
    if not path.is_file():
        raise JournalError(f"{directory}: holds no study (there is no {JOURNAL})")
    # Without write access to the directory SQLite cannot share the write-ahead log: a snapshot must do.
    how = "mode=ro" if os.access(directory, os.W_OK) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{path}?{how}", uri=True, timeout=BUSY_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the tree's: a write that may be repeated, or a journal that is broken."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DiskFull(f"{path}: the journal cannot be written ({error}); is the disk full?") from error
    except OSError as error:
        raise DiskFull(f"{path}: the journal cannot be written ({error.strerror}); is the disk full?") from error
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{path}: the journal is damaged ({error})") from error


def keep_copy(connection: sqlite3.Connection, directory: Path) -> None:
    """Fold the log into the database and copy it; the copy is whole at every moment."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    fresh = directory / f"{COPY}.new"
    try:
        with contextlib.closing(sqlite3.connect(fresh)) as copy:
            connection.backup(copy)
        _flush(fresh)
        os.replace(fresh, directory / COPY)
    finally:
        fresh.unlink(missing_ok=True)


def mend(directory: Path) -> str | None:
    """Set a damaged journal aside and put its copy in its place; a sentence about it, or None if it is sound.

    Raises JournalError when the journal is damaged and there is no copy.
    """
    path = directory / JOURNAL
    if not path.is_file() and not (directory / COPY).is_file():
        raise JournalError(f"{directory}: holds no study (there is no {JOURNAL})")
    complaint = _complaint(path)
    if complaint is None:
        return None
    if not (directory / COPY).is_file():
        raise JournalError(f"{path}: the journal is damaged ({complaint}) and there is no copy of it")
    aside = directory / time.strftime("damaged-%Y%m%d-%H%M%S")
    aside.mkdir(exist_ok=True)
    for name in (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm"):
        if (directory / name).exists():
            os.replace(directory / name, aside / name)
    shutil.copyfile(directory / COPY, path)
    return f"the journal was damaged ({complaint}); it lies in {aside.name}, and its last copy took its place"


def _complaint(path: Path) -> str | None:
    """What is wrong with a database, in SQLite's words; None when it is sound."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            whole = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] > 0
    except sqlite3.OperationalError as error:
        # Busy, no permission, disk full: not damage, except where SQLite says so in this class.
        if "malformed" not in str(error) and "disk I/O error" not in str(error):
            raise DiskFull(f"{path}: the journal cannot be opened ({error})") from error
        return str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    if not whole:
        return "it is empty"
    return None if found == "ok" else found.splitlines()[-1]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
