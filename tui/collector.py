"""Reads servers, GPUs and a study, each in a thread of its own, so that none of them can hold up another or
the screen.

`frame()` never waits: it hands out the last good figures with their age.
"""

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
from tui.frame import Frame, ServerReading
from tui.settings import Settings
from tuner.errors import TunerError

if TYPE_CHECKING:
    from tui.discover import LocalServer
    from tuner.journal.view import StudyView

TIMEOUT_SHARE = 0.8
"""Of the interval: a read ends before the next is due."""
RETRY_AT_MOST_S = 5.0
DISCOVER_EVERY_S = 5.0
GONE_AFTER_S = 60.0
DISCOVERY_SHARE = 0.001
"""Of one core, at most: on a box with thousands of processes the search becomes rarer."""
STUDY_EVERY_S = 2.0
DEAR_GPU_EVERY_S = 2.0
"""Utilisation, power and processes cost about 5 ms a GPU (NVML on an H200); memory 0.1 ms."""


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


OpenGpus = Callable[[], GpuReader]


def find_local_servers() -> tuple[LocalServer, ...]:
    # Late, in the thread that searches: the screen is drawn before psutil is loaded.
    from tui.discover import local_servers

    return local_servers()


class _Repeating(threading.Thread):
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


class GpuPoll:
    """The newest samples of all GPUs; the dear figures are refreshed less often than the memory."""

    def __init__(self, open_reader: OpenGpus, interval_s: Callable[[], float]) -> None:
        self.samples: tuple[GpuSample, ...] = ()
        self.problem: str | None = None
        self._open_reader = open_reader
        self._reader: GpuReader | None = None
        self._interval_s = interval_s
        self._dear_at = float("-inf")
        self._names: dict[int, str | None] = {}

    def step(self) -> float:
        began = time.monotonic()
        memory_only = began - self._dear_at < DEAR_GPU_EVERY_S - 0.1
        try:
            if self._reader is None:
                # Here and not before: starting a driver may take a second, and the screen must not wait for it.
                self._reader = self._open_reader()
            samples = self._reader.read(memory_only=memory_only)
        except LauncherError as error:
            self.problem = str(error)
            return self._interval_s()
        if memory_only:
            samples = _with_new_memory(self.samples, samples)
        else:
            self._dear_at = began
            samples = self._with_names(samples)
        self.samples, self.problem = samples, None
        return max(0.05, self._interval_s() - (time.monotonic() - began))

    def fail(self, sentence: str) -> None:
        self.samples, self.problem = (), sentence

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _with_names(self, samples: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
        """NVML tells pids alone. A pid that cannot be seen from here (a container's host) stays without a name."""
        from tui.discover import process_name

        pids = {process.pid for gpu in samples for process in gpu.processes if process.name is None}
        self._names = {pid: self._names.get(pid) or process_name(pid) for pid in pids}
        return tuple(
            replace(gpu, processes=tuple(replace(p, name=p.name or self._names.get(p.pid)) for p in gpu.processes))
            for gpu in samples
        )


def _with_new_memory(old: tuple[GpuSample, ...], new: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
    """The old figures with the memory of now; a set of GPUs that has changed is taken as it is."""
    if [gpu.index for gpu in old] != [gpu.index for gpu in new]:
        return new
    return tuple(
        replace(
            before,
            memory_total_bytes=now.memory_total_bytes,
            memory_used_bytes=now.memory_used_bytes,
            lost=now.lost,
        )
        for before, now in zip(old, new, strict=True)
    )


class StudyPoll:
    """The newest view of the study: the one that was named, or the one that a daemon runs here."""

    def __init__(self, named: Path | None) -> None:
        self.view: StudyView | None = None
        self.problem: str | None = None
        self._named = named

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

        directory = self._named or next(iter(find_running_studies()), None)
        if directory is None:
            return None
        from tuner.journal import read_study

        # The build's flags are long, belong to the daemon, and no screen or recording has a use for them.
        return replace(read_study(directory), build={})


class Collector:
    """All polls together."""

    def __init__(
        self,
        settings: Settings,
        open_gpus: OpenGpus | None,
        *,
        open_reader: OpenReader = open_server_reader,
        find: Callable[[], tuple[LocalServer, ...]] = find_local_servers,
        with_study: bool = True,
    ) -> None:
        self.interval_s = settings.interval_s
        self._settings = settings
        self._open_reader = open_reader
        self._find = find
        self._lock = threading.Lock()
        self._polls: dict[str, ServerPoll] = {}
        self._threads: dict[str, _Repeating] = {}
        self._local: dict[str, LocalServer] = {}
        self._discovery_problem: str | None = None
        self._gpus = GpuPoll(open_gpus, lambda: self.interval_s) if open_gpus is not None else None
        self._study = StudyPoll(settings.study) if with_study else None

    def start(self) -> None:
        """Begin to poll. Returns at once."""
        for url in self._settings.urls:
            self._watch(url)
        self._run("discover", self._discover, self._discovery_failed)
        if self._gpus is not None:
            self._run("gpus", self._gpus.step, self._gpus.fail)
        if self._study is not None:
            self._run("study", self._study.step, self._study.fail)

    def wait_first(self, timeout_s: float) -> None:
        """Until every poll has answered or failed once (the servers that discovery finds included)."""
        deadline = time.monotonic() + timeout_s
        waited: set[str] = set()
        while pending := [name for name in list(self._threads) if name not in waited]:
            for name in sorted(pending, key=lambda name: name != "discover"):
                self._threads[name].first_done.wait(max(0.0, deadline - time.monotonic()))
                waited.add(name)

    def frame(self) -> Frame:
        """The newest of everything. Never waits."""
        with self._lock:
            readings = tuple(self._with_pids(poll.reading) for poll in self._polls.values())
        return Frame(
            time.time(),
            readings,
            self._gpus.samples if self._gpus else (),
            self._gpus.problem if self._gpus else None,
            self._study.view if self._study else None,
            tuple(problem for problem in self._problems() if problem),
        )

    def _problems(self) -> tuple[str | None, ...]:
        return self._discovery_problem, self._study.problem if self._study else None

    def stop(self) -> None:
        """Ask every thread to end; they are daemons and need not be waited for."""
        for thread in list(self._threads.values()):
            thread.stop()
        for poll in list(self._polls.values()):
            poll.close()
        if self._gpus is not None:
            self._gpus.close()

    def _with_pids(self, reading: ServerReading) -> ServerReading:
        local = self._local.get(reading.url.replace("//localhost:", "//127.0.0.1:"))
        return replace(reading, pids=local.pids) if local else reading

    def _run(self, name: str, step: Callable[[], float], failed: Callable[[str], None]) -> None:
        thread = _Repeating(name, step, failed)
        self._threads[name] = thread
        thread.start()

    def _watch(self, url: str) -> None:
        reader = self._open_reader(url, self._settings.api_key, TIMEOUT_SHARE * self.interval_s)
        poll = ServerPoll(url, reader, lambda: self.interval_s)
        with self._lock:
            self._polls[url] = poll
        self._run(url, poll.step, poll.fail)

    def _forget_gone(self) -> None:
        """A server that was found by its process and has ended is shown as down for a while, and then no more.

        A tuner starts a server on a new port for every trial: without this they would all stay on the screen.
        """
        for url in self._polls.keys() - self._local.keys():
            poll = self._polls[url]
            if poll.failing_s() > GONE_AFTER_S:
                self._threads.pop(url).stop()
                with self._lock:
                    del self._polls[url]
                poll.close()

    def _discovery_failed(self, sentence: str) -> None:
        self._discovery_problem = f"the processes of this machine {sentence}"

    def _discover(self) -> float:
        """Local servers and their processes; without --url each of them is watched from now on."""
        began = time.thread_time()
        self._discovery_problem = None
        self._local = {server.url: server for server in self._find()}
        if not self._settings.urls:
            self._forget_gone()
            for url in self._local.keys() - self._polls.keys():
                self._watch(url)
        return max(DISCOVER_EVERY_S, (time.thread_time() - began) / DISCOVERY_SHARE)
