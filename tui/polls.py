"""What is polled: one server, all GPUs, one study. A step reads once and returns the seconds to the next read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.errors import LauncherError, ObservationError
from launcher.gpus import GpuReader, GpuSample
from launcher.observe.sample import ServerSample
from tui.frame import ServerReading
from tuner.errors import TunerError

if TYPE_CHECKING:
    from tuner.journal.view import StudyView

RETRY_AT_MOST_S = 5.0
DISCOVER_EVERY_S = 5.0
STUDY_EVERY_S = 2.0
GPU_EVERY_S = 2.0
"""At most: a reading costs about 5 ms a GPU (NVML on an H200), and none of its figures tells more twice as often."""


class SampleReader(Protocol):
    """The part of `launcher.observe.read.ServerReader` that is used here."""

    def read(self) -> ServerSample: ...

    def close(self) -> None: ...


OpenReader = Callable[[str, str | None, float], SampleReader]
"""(url, api_key, timeout_s) -> reader."""


def open_server_reader(url: str, api_key: str | None, timeout_s: float) -> SampleReader:
    # Late: whoever replays a recording needs no HTTP client.
    from launcher.observe.read import ServerReader

    return ServerReader(url, api_key=api_key, timeout_s=timeout_s)


OpenGpus = Callable[[str | None], GpuReader]
"""A source ("nvml", "simulated:DIR"; None: the driver) -> reader."""


class Repeating(threading.Thread):
    """Runs `step` again and again until stopped; `step` returns the seconds to wait.

    What nobody foresaw is told by `failed` and shown on the screen; the thread goes on.
    """

    def __init__(self, name: str, step: Callable[[], float], failed: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._step = step
        self._failed = failed
        self._stopped = threading.Event()
        self.first_done = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                wait_s = self._step()
            except Exception as error:  # noqa: BLE001 - the sentence is shown, and the next read may succeed
                self._failed(f"cannot be read: {type(error).__name__}: {error}")
                wait_s = RETRY_AT_MOST_S
            self.first_done.set()
            self._stopped.wait(wait_s)

    def stop(self) -> None:
        self._stopped.set()


class ServerPoll:
    """The newest reading of one server."""

    def __init__(self, url: str, reader: SampleReader, interval_s: Callable[[], float]) -> None:
        self.reading = ServerReading(url)
        self._reader = reader
        self._interval_s = interval_s
        self._failures = 0
        self._failing_since: float | None = None

    def step(self) -> float:
        """Read once; a failure keeps the last good sample and says why. Returns the seconds to the next
        read.
        """
        began = time.monotonic()
        try:
            sample = self._reader.read()
        except ObservationError as error:
            self._failures += 1
            self._failing_since = self._failing_since or began
            self.reading = replace(self.reading, problem=str(error), problem_kind=type(error).__name__)
        else:
            self._failures, self._failing_since = 0, None
            self.reading = replace(
                self.reading, sample=sample, sample_unix_s=time.time(), problem=None, problem_kind=None
            )
        interval_s = self._interval_s()
        if self._failures > 3:
            interval_s = min(max(RETRY_AT_MOST_S, interval_s), interval_s * self._failures)
        return max(0.05, interval_s - (time.monotonic() - began))

    def failing_s(self) -> float:
        """For how long no read has succeeded; 0 while they do."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def fail(self, sentence: str) -> None:
        self.reading = replace(self.reading, problem=sentence, problem_kind="Unparsable")

    def close(self) -> None:
        self._reader.close()


NOT_YET = "the GPUs have not answered yet"


class GpuPoll:
    """The newest samples of all GPUs."""

    def __init__(
        self,
        open_reader: OpenGpus,
        source: str | None,
        interval_s: Callable[[], float],
        simulated: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`simulated` tells where the GPUs of the simulated server that is watched are: they are shown on a machine
        that has none of its own.
        """
        self.samples: tuple[GpuSample, ...] = ()
        self.problem: str | None = NOT_YET
        self._open_reader = open_reader
        self._source = source
        self._simulated = simulated
        self._readers: dict[str | None, GpuReader] = {}
        self._interval_s = interval_s
        self._names: dict[int, str | None] = {}

    def step(self) -> float:
        began = time.monotonic()
        try:
            samples = self._reader(self._source).read()
            if not samples and self._source is None and (simulated := self._simulated()) is not None:
                samples = self._reader(simulated).read()
        except LauncherError as error:
            self.problem = str(error)
            return self._interval_s()
        self.samples, self.problem = self._with_names(samples), None
        every_s = max(GPU_EVERY_S, self._interval_s()) if samples else self._interval_s()
        return max(0.05, every_s - (time.monotonic() - began))

    def fail(self, sentence: str) -> None:
        self.samples, self.problem = (), sentence

    def close(self) -> None:
        for reader in list(self._readers.values()):
            reader.close()

    def _reader(self, source: str | None) -> GpuReader:
        """Opened here and not before: starting a driver may take a second, and the screen must not wait for it."""
        if source not in self._readers:
            self._readers[source] = self._open_reader(source)
        return self._readers[source]

    def _with_names(self, samples: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
        """NVML tells pids alone. A pid that cannot be seen from here (a container's host) stays without a name."""
        from tui.discover import process_name

        pids = {process.pid for gpu in samples for process in gpu.processes if process.name is None}
        self._names = {pid: self._names.get(pid) or process_name(pid) for pid in pids}
        return tuple(
            replace(gpu, processes=tuple(replace(p, name=p.name or self._names.get(p.pid)) for p in gpu.processes))
            for gpu in samples
        )


class StudyPoll:
    """The newest view of the study: the one that was named, or the one that a daemon runs here."""

    def __init__(self, named: Path | None) -> None:
        self.view: StudyView | None = None
        self.problem: str | None = None
        self._named = named
        self._seen: Path | None = None

    def step(self) -> float:
        try:
            self.view, self.problem = self._read(), None
        except TunerError as error:
            self.problem = str(error)
        return STUDY_EVERY_S if self.view is not None or self._named else DISCOVER_EVERY_S

    def fail(self, sentence: str) -> None:
        self.problem = sentence

    def _read(self) -> StudyView | None:
        # Late, and the reader later still: a machine on which no study runs needs no machinery of the journal.
        from tuner.journal import find_running_studies

        # One that was running and has ended stays on the screen: its result is what people waited for.
        self._seen = self._named or next(iter(find_running_studies()), self._seen)
        if self._seen is None:
            return None
        from tuner.journal import read_study

        # The build's flags are long, belong to the daemon, and no screen or recording has a use for them.
        return replace(read_study(self._seen), build={})
