"""The journal's writer. One daemon writes; each method is one transaction, durable when it returns."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

from launcher.failure import Failure
from launcher.process import ProcessId
from launcher.timeline import Timeline
from tuner.journal.codec import encode
from tuner.journal.files import connect, explained, keep_copy, mend
from tuner.journal.home import JOURNAL
from tuner.journal.rows import OpenTrial, read_fact, read_open_trial, read_trials
from tuner.journal.schema import migrate
from tuner.journal.view import StageNow
from tuner.trial import LevelResult, Proposal, TrialResult, TrialState

T = TypeVar("T")


class Journal:
    """A study directory's journal, open for writing. Raises DiskFull when a write did not go through."""

    def __init__(self, directory: Path, *, now_unix_s: Callable[[], float] = time.time) -> None:
        """Open a journal, mend a damaged one and migrate an old one. Raises JournalError when there is none."""
        self.directory = directory
        self.path = directory / JOURNAL
        self._now_unix_s = now_unix_s
        self.mended = mend(directory)
        with explained(self.path):
            self._connection = connect(self.path)
            migrate(self._connection)
        self.path.chmod(0o600)
        self._run_id: int | None = None
        if self.mended:
            self.decide("journal", self.mended)

    def close(self) -> None:
        self._connection.close()

    @classmethod
    def create(cls, directory: Path, facts: Mapping[str, object]) -> Self:
        """Begin a study: write down what it is, once. No reader ever sees half a journal."""
        path = directory / JOURNAL
        fresh = path.with_suffix(".new")
        with explained(path), contextlib.closing(connect(fresh)) as connection:
            migrate(connection)
            for name, value in {"created_unix_s": time.time(), **facts}.items():
                connection.execute("INSERT INTO facts VALUES (?, ?)", (name, encode(value)))
        os.replace(fresh, path)
        journal = cls(directory)
        journal._keep()
        return journal

    # What is known now

    def set_fact(self, name: str, value: object) -> None:
        with self._transaction():
            self._put(name, value)

    def fact(self, name: str) -> Any:
        with explained(self.path):
            return read_fact(self._connection, name)

    def set_stage(self, stage: StageNow) -> None:
        self.set_fact("stage", stage)

    def decide(self, kind: str, sentence: str, trial_id: int | None = None) -> None:
        self._run(
            "INSERT INTO decisions (unix_s, trial_id, kind, sentence) VALUES (?, ?, ?, ?)",
            (self._now_unix_s(), trial_id, kind, sentence),
        )

    def add_sample(self, trial_id: int | None, gauges: Mapping[str, float | int | None]) -> None:
        self._run("INSERT INTO samples VALUES (?, ?, ?)", (self._now_unix_s(), trial_id, encode(dict(gauges))))

    # Runs of the daemon, and what they spent

    def begin_run(self, process: ProcessId) -> None:
        now = self._now_unix_s()
        self._run_id = self._run(
            "INSERT INTO runs (pid, process_start_s, began_unix_s, seen_unix_s, spent_s) VALUES (?, ?, ?, ?, 0)",
            (process.pid, process.start_time, now, now),
        )

    def beat(self, run_spent_s: float) -> None:
        """The daemon lives and has spent so many study seconds in this run."""
        self._run(
            "UPDATE runs SET seen_unix_s = ?, spent_s = ? WHERE run_id = ?",
            (self._now_unix_s(), run_spent_s, self._run_id),
        )

    def end_run(self, run_spent_s: float, why: str) -> None:
        self.beat(run_spent_s)
        self._run("UPDATE runs SET ended = ? WHERE run_id = ?", (why, self._run_id))
        self._keep()

    def spent_s(self) -> float:
        """Study seconds that all runs together have spent."""
        with explained(self.path):
            return float(self._connection.execute("SELECT TOTAL(spent_s) FROM runs").fetchone()[0])

    # Trials: intent first, then what came of it

    def begin_trial(self, proposal: Proposal, remaining_s: float) -> int:
        """A proposal is accepted; its trial_id."""
        trial_id = self._run(
            "INSERT INTO trials (began_unix_s, remaining_s, proposal, state) VALUES (?, ?, ?, ?)",
            (self._now_unix_s(), remaining_s, encode(proposal), TrialState.RUNNING),
        )
        self.decide("proposal", proposal.reason, trial_id)
        return trial_id

    def end_trial(self, trial_id: int, state: TrialState, failure: Failure | None) -> None:
        told = None if failure is None else encode(failure)
        self._run("UPDATE trials SET state = ?, failure = ? WHERE trial_id = ?", (state, told, trial_id))
        self._keep()

    def begin_start(self, trial_id: int) -> int:
        """A start is about to be made; its start_id."""
        return self._run("INSERT INTO starts (trial_id, began_unix_s) VALUES (?, ?)", (trial_id, self._now_unix_s()))

    def end_start(self, start_id: int, timeline: Timeline | None, clean_slate_s: float, start_s: float) -> None:
        told = None if timeline is None else encode(timeline)
        self._run(
            "UPDATE starts SET timeline = ?, clean_slate_s = ?, start_s = ? WHERE start_id = ?",
            (told, clean_slate_s, start_s, start_id),
        )

    def fail_start(self, start_id: int, failure: Failure) -> None:
        """The server of this start did not come up, or died later."""
        self._run("UPDATE starts SET failure = ? WHERE start_id = ?", (encode(failure), start_id))

    def end_stop(self, start_id: int, stop_s: float) -> None:
        self._run("UPDATE starts SET stop_s = ? WHERE start_id = ?", (stop_s, start_id))

    def begin_level(self, trial_id: int, start_id: int, concurrency: int) -> int:
        """A level is about to be measured; its level_id."""
        return self._run(
            "INSERT INTO levels (trial_id, start_id, began_unix_s, concurrency) VALUES (?, ?, ?, ?)",
            (trial_id, start_id, self._now_unix_s(), concurrency),
        )

    def end_level(self, level_id: int, result: LevelResult) -> None:
        self._run("UPDATE levels SET result = ? WHERE level_id = ?", (encode(result), level_id))
        self._keep()

    # Servers: every process that was launched, until its end was proved

    def server_launched(self, record: Any) -> None:
        """A server's record (launcher.server.ServerRecord), again whenever it has grown."""
        known = self._connection.execute(
            "SELECT server_id FROM servers WHERE gone = 0 AND json_extract(record, '$.pid') = ?",
            (record.pid,),
        ).fetchone()
        if known is None:
            sql, key = "INSERT INTO servers (launched_unix_s, record) VALUES (?, ?)", self._now_unix_s()
            self._run(sql, (key, encode(asdict(record))))
        else:
            sql = "UPDATE servers SET record = ? WHERE server_id = ?"
            self._run(sql, (encode(asdict(record)), known["server_id"]))

    def servers_gone(self) -> None:
        self._run("UPDATE servers SET gone = 1 WHERE gone = 0", ())

    def left_servers(self) -> tuple[dict[str, Any], ...]:
        """Records of the servers whose end was never proved, oldest first."""
        with explained(self.path):
            rows = self._connection.execute("SELECT record FROM servers WHERE gone = 0 ORDER BY server_id")
            return tuple(json.loads(row["record"]) for row in rows)

    # What the daemon reads back: there is no second memory

    def trials(self) -> tuple[TrialResult, ...]:
        """Every trial; the one that is open last, as RUNNING."""
        with explained(self.path):
            return read_trials(self._connection)

    def open_trial(self) -> OpenTrial | None:
        with explained(self.path):
            return read_open_trial(self._connection)

    def _put(self, name: str, value: object) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, encode(value)))

    def _run(self, sql: str, values: tuple[object, ...]) -> int:
        with self._transaction():
            return int(self._connection.execute(sql, values).lastrowid or 0)

    def _keep(self) -> None:
        with explained(self.path):
            keep_copy(self._connection, self.directory)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
