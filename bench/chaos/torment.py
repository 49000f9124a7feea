"""One study, struck at random moments and resumed until it ends; then what is left of it is counted."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.strikes import (
    damage_journal,
    fill_disk,
    hold_daemon,
    hold_server,
    kill_scheduler,
    kill_server,
    processes_of,
)
from launcher.errors import LauncherError
from launcher.simulated.gpus import SimulatedGpus
from tuner.cli.start import begin
from tuner.daemon.assemble import GPU_STATE, run_study
from tuner.daemon.interrupts import Interrupts
from tuner.errors import TunerError
from tuner.journal import Journal, StudyView, read_study
from tuner.journal.view import Decision
from tuner.progress import PlainLines
from tuner.progress.words import level_words
from tuner.study_file import Study
from tuner.trial import Setting

WITNESS = "witness.txt"
"""Each finished level, written by the daemon past its journal: what must not be lost."""
MOST_RUNS = 12
LONGEST_RUN_S = 120.0
"""Wall seconds: a run that takes longer hangs."""
POLL_S = 0.02
IDLE_MIB = 64.0
UNFORESEEN = 70
"""A run's code when it ended in a traceback."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one study."""

    seed: int
    directory: Path
    strikes: tuple[str, ...]
    runs: int
    ended: bool
    winner: Setting | None
    clear: bool | None
    why: str | None
    """Why the study ended, in its own words."""
    levels: int
    tracebacks: int
    """Runs of the daemon that ended in an error that nobody foresaw."""
    lost: tuple[str, ...]
    left: tuple[str, ...]
    took_s: float


class _Witness(PlainLines):
    """The daemon's screen: lines into a file, and every finished level into another."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / WITNESS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        super().__init__(lambda line: print(f"{time.time():.2f} {line}", flush=True))

    def decided(self, decision: Decision, spent_s: float) -> None:
        super().decided(decision, spent_s)
        if decision.kind == "level":
            os.write(self._file, f"{decision.trial_id}: {decision.sentence}\n".encode())


def run_calmly(study: Study, seed: int) -> Outcome:
    """The undisturbed twin."""
    return _Torment(study, seed, ()).run()


def run_in_chaos(study: Study, seed: int, expected_s: float) -> Outcome:
    """The same study, struck once or twice within the wall seconds that its twin took."""
    rng = random.Random(seed)
    strikes = [(rng.uniform(0.0, expected_s), rng.choice(_STRIKES)) for _ in range(rng.choice((1, 1, 2)))]
    return _Torment(study, seed, sorted(strikes)).run()


class _Torment:
    def __init__(self, study: Study, seed: int, strikes: Sequence[tuple[float, str]]) -> None:
        self.directory = begin(study)
        journal = Journal(self.directory)
        self.token = str(journal.fact("token"))
        journal.close()
        self.rng = random.Random(seed + 1_000_000)
        self.seed = seed
        self.pending = list(strikes)
        self.done: list[str] = []
        self.codes: list[int] = []

    def run(self) -> Outcome:
        began_s = time.monotonic()
        while not {0, 3} & set(self.codes) and len(self.codes) < MOST_RUNS:
            self.codes.append(self._one_run())
        view = read_study(self.directory)
        outcome = Outcome(
            seed=self.seed,
            directory=self.directory,
            strikes=tuple(self.done),
            runs=len(self.codes),
            ended=self.codes[-1] == 0,
            winner=view.export_setting,
            clear=view.clear,
            why=view.ended,
            levels=sum(len(trial.levels) for trial in view.trials),
            tracebacks=self.codes.count(UNFORESEEN),
            lost=_lost(self.directory, view),
            left=_left(self.directory, self.token),
            took_s=time.monotonic() - began_s,
        )
        if outcome.ended and not (outcome.lost or outcome.left or outcome.tracebacks):
            shutil.rmtree(self.directory)
        return outcome

    def _one_run(self) -> int:
        """One life of the daemon; its exit code, or minus the signal that ended it."""
        daemon = _forked(lambda: _daemon(self.directory))
        began_s = time.monotonic()
        while True:
            ended, status = os.waitpid(daemon, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            lived_s = time.monotonic() - began_s
            if self.pending and lived_s >= self.pending[0][0]:
                self._strike(daemon, self.pending.pop(0)[1])
                self.pending = [(max(0.0, at_s - lived_s), kind) for at_s, kind in self.pending]
            elif lived_s > LONGEST_RUN_S:
                self.done.append("hung, so killed")
                os.kill(daemon, signal.SIGKILL)
            time.sleep(POLL_S)

    def _strike(self, daemon: int, kind: str) -> None:
        if kind in _AT_SERVER:
            # Between two servers there is nothing to hit: wait for the next one, or for the daemon's end.
            while os.waitid(os.P_PID, daemon, _PEEK) is None:
                if _AT_SERVER[kind](self.token, self.rng):
                    self.done.append(kind)
                    return
                time.sleep(POLL_S)
            return
        self.done.append(kind)
        if kind == "daemon held":
            hold_daemon(daemon, self.rng)
        elif kind == "disk full":
            fill_disk(daemon, self.rng)
        else:
            os.kill(daemon, signal.SIGKILL)
            os.waitid(os.P_PID, daemon, os.WEXITED | os.WNOWAIT)
            if kind == "daemon killed, journal damaged":
                self.done[-1] += f" ({damage_journal(self.directory, self.rng)})"


_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_AT_SERVER: dict[str, Callable[[str, random.Random], bool]] = {
    "server killed": kill_server,
    "scheduler killed": kill_scheduler,
    "server held": hold_server,
}
_STRIKES = (*_AT_SERVER, "daemon held", "disk full", "daemon killed", "daemon killed, journal damaged")


def _forked(body: Callable[[], int]) -> int:
    """A child that runs `body` and nothing after it. Forked, not started anew: imports take longer than a study."""
    pid = os.fork()
    if pid:
        return pid
    code = UNFORESEEN
    try:
        os.setsid()
        code = body()
    except (TunerError, LauncherError) as error:
        print(error, flush=True)
        code = error.exit_code
    except Exception:  # noqa: BLE001 - shown; a child must not go on with its parent's work
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _daemon(directory: Path) -> int:
    output = os.open(directory / "daemon.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return asyncio.run(run_study(directory, _Witness(directory), Interrupts())).code


def _lost(directory: Path, view: StudyView) -> tuple[str, ...]:
    """Levels that the daemon called finished and that the journal does not have."""
    known = {f"{trial.trial_id}: {level_words(level)}" for trial in view.trials for level in trial.levels}
    told = (directory / WITNESS).read_text(encoding="utf-8").splitlines()
    return tuple(line for line in told if line not in known)


def _left(directory: Path, token: str) -> tuple[str, ...]:
    """What is still held by the study: processes (and with them ports), and GPU memory."""
    left = [f"process {process.pid} ({process.name})" for process in processes_of(token)]
    deadline_s = time.monotonic() + 2.0
    while (held := _held(directory)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return (*left, *held)


def _held(directory: Path) -> list[str]:
    samples = SimulatedGpus(directory / GPU_STATE).read(memory_only=True)
    held = [(gpu.index, (gpu.memory_used_bytes or 0) / 2**20) for gpu in samples]
    return [f"{mib:.0f} MiB on GPU {index}" for index, mib in held if mib > IDLE_MIB]
