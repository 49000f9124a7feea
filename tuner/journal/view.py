"""A study as a screen sees it: one frozen value, read from the journal without disturbing its writer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tuner.trial import Interval, Setting, TrialResult


class StudyState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    INTERRUPTED = "interrupted"
    """Stopped or killed, and resumable."""


@dataclass(frozen=True, slots=True)
class StageNow:
    """What the daemon is doing at this moment."""

    name: str
    """clean slate, starting, measuring, stopping, confirming, exporting, paused: <why>."""
    trial_id: int | None = None
    concurrency: int | None = None
    since_unix_s: float | None = None
    expected_s: float | None = None
    """How long this stage should take, in study seconds."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best so far."""

    trial_id: int
    setting: Setting
    concurrency: int
    completion_rate: Interval


@dataclass(frozen=True, slots=True)
class BoundaryPoint:
    """The learned memory boundary: probability that a start at this fraction and dtype survives every stage."""

    kv_cache_dtype: str
    mem_fraction_static: float
    survival_probability: float


@dataclass(frozen=True, slots=True)
class StudyView:
    directory: Path
    study_id: str
    model_path: str
    simulated: bool
    state: StudyState
    budget_s: float
    spent_s: float
    created_unix_s: float
    clock_speed: float = 1.0
    sglang_version: str | None = None
    daemon_pid: int | None = None
    stage: StageNow | None = None
    trials: tuple[TrialResult, ...] = ()
    incumbent: Incumbent | None = None
    last_failure: str | None = None
    boundary: tuple[BoundaryPoint, ...] = ()
