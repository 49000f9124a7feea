"""Progress as lines: for a person where there is no terminal, and as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from tuner.budget import words
from tuner.journal.view import Decision, Incumbent, StageNow
from tuner.progress.scene import StudyNow, TrialNow
from tuner.progress.words import best_words


class PlainLines:
    """One line per event, beginning with what is spent of the budget."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._best: Incumbent | None = None

    def open(self, study: StudyNow, spent_s: float) -> None:
        engine = " on the simulated engine" if study.simulated else ""
        left = words(study.budget_s - spent_s)
        self._write(f"study {study.study_id}: {study.model_path}{engine}, {left} to go")

    def stage(self, stage: StageNow, trial: TrialNow | None, spent_s: float) -> None:
        if trial is not None and stage.name in ("starting", "measuring"):
            at = f" concurrency {stage.concurrency}" if stage.concurrency else ""
            self._write(f"[{words(spent_s)}] trial {trial.trial_id}: {stage.name}{at}")
        elif stage.name.startswith("paused"):
            self._write(f"[{words(spent_s)}] {stage.name}")

    def best(self, incumbent: Incumbent) -> None:
        if incumbent != self._best:
            self._best = incumbent
            self._write(f"best so far: {best_words(incumbent)}")

    def decided(self, decision: Decision, spent_s: float) -> None:
        about = "" if decision.trial_id is None else f"trial {decision.trial_id}: "
        self._write(f"[{words(spent_s)}] {about}{decision.sentence}")

    def close(self) -> None: ...


class JsonLines:
    """One JSON object per event: `event`, then its fields, with units in their names."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def open(self, study: StudyNow, spent_s: float) -> None:
        self._put("study", spent_s=spent_s, **asdict(study))

    def stage(self, stage: StageNow, trial: TrialNow | None, spent_s: float) -> None:
        proposal = None if trial is None else asdict(trial.proposal)
        self._put("stage", spent_s=spent_s, **asdict(stage), proposal=proposal)

    def best(self, incumbent: Incumbent) -> None:
        self._put("best", **asdict(incumbent))

    def decided(self, decision: Decision, spent_s: float) -> None:
        self._put("decision", spent_s=spent_s, **asdict(decision))

    def close(self) -> None: ...

    def _put(self, event: str, **fields: object) -> None:
        self._write(json.dumps({"event": event, **fields}, default=dict))
