"""Speaking to a running daemon: stop, pause, resume. Signals to the recorded process, never by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from launcher import exits

_study = click.argument("study", required=False)
_WAIT_S = 120.0


@click.command()
@_study
@click.option("--now", is_flag=True, help="Do not finish the level that is being measured.")
def stop(study: str | None, now: bool) -> int:
    """Finish the level, stop the server, export; the study can be resumed. Default: the newest running.

    A server that --serve-best left running is stopped as well.
    """
    served = None if study is None else _served(study)
    if served is not None:
        return _end_served(served)
    directory, pid = _running(study)
    os.kill(pid, signal.SIGINT)
    if now:
        time.sleep(0.2)
        os.kill(pid, signal.SIGINT)
    exits.say(f"study {directory.name}: process {pid} was asked to stop")
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        from tuner.journal.home import is_running

        if not is_running(directory):
            exits.say(f"study {directory.name}: stopped; go on with `kvtune-auto --resume {directory.name}`")
            return exits.OK
        time.sleep(0.2)
    exits.say(f"study {directory.name}: process {pid} still finishes its level; --now does not wait for it")
    return exits.OK


@click.command()
@_study
def pause(study: str | None) -> None:
    """Finish the level, stop the server and free the GPUs until `resume`; paused time is not spent."""
    from tuner.daemon.interrupts import PAUSE

    directory, pid = _running(study)
    os.kill(pid, PAUSE)
    exits.say(f"study {directory.name}: process {pid} was asked to pause after this level")


@click.command()
@_study
def resume(study: str | None) -> int:
    """Go on: with a paused study, or in the background with an interrupted one."""
    from tuner.cli.start import Request, run
    from tuner.daemon.interrupts import RESUME
    from tuner.journal import find_study
    from tuner.journal.home import is_running

    directory = find_study(study)
    if not is_running(directory):
        return run(Request(told={}, resumed=str(directory), detach=True))
    os.kill(_pid(directory), RESUME)
    exits.say(f"study {directory.name}: goes on")
    return exits.OK


def _served(study: str) -> Path | None:
    """The study's directory if its daemon is gone and a server of it may still run."""
    from tuner.journal import Journal, find_study
    from tuner.journal.home import is_running

    directory = find_study(study)
    if is_running(directory):
        return None
    journal = Journal(directory)
    try:
        return directory if journal.left_servers() else None
    finally:
        journal.close()


def _end_served(directory: Path) -> int:
    import asyncio

    from launcher.clock import WallClock
    from tuner.daemon.orphans import reap_left
    from tuner.journal import Journal
    from tuner.journal.home import LOCK
    from tuner.journal.lock import Lock

    lock = Lock(directory / LOCK, f"study {directory.name}")
    journal = Journal(directory)
    try:
        ended = asyncio.run(reap_left(journal, WallClock()))
    finally:
        journal.close()
        lock.release()
    exits.say(f"study {directory.name}: {ended} server was stopped")
    return exits.OK


def _running(study: str | None) -> tuple[Path, int]:
    """The study meant and its daemon's pid. Raises StudyFileError when no daemon works on it."""
    from tuner.errors import StudyFileError
    from tuner.journal import find_running_studies, find_study
    from tuner.journal.home import is_running

    if study is None:
        running = find_running_studies()
        if not running:
            raise StudyFileError("no study is running")
        return running[-1], _pid(running[-1])
    directory = find_study(study)
    if not is_running(directory):
        raise StudyFileError(f"study {directory.name}: no daemon works on it")
    return directory, _pid(directory)


def _pid(directory: Path) -> int:
    from launcher.process import is_gone
    from tuner.errors import StudyFileError
    from tuner.journal.home import LOCK
    from tuner.journal.lock import read_holder

    holder = read_holder(directory / LOCK)
    if holder is None or is_gone(holder):
        raise StudyFileError(f"study {directory.name}: its daemon has just ended")
    return holder.pid
