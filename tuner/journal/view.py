"""A study as a screen sees it: one frozen value, read from the journal without disturbing its writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """The learned memory boundary: the chance that a start at this fraction and dtype survives."""

    kv_cache_dtype: str
    mem_fraction_static: float
    survival_probability: float


@dataclass(frozen=True, slots=True)
class Environment:
    """What the study runs on; a study is compared with another only if these agree."""

    kvtune_version: str = ""
    sglang_version: str = ""
    command: tuple[str, ...] = ()
    """Redacted."""
    model_fingerprint: str | None = None
    """Of the files that decide size and shape (config.json, the weights' index), or of the simulated preset; None for
    a name."""
    workload_fingerprint: str | None = None
    """Of a sample of what is sent to the server; the same for every seed."""
    gpu_names: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    gpu_memory_bytes: tuple[int, ...] = ()
    driver_version: str | None = None
    host_name: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Something the daemon decided or met, in a sentence."""

    unix_s: float
    kind: str
    """proposal, start, level, failure, retry, resume, pause, export, stop, journal, verdict, earlier."""
    sentence: str
    trial_id: int | None = None


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
    asked: Mapping[str, object] = field(default_factory=dict)
    """The study as the user asked for it, as JSON values."""
    environment: Environment = Environment()
    runner_up: Incumbent | None = None
    clear: bool | None = None
    """Whether the noise can tell incumbent and runner-up apart; None before there is a verdict."""
    explanation: str = ""
    decisions: tuple[Decision, ...] = ()
    export_setting: Setting | None = None
    """The incumbent's setting with its safety margin: what best-config.yaml holds."""
    unwritten: str | None = None
    """Why the answer's files could not be written, in a sentence; None where they were, or there is no answer yet."""
    ended: str | None = None
    """Why the last run ended, in a sentence."""
    spent_at_unix_s: float | None = None
    """When a daemon that runs wrote `spent_s`; None where none runs."""
    server_ports: tuple[int, ...] = ()
    """Of the servers that its daemon has launched and not yet proved gone."""
    build: Mapping[str, object] = field(default_factory=dict)
    """launcher.version.SglangBuild as JSON values."""
