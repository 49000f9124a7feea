"""The handle of one server that we started."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import httpx

from launcher.clock import Clock
from launcher.config import ServerConfig
from launcher.failure import Failure
from launcher.gpus import GpuReader
from launcher.host import read_host
from launcher.process import Process, is_gone
from launcher.server.ending import end, read_family
from launcher.server.evidence import GIVES_UP, Circumstances, LogFile, Scene, judge
from launcher.server.readiness import wait_ready
from launcher.server.record import ServerRecord, StartLimits, StopLimits, StopReport
from launcher.timeline import Timeline

_CHILD_GRACE_S = 8.0
"""SGLang's own watchdog looks every second, and what it tells is waited for; up to 0.5.9 it never notices."""


class Server:
    """A launched server; `launcher.server.launch` makes it."""

    def __init__(
        self,
        config: ServerConfig,
        record: ServerRecord,
        child: subprocess.Popen[bytes],
        log_path: Path,
        clock: Clock,
        *,
        api_key: str | None = None,
        gpus: GpuReader | None = None,
    ) -> None:
        self.config = config
        self.record = record
        self.clock = clock
        self.log = LogFile(log_path, time.time())
        self.launched_s = clock.now_s()
        self.api_key = api_key
        self._child = child
        self._scene = Scene(read_host().oom_kills, gpus)
        self._workers: tuple[Process, ...] = ()
        self._worker_lost_s: float | None = None
        self._ready = False
        self._failure: Failure | None = None
        self._report: StopReport | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.record.port}"

    @property
    def exit_code(self) -> int | None:
        """Of the process that we started; None while it runs."""
        return self._child.poll()

    async def wait_ready(self, limits: StartLimits = StartLimits()) -> Timeline:  # noqa: B008
        """Return when it serves: our own processes listen, the log says so, and a request was answered.

        Raises StartFailed, within a second of a death and within `limits` of a hang. The caller still has
        to stop().
        """
        timeline = await wait_ready(self, limits)
        await self.note_family()
        self._ready = True
        return timeline

    async def note_family(self) -> tuple[Process, ...]:
        """Look for the processes of this launch and add them to `record`."""
        family = await asyncio.to_thread(read_family, self.record)
        self.record = self.record.with_children(family)
        self._workers = tuple(process for process in family if process.name.startswith("sglang::"))
        return family

    def poll(self) -> Failure | None:
        """None while it lives. Cheap while it does; a death is judged from its log, its exit code and its
        GPUs."""
        if self._report is not None:
            return None
        if self._failure is None and (self._child.poll() is not None or self._worker_is_lost()):
            return self.judge(Circumstances())
        return self._failure

    def judge(self, circumstances: Circumstances) -> Failure:
        """The verdict on this server as it is now; from here on there is nothing to be gentle about."""
        self._failure = judge(self.log, self.record, self.exit_code, self._scene, circumstances)
        return self._failure

    async def stop(self, limits: StopLimits = StopLimits()) -> StopReport:  # noqa: B008
        """End it and prove that nothing is left; safe to call twice.

        One that has failed gets SIGKILL at once: SGLang 0.5.18 waits a minute for core dumps of its own crash.
        """
        if self._report is None:
            graceful = self._failure is None
            if graceful and self._ready and self._child.poll() is None:
                await self._abort_all()
            self._report = await end(self.record, self.clock, limits, child=self._child, graceful=graceful)
        return self._report

    async def _abort_all(self) -> None:
        """SGLang drains running requests before it ends, without any deadline: so there must be none."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=3.0) as client:
            try:
                await client.post(f"{self.url}/abort_request", json={"abort_all": True}, headers=headers)
            except httpx.HTTPError:
                return  # It is to be ended either way; the deadline holds without this courtesy.

    def _worker_is_lost(self) -> bool:
        """A scheduler or detokenizer is gone while the launcher lives on, and goes on doing so."""
        if not any(is_gone(worker.id) for worker in self._workers):
            return False
        if self._worker_lost_s is None:
            self._worker_lost_s = self.clock.now_s()
        return self.log.says(GIVES_UP) or self.clock.now_s() - self._worker_lost_s >= _CHILD_GRACE_S
