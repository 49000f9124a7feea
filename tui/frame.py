"""A frame: what was read at one moment, before anything is computed from it. Frames are what a recording
holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.gpus import GpuSample
from launcher.observe.sample import ServerSample

if TYPE_CHECKING:
    from tuner.journal.view import StudyView


@dataclass(frozen=True, slots=True)
class ServerReading:
    """The last good sample of one server, and why the newest read failed if it did."""

    url: str
    sample: ServerSample | None = None
    sample_unix_s: float | None = None
    """When the sample was taken, by this machine's clock."""
    problem: str | None = None
    """One sentence; None while the newest read succeeded."""
    problem_kind: str | None = None
    """The class of the ObservationError: Unreachable, Unauthorized, NotServed, Unparsable."""
    pids: tuple[int, ...] = ()
    """The server's process tree where it runs on this machine."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything read at one moment."""

    taken_unix_s: float
    servers: tuple[ServerReading, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    gpu_problem: str | None = None
    study: StudyView | None = None
    problems: tuple[str, ...] = ()
    """What else could not be read: the study, the processes of this machine."""
