"""Writes down what happens and shows it: the testbed's observer, the journal's and the screen's one voice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tuner.budget import Budget
from tuner.errors import DiskFull
from tuner.journal import Journal
from tuner.journal.view import Decision, StageNow
from tuner.progress.scene import Screen, TrialNow

if TYPE_CHECKING:
    from launcher.server import ServerRecord


class Scribe:
    """Telling must never stop the work: only a server's record insists on being written."""

    def __init__(self, journal: Journal, screen: Screen, budget: Budget) -> None:
        self.journal = journal
        self.screen = screen
        self.budget = budget
        self.trial: TrialNow | None = None
        self._concurrency: int | None = None

    def at(self, trial: TrialNow | None, concurrency: int | None = None) -> None:
        """What the stages that follow belong to."""
        self.trial, self._concurrency = trial, concurrency

    def say(self, kind: str, sentence: str) -> None:
        """A decision, for the journal and for the screen."""
        trial_id = self.trial.trial_id if self.trial else None
        self.screen.decided(Decision(time.time(), kind, sentence, trial_id), self.budget.spent_s)
        self._quietly(lambda: self.journal.decide(kind, sentence, trial_id))

    def beat(self) -> None:
        self._quietly(lambda: self.journal.beat(self.budget.spent_s - self.budget.spent_before_s))

    def on_server(self, record: ServerRecord | None) -> None:
        if record is None:
            self.journal.servers_gone()
        else:
            self.journal.server_launched(record)

    def on_stage(self, name: str, detail: str = "", expected_s: float | None = None) -> None:
        trial_id = self.trial.trial_id if self.trial else None
        stage = StageNow(name, trial_id, self._concurrency, time.time(), expected_s, detail)
        self.screen.stage(stage, self.trial, self.budget.spent_s)
        self._quietly(lambda: self.journal.set_stage(stage))

    def on_sample(self, values: Mapping[str, float | int | None]) -> None:
        trial_id = self.trial.trial_id if self.trial else None
        self._quietly(lambda: self.journal.add_sample(trial_id, values))

    def _quietly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except DiskFull as error:
            # A finished level waits for space (see Persist); a stage is not worth waiting for.
            self.screen.decided(Decision(time.time(), "journal", str(error), None), self.budget.spent_s)
