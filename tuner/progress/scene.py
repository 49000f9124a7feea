"""What every screen is given, and what it must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.journal.view import Decision, Incumbent, StageNow
from tuner.trial import Proposal


@dataclass(frozen=True, slots=True)
class StudyNow:
    """What does not change while a study runs."""

    study_id: str
    model_path: str
    simulated: bool
    budget_s: float
    clock_speed: float


@dataclass(frozen=True, slots=True)
class TrialNow:
    """The trial that runs."""

    trial_id: int
    proposal: Proposal
    levels_done: int


class Screen(Protocol):
    """One way to tell. Every method returns at once and never raises for a closed terminal."""

    def open(self, study: StudyNow, spent_s: float) -> None: ...

    def stage(self, stage: StageNow, trial: TrialNow | None, spent_s: float) -> None:
        """A new stage began."""
        ...

    def best(self, incumbent: Incumbent) -> None:
        """The best so far changed."""
        ...

    def decided(self, decision: Decision, spent_s: float) -> None:
        """Something worth a line happened."""
        ...

    def close(self) -> None: ...
