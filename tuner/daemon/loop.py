"""The study's loop: propose, try, publish, until there is a reason to end."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, replace

from launcher import exits
from launcher.errors import CleanSlateError, LauncherError
from launcher.failure import Failure, Kind
from tuner.budget import words
from tuner.daemon.interrupts import StopNow
from tuner.daemon.trial import Bench, Persist, TrialRun
from tuner.errors import DiskFull, TunerError
from tuner.journal.lock import this_process
from tuner.journal.rows import OpenTrial
from tuner.trial import TrialResult, TrialState

BEAT_S = 5.0
"""Wall seconds between two entries of what is spent: as much is forgotten by a kill at most."""
HOPELESS = 2
"""So many trials in a row that failed through no fault of their configuration, each started RETRIES times again, end
the study: a third would only cost more of a night."""
_INPUT_IS_WRONG = (Kind.CONFIG_ERROR, Kind.MODEL_NOT_FOUND, Kind.COMMAND_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Limits:
    """Other ends than the budget's."""

    max_trials: int | None = None
    max_crashes: int | None = None
    serve_best: bool = False
    """At the end start the answer and leave it running."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of the daemon ended. `done`: nothing is left to resume."""

    code: int
    sentence: str
    done: bool


class Daemon:
    """Drives one study. All it knows is in the journal, so that a killed one goes on as if it had lived."""

    def __init__(self, bench: Bench, limits: Limits) -> None:
        self.bench = bench
        self.limits = limits

    async def run(self) -> Ending:
        """Work until there is a reason to end. Nothing of ours runs when it returns."""
        bench = self.bench
        bench.journal.begin_run(this_process())
        beating = asyncio.create_task(self._beat())
        try:
            ending = await self._work()
            unwritten = bench.publish_now()
        except (LauncherError, TunerError) as error:
            self._note_end(self._broken(str(error)))
            raise
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        if self.limits.serve_best and ending.done and ending.code == exits.OK:
            await self._serve_best()
        if unwritten is not None and ending.code == exits.OK:
            ending = replace(ending, code=exits.MACHINE, sentence=f"{ending.sentence}, but the answer is not written")
        self._note_end(ending)
        # Once more, now that the journal holds all that was spent: the evidence tells it too.
        if unwritten is None:
            bench.publish_now()
        return ending

    async def _serve_best(self) -> None:
        """The server stays in the journal as not gone: whoever goes on with the study ends it first."""
        bench = self.bench
        starting = bench.testbed.start(bench.searcher.export_setting(bench.journal.trials()), keep=True)
        try:
            started = await bench.interrupts.guard(starting, bench.clock, math.inf, at_once=True)
            why = None if started.failure is None else started.failure.sentence
        except StopNow:
            why = "stopped by the user"
        except LauncherError as error:
            why = str(error)
        if why is not None:
            bench.scribe.say("failure", f"the answer was not left running: {why}")
            await bench.testbed.stop()
            return
        server, study_id = bench.journal.left_servers()[-1], bench.journal.directory.name
        at = f"http://127.0.0.1:{server['port']} (process {server['pid']})"
        bench.scribe.say("serve", f"the answer serves at {at}; `kvtune-auto stop {study_id}` ends it")

    async def _work(self) -> Ending:
        try:
            while (ending := self._reason_to_end()) is None:
                ending = await self._next_trial()
                if ending is not None:
                    break
        except StopNow:
            ending = self._interrupted()
        except (CleanSlateError, DiskFull) as error:
            ending = self._interrupted() if self.bench.interrupts.stop_asked else self._broken(str(error))
        return ending

    async def _next_trial(self) -> Ending | None:
        bench = self.bench
        await self._wait_while_paused()
        if bench.interrupts.stop_asked:
            return self._interrupted()
        trial = bench.journal.open_trial() or await self._propose()
        if trial is None:
            return await self._nothing_more()
        failure = await TrialRun(bench, trial).run()
        bench.scribe.at(None)
        if failure is not None and failure.kind in _INPUT_IS_WRONG and not self._ever_served():
            return Ending(exits.USAGE, failure.sentence, done=True)
        if failure is not None and failure.kind is Kind.UNAUTHORIZED:
            return Ending(exits.USAGE, failure.sentence, done=False)
        return None

    async def _propose(self) -> OpenTrial | None:
        bench = self.bench
        bench.scribe.on_stage("thinking")
        history = bench.journal.trials()
        remaining_s = bench.budget.usable_s
        proposal = await asyncio.to_thread(bench.searcher.propose, history, remaining_s)
        if proposal is None:
            return None
        trial_id = await Persist(bench)(lambda: bench.journal.begin_trial(proposal, remaining_s))
        bench.scribe.at(None)
        return OpenTrial(trial_id, proposal, (), None, 0)

    async def _wait_while_paused(self) -> None:
        bench = self.bench
        if not bench.interrupts.pause_asked:
            return
        began_s = bench.clock.now_s()
        bench.scribe.on_stage("paused: by the user")
        await bench.interrupts.wait_resumed()
        bench.budget.paused_s += bench.clock.now_s() - began_s

    async def _nothing_more(self) -> Ending:
        """What the search's silence means."""
        bench, trials = self.bench, self.bench.journal.trials()
        left = words(bench.budget.usable_s)
        unaffordable = await asyncio.to_thread(bench.searcher.propose, trials, math.inf)
        if unaffordable is not None and not trials:
            needed, lacking_s = words(unaffordable.expected_s), unaffordable.expected_s - bench.budget.usable_s
            enough = words(60 * math.ceil((bench.budget.total_s + 1.2 * lacking_s) / 60))
            sentence = f"budget: leaves {left} for trials, and the first needs {needed}; {enough} would do"
            return Ending(exits.USAGE, sentence, done=False)
        if unaffordable is not None:
            kept = words(bench.budget.remaining_s - bench.budget.usable_s)
            return self._finished(
                f"the {left} that are left are too short for another start ({kept} more are kept for the end)"
            )
        return self._finished(_why_no_setting(trials))

    def _reason_to_end(self) -> Ending | None:
        trials = self.bench.journal.trials()
        if self.bench.interrupts.stop_asked:
            return self._interrupted()
        if not self.bench.budget.level_fits:
            return self._finished("the budget is used up")
        if self.limits.max_trials is not None and _ended(trials) >= self.limits.max_trials:
            return self._finished(f"{self.limits.max_trials} trials were made")
        if self.limits.max_crashes is not None and _crashes(trials) >= self.limits.max_crashes:
            return self._finished(f"{self.limits.max_crashes} starts failed by their configuration")
        last = [trial.state for trial in trials[-HOPELESS:]]
        if last.count(TrialState.INFRASTRUCTURE) == HOPELESS:
            return self._broken(f"{HOPELESS} trials in a row failed: {_sentence(trials[-1].failure)}")
        return None

    def _finished(self, why: str) -> Ending:
        trials = self.bench.journal.trials()
        if any(trial.levels for trial in trials):
            return Ending(exits.OK, why, done=True)
        if trials and not any(trial.state is TrialState.FAILED for trial in trials):
            # No configuration was found wanting: what stood in the way may be gone when the study is resumed.
            met = _last_failure(trials)
            return self._broken("nothing could be measured: " + (f"{met.sentence}; {why}" if met else why))
        return Ending(exits.NOTHING_FEASIBLE, f"nothing could be measured: {why}", done=True)

    def _interrupted(self) -> Ending:
        return Ending(exits.INTERRUPTED, "interrupted; resume it with --resume", done=False)

    def _broken(self, why: str) -> Ending:
        return Ending(exits.MACHINE, why, done=False)

    def _ever_served(self) -> bool:
        trials = self.bench.journal.trials()
        return any(trial.timeline is not None and trial.timeline.ready_s is not None for trial in trials)

    def _note_end(self, ending: Ending) -> None:
        bench = self.bench
        bench.scribe.say("stop", ending.sentence)
        with contextlib.suppress(DiskFull):
            if ending.done:
                bench.journal.set_fact("done", ending.sentence)
            bench.journal.end_run(bench.budget.spent_s - bench.budget.spent_before_s, ending.sentence)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.bench.scribe.beat()


def _ended(trials: tuple[TrialResult, ...]) -> int:
    return sum(trial.state is not TrialState.RUNNING for trial in trials)


def _crashes(trials: tuple[TrialResult, ...]) -> int:
    return sum(trial.failure is not None and trial.failure.teaches for trial in trials)


def _last_failure(trials: tuple[TrialResult, ...]) -> Failure | None:
    return next((trial.failure for trial in reversed(trials) if trial.failure is not None), None)


def _why_no_setting(trials: tuple[TrialResult, ...]) -> str:
    if any(trial.levels for trial in trials):
        return "nothing more is worth its minutes"
    if any(trial.failure is not None for trial in trials):
        return "after these failures no other setting of the space is likely to live"
    return "no setting of the space is likely to live"


def _sentence(failure: Failure | None) -> str:
    return failure.sentence if failure is not None else "they gave no reason"
