"""Reads servers, GPUs and a study, each in a thread of its own, so that none of them can hold up another or the screen.

`frame()` never waits: it hands out the last good figures with their age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tui.frame import Frame, ServerReading
from tui.polls import (
    DISCOVER_EVERY_S,
    GpuPoll,
    OpenGpus,
    OpenReader,
    Repeating,
    ServerPoll,
    StudyPoll,
    open_server_reader,
)
from tui.settings import Settings

if TYPE_CHECKING:
    from tui.discover import LocalServer

TIMEOUT_SHARE = 0.8
"""Of the interval: a read ends before the next is due."""
GONE_AFTER_S = 60.0
"""So long a server that was found by its process is still shown after it has ended."""
GONE_IN_STUDY_AFTER_S = 5.0
"""The same while a study is shown: its daemon ends servers on purpose."""
DISCOVERY_SHARE = 0.0005
"""Of one core, at most: on a box with thousands of processes the search becomes rarer."""
DISCOVER_IN_STUDY_EVERY_S = 2.0
DISCOVERY_IN_STUDY_SHARE = 0.005
"""A study starts a new server for every trial."""
FIND_WITHIN_S = 5.0
"""So long the GPUs wait for the first search: whose simulated GPUs they are is not known before."""
NOT_READ = "GPUs are not read (--no-gpu)"
STUDY_GPUS = "gpus"
"""Of a study's directory: where its simulated GPUs are kept (none in a real study)."""


def find_local_servers() -> tuple[LocalServer, ...]:
    # Late, in the thread that searches: the screen is drawn before psutil is loaded.
    from tui.discover import local_servers

    return local_servers()


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
        self._threads: dict[str, Repeating] = {}
        self._local: dict[str, LocalServer] = {}
        self._discovery_problem: str | None = None
        self._box: str | None = None
        self._gpus = (
            GpuPoll(open_gpus, settings.gpu_source, lambda: self.interval_s, self._simulated_box)
            if open_gpus is not None
            else None
        )
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
            self._gpus.problem if self._gpus else NOT_READ,
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
        local = self._local_at(reading.url)
        return replace(reading, pids=local.pids) if local else reading

    def _local_at(self, url: str) -> LocalServer | None:
        return self._local.get(url.replace("//localhost:", "//127.0.0.1:"))

    def _simulated_box(self) -> str | None:
        """Where the simulated GPUs are kept of the study that was named, else of the first server that is watched, else
        of the study that runs here; never those of anybody else. Waits until the servers have been searched once.
        """
        self._threads["discover"].first_done.wait(FIND_WITHIN_S)
        if self._settings.study is not None:
            return f"simulated:{self._settings.study / STUDY_GPUS}"
        with self._lock:
            watched = [self._local_at(url) for url in self._polls]
        boxes = [f"simulated:{server.gpu_state}" for server in watched if server and server.gpu_state]
        if not boxes and not self._settings.urls and self._study is not None and self._study.view is not None:
            boxes = [f"simulated:{self._study.view.directory / STUDY_GPUS}"]
        self._box = boxes[0] if boxes else self._box
        return self._box

    def _run(self, name: str, step: Callable[[], float], failed: Callable[[str], None]) -> None:
        thread = Repeating(name, step, failed)
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
        patience_s = GONE_IN_STUDY_AFTER_S if self._in_study else GONE_AFTER_S
        for url in self._polls.keys() - self._local.keys():
            poll = self._polls[url]
            if poll.failing_s() > patience_s:
                self._threads.pop(url).stop()
                with self._lock:
                    del self._polls[url]
                poll.close()

    @property
    def _in_study(self) -> bool:
        return self._study is not None and self._study.view is not None

    def _discovery_failed(self, sentence: str) -> None:
        self._discovery_problem = f"the processes of this machine {sentence}"

    def _wanted(self) -> set[str]:
        """The local servers to watch: all, or the study's own where a study was named."""
        if self._settings.study is None or self._study is None:
            return set(self._local)
        if self._study.view is None:
            self._study.step()
        ports = self._study.view.server_ports if self._study.view is not None else ()
        return {url for url in self._local if url.rpartition(":")[2] in map(str, ports)}

    def _discover(self) -> float:
        """Local servers and their processes; without --url each of them is watched from now on."""
        began = time.thread_time()
        self._discovery_problem = None
        self._local = {server.url: server for server in self._find()}
        if not self._settings.urls:
            self._forget_gone()
            for url in sorted(self._wanted() - self._polls.keys()):
                self._watch(url)
        took_s = time.thread_time() - began
        if self._in_study:
            return max(DISCOVER_IN_STUDY_EVERY_S, took_s / DISCOVERY_IN_STUDY_SHARE)
        return max(DISCOVER_EVERY_S, took_s / DISCOVERY_SHARE)
