"""What is remembered of a server, how long it may take, and what its end was."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.process import Process, ProcessId


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Enough to find every process of one launch again, also after our own death. Goes into a journal as
    JSON."""

    pid: int
    start_time: float
    """Of the process that we started, in seconds since boot."""
    pgid: int
    """Its group and session, which nobody else shares."""
    token: str
    port: int
    children: tuple[ProcessId, ...] = ()
    container_runner: str = ""
    """The runner's own words ("docker", "sudo podman") when this launch made a container, else empty."""

    @property
    def root(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)

    def with_children(self, family: tuple[Process, ...]) -> ServerRecord:
        """The same with the processes of `family` added; none is ever forgotten."""
        known = dict.fromkeys(self.children)
        known.update(dict.fromkeys(process.id for process in family if process.pid != self.pid))
        return replace(self, children=tuple(known))

    def as_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> ServerRecord:
        """The inverse of `as_dict`."""
        children = tuple(ProcessId(int(c["pid"]), float(c["start_time"])) for c in told.get("children", ()))
        return cls(
            pid=int(told["pid"]),
            start_time=float(told["start_time"]),
            pgid=int(told["pgid"]),
            token=str(told["token"]),
            port=int(told["port"]),
            children=children,
            container_runner=str(told.get("container_runner", "")),
        )


@dataclass(frozen=True, slots=True)
class StartLimits:
    """How long a start may take, in study seconds. A start that goes on telling in its log gets the hard
    limit."""

    quiet_s: float = 300.0
    """Without a byte more in the log. Weights of 600 GB load for minutes, but their progress bar moves."""
    hard_s: float = 3600.0
    answer_s: float = 120.0
    """From "fired up" to the first answer to a request."""


@dataclass(frozen=True, slots=True)
class StopLimits:
    """How long an end may take, in study seconds."""

    term_s: float = 45.0
    """From SIGTERM to SIGKILL: SGLang looks every 5 s, drains, and waits 15 s for pinned memory (0.5.14
    on)."""
    straggler_s: float = 10.0
    """For children that outlive the launcher: they were told to die with it, but tear down their memory first."""
    kill_s: float = 60.0
    """From SIGKILL to giving up: freeing pinned memory can hang in the kernel for tens of seconds."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an end went."""

    took_s: float
    """Study seconds."""
    killed: bool
    """Something of it had to get SIGKILL."""
    exit_code: int | None
    """Of the process that we started; negative for a signal; None for one that was not our child."""
    ended: tuple[int, ...] = ()
    """The pids that were ended, or had ended."""
    leftovers: tuple[str, ...] = ()
    """What is still there, each as a phrase for a person; empty when the end is proved."""

    @property
    def clean(self) -> bool:
        return not self.leftovers
