"""What a server's failure is judged by: its log, its exit code, the GPUs, the kernel, and how it was
found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.failures import Evidence, classify
from launcher.gpus import GpuReader
from launcher.host import read_host, read_kernel_log
from launcher.logs import read_timeline
from launcher.redact import redact_text
from launcher.server.record import ServerRecord
from launcher.timeline import Timeline

FIRED_UP = "The server is fired up and ready to roll"
"""In every version from 0.4.10 to 0.5.23, after the warm-up request."""
GIVES_UP = "SIGQUIT received"
"""The launcher, once it has said which child is lost; then it waits for crash diagnostics (0.5.17-0.5.18: a minute)."""
BIND_FAILED = "error while attempting to bind on address"
"""uvicorn's words; they come after the weights were loaded."""

_HEAD_BYTES = 4 * 2**20
_TAIL_BYTES = 4 * 2**20
_WATCHED = (FIRED_UP, BIND_FAILED, GIVES_UP)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How the failure was found, where it was not by the process's end."""

    hung_s: float | None = None
    """The limit that passed."""
    quiet: bool = False
    """It was the limit on silence in the log."""
    answers: bool | None = None
    """Whether it answered a request."""
    port_holder: str | None = None
    """A stranger that listens on our port."""


class LogFile:
    """The one file that a server writes to, read as it grows."""

    def __init__(self, path: Path, launched_unix_s: float) -> None:
        self.path = path
        self.launched_unix_s = launched_unix_s
        self._read_bytes = 0
        self._known_bytes = 0
        self._recent = ""
        self._said: set[str] = set()

    def grew(self) -> bool:
        """Whether there is more than at the last call."""
        known, self._known_bytes = self._known_bytes, self._size_bytes()
        return self._known_bytes > known

    def says(self, words: str) -> bool:
        """Whether one of the phrases that a server is watched for has been written."""
        self._advance()
        return words in self._said

    def text(self) -> str:
        """The whole log; of a very long one its beginning (the start-up) and its end (the death)."""
        try:
            with open(self.path, "rb") as file:
                head = file.read(_HEAD_BYTES)
                file.seek(max(len(head), self._size_bytes() - _TAIL_BYTES))
                return (head + file.read()).decode("utf-8", errors="replace")
        except OSError:
            return ""

    def timeline(self) -> Timeline:
        """The start-up as the log tells it, whole or as far as it came; its seconds count from the launch."""
        return read_timeline(self.text(), self.launched_unix_s)

    def _advance(self) -> None:
        if self._size_bytes() <= self._read_bytes:
            return
        with open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        self._read_bytes += len(new)
        seen = self._recent + new.decode("utf-8", errors="replace")
        self._said.update(words for words in _WATCHED if words in seen)
        self._recent = seen[-max(map(len, _WATCHED)) :]

    def _size_bytes(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0


@dataclass(frozen=True, slots=True)
class Scene:
    """What was noted at the launch, to be held against what is found at the failure."""

    oom_kills: int | None
    gpus: GpuReader | None

    def gather(self, log: str, record: ServerRecord, exit_code: int | None, found: Circumstances) -> Evidence:
        """Everything that can be known of the failure now."""
        oom_kills = read_host().oom_kills
        known = oom_kills is not None and self.oom_kills is not None
        return Evidence(
            log=log,
            exit_code=exit_code,
            kernel_log=read_kernel_log(),
            own_pids=frozenset({record.pid, *(child.pid for child in record.children)}),
            oom_kills=oom_kills - self.oom_kills if known else None,  # type: ignore[operator]
            gpus=self.gpus.read() if self.gpus is not None else (),
            answers_health=found.answers,
            silent_s=found.hung_s if found.quiet else None,
        )


def judge(
    log: LogFile, record: ServerRecord, exit_code: int | None, scene: Scene, circumstances: Circumstances
) -> Failure:
    """One Failure, always: what nothing else explains is a hang or unknown, with the last lines as evidence."""
    text = log.text()
    if circumstances.port_holder is not None:
        return _port_in_use(record, exit_code, circumstances.port_holder, text)
    found = classify(scene.gather(text, record, exit_code, circumstances))
    if circumstances.hung_s is not None and (found is None or found.kind is Kind.UNKNOWN):
        return _hung(log.timeline(), circumstances, text)
    return found if found is not None else _unexplained(exit_code, text)


def _port_in_use(record: ServerRecord, exit_code: int | None, holder: str, text: str) -> Failure:
    return Failure(
        kind=Kind.PORT_IN_USE,
        stage=Stage.LAUNCH,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence=f"port {record.port} is held by {holder}",
        exit_code=exit_code,
        evidence=_last_lines(text),
    )


def _hung(timeline: Timeline, circumstances: Circumstances, text: str) -> Failure:
    limit = f"{circumstances.hung_s:g} s"
    if circumstances.answers is False:
        sentence = f"the server came up but answered no request within {limit}"
    elif circumstances.quiet:
        sentence = f"the start wrote nothing to its log for {limit}"
    else:
        sentence = f"the start was not done within {limit}"
    stage = timeline.spans[-1].stage if timeline.spans else Stage.LAUNCH
    return Failure(
        kind=Kind.HANG_STARTUP,
        stage=Stage.WARM_UP if circumstances.answers is False else stage,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.UNKNOWN,
        retry=True,
        sentence=f"{sentence} ({stage.value.replace('_', ' ')})",
        evidence=_last_lines(text),
    )


def _unexplained(exit_code: int | None, text: str) -> Failure:
    how = "a worker process vanished" if exit_code is None else f"it ended with code {exit_code}"
    return Failure(
        kind=Kind.UNKNOWN,
        stage=Stage.UNDER_LOAD if FIRED_UP in text else Stage.LAUNCH,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.UNKNOWN,
        retry=True,
        sentence=f"the server is gone and its log does not say why: {how}",
        exit_code=exit_code,
        evidence=_last_lines(text),
    )


def _last_lines(text: str, count: int = 5) -> tuple[str, ...]:
    lines = [line for line in text[-20_000:].splitlines() if line.strip()]
    return tuple(redact_text(line[:400]) for line in lines[-count:])
