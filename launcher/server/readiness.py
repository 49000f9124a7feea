"""When a server serves: three conditions, because each of them alone has been seen to lie.

"Fired up" in the log is printed even when the port was held by somebody else, whose server then answered
the warm-up request; a 200 on the port may come from that server too; and a listening socket of ours says
nothing of the schedulers. So: a process of our own family owns the listening socket, the log says "fired
up", and a request that generates one token (/health_generate, which needs no API key) is answered.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx

from launcher.deadline import Deadline, pause_s
from launcher.errors import StartFailed
from launcher.ports import Listener, find_listeners
from launcher.process import read_process, read_table
from launcher.server.evidence import BIND_FAILED, FIRED_UP, Circumstances
from launcher.server.record import StartLimits
from launcher.timeline import Timeline

if TYPE_CHECKING:
    from launcher.server.running import Server

_FAMILY_EVERY_S = 1.0


async def wait_ready(server: Server, limits: StartLimits) -> Timeline:
    """Wait for the three conditions. Raises StartFailed for a death, a stranger on the port, or a passed
    limit."""
    await _wait_fired_up(server, limits)
    fired_up_s = server.clock.now_s() - server.launched_s
    await _wait_owned(server, limits)
    await _wait_answer(server, limits)
    timeline = await asyncio.to_thread(server.log.timeline)
    return timeline if timeline.ready_s is not None else replace(timeline, ready_s=fired_up_s)


async def _wait_fired_up(server: Server, limits: StartLimits) -> None:
    hard, quiet = Deadline(server.clock, limits.hard_s), Deadline(server.clock, limits.quiet_s)
    looked = Deadline(server.clock, _FAMILY_EVERY_S)
    while not server.log.says(FIRED_UP):
        _fail_if_dead(server)
        if server.log.grew():
            quiet.restart()
        if hard.passed or quiet.passed:
            limit = hard if hard.passed else quiet
            raise StartFailed(server.judge(Circumstances(hung_s=limit.limit_s, quiet=limit is quiet)))
        if looked.passed:
            await server.note_family()
            await _fail_if_bind_failed(server)
            looked.restart()
        await asyncio.sleep(pause_s(server.clock))


async def _wait_owned(server: Server, limits: StartLimits) -> None:
    """Wait until the socket is ours. A stranger's socket is told from ours by who holds it."""
    deadline = Deadline(server.clock, limits.answer_s)
    while True:
        _fail_if_dead(server)
        family = {process.pid for process in await server.note_family()}
        listeners = await asyncio.to_thread(_listeners, server.record.port)
        strangers = [found for found in listeners if not family & set(found.pids)]
        if listeners and not strangers:
            return
        if strangers and not (server.record.container_runner and _came_with(server, strangers)):
            raise StartFailed(server.judge(Circumstances(port_holder=strangers[0].describe())))
        if strangers:
            return
        if deadline.passed:
            raise StartFailed(server.judge(Circumstances(hung_s=limits.answer_s)))
        await asyncio.sleep(pause_s(server.clock))


async def _wait_answer(server: Server, limits: StartLimits) -> None:
    deadline = Deadline(server.clock, limits.answer_s)
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=limits.answer_s) as client:
        while True:
            question = asyncio.ensure_future(client.get(f"{server.url}/health_generate"))
            try:
                if await _answered(server, question, deadline):
                    return
            finally:
                question.cancel()
                with suppress(asyncio.CancelledError, httpx.HTTPError):
                    await question
            if deadline.passed:
                raise StartFailed(server.judge(Circumstances(hung_s=limits.answer_s, answers=False)))
            await asyncio.sleep(pause_s(server.clock))


async def _answered(server: Server, question: asyncio.Future[httpx.Response], deadline: Deadline) -> bool:
    """Whether the question got a 200; a death of the server in the meantime is not waited out."""
    while not question.done() and not deadline.passed:
        _fail_if_dead(server)
        await asyncio.wait([question], timeout=pause_s(server.clock))
    if not question.done() or question.exception() is not None:
        return False
    return question.result().status_code == httpx.codes.OK


def _fail_if_dead(server: Server) -> None:
    failure = server.poll()
    if failure is not None:
        raise StartFailed(failure)


async def _fail_if_bind_failed(server: Server) -> None:
    """A server that could not bind its port may hang on for minutes, or for ever, instead of ending."""
    if not server.log.says(BIND_FAILED):
        return
    holders = [found.describe() for found in await asyncio.to_thread(_listeners, server.record.port)]
    raise StartFailed(server.judge(Circumstances(port_holder=" and ".join(holders) or "a process that has gone")))


def _listeners(port: int) -> tuple[Listener, ...]:
    return find_listeners(port, read_table())


def _came_with(server: Server, listeners: list[Listener]) -> bool:
    """Of a container: the port was free at the launch, and whoever holds it now is younger, or out of our sight."""
    holders = [read_process(pid) for found in listeners for pid in found.pids]
    return all(holder is None or holder.start_time >= server.record.start_time for holder in holders)
