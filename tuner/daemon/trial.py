"""One trial: start its server, climb its levels, stop it; or go on where an earlier run was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from launcher.clock import Clock
from launcher.errors import CleanSlateError
from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.timeline import Timeline
from tuner.budget import Budget
from tuner.daemon.interrupts import Interrupts, OutOfTime
from tuner.daemon.scribe import Scribe
from tuner.errors import DiskFull
from tuner.journal import Journal
from tuner.journal.rows import OpenTrial
from tuner.progress.scene import TrialNow
from tuner.progress.words import level_words
from tuner.search import Searcher
from tuner.search.probes import LEVEL_S as PROBE_LEVEL_S
from tuner.testbed import LevelLimits, Started, Testbed
from tuner.trial import LevelEnd, LevelResult, Proposal, Purpose, TrialResult, TrialState

T = TypeVar("T")

RETRIES = 2
"""How often a start is made again that failed through no fault of its configuration."""
LAST_TARGET_SHARE = 0.01
"""Of the interval's half width in the study's last level."""
HANG_S = 120.0
"""Beyond half its time again, after which a measurement that has not ended itself never will."""
UNAUTHORIZED = ("http_401", "http_403")
PAUSE_S = 30.0
"""Between two looks at something that is in the way: a stranger's process on a GPU, a full disk."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a trial is made with."""

    journal: Journal
    searcher: Searcher
    testbed: Testbed
    budget: Budget
    clock: Clock
    scribe: Scribe
    interrupts: Interrupts
    publish: Callable[[], None]
    """Write down verdict and export, after every measured level."""

    def publish_now(self) -> str | None:
        """Publish; why it failed, if it did, is said and not waited for: what is published is in the journal too."""
        try:
            self.publish()
        except DiskFull as error:
            self.scribe.say("export", str(error))
            return str(error)
        return None


class Persist:
    """Writes what must not be lost. While the disk is full it frees the GPUs and waits for space."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.freed_gpus = False
        """The server was stopped for the wait: whoever needs it must start it again."""

    async def __call__(self, write: Callable[[], T]) -> T:
        """Raises DiskFull when the user stops, or the budget ends, before there is space."""
        bench = self._bench
        while True:
            try:
                return write()
            except DiskFull as error:
                if bench.interrupts.stop_asked or bench.budget.usable_s <= 0:
                    raise
                bench.scribe.on_stage(f"paused: {error}")
                await bench.testbed.stop()
                self.freed_gpus = True
                await bench.interrupts.sleep(bench.clock, PAUSE_S)


class TrialRun:
    """Runs one open trial to its end, to the user's stop or to the budget's end."""

    def __init__(self, bench: Bench, trial: OpenTrial) -> None:
        self.bench = bench
        self.trial = trial
        self.levels = list(trial.levels)
        self.persist = Persist(bench)
        self.met: Failure | None = None
        """What ended the last start."""

    async def run(self) -> Failure | None:
        """The failure that ended the trial, if one did. An interrupted trial stays open in the journal."""
        attempts = self.trial.attempts
        while True:
            self.persist.freed_gpus = False
            failure = await self._serve()
            if self.persist.freed_gpus and failure is None and not self._left_open:
                continue
            if failure is None or failure.teaches or not failure.retry or attempts >= RETRIES:
                break
            if self._left_open:
                return failure
            attempts += 1
            self.bench.scribe.say("retry", f"started again ({attempts} of {RETRIES}): {failure.sentence}")
        if not self._left_open:
            await self._end(failure or self._why_unmeasured())
        return failure

    def _why_unmeasured(self) -> Failure | None:
        """Where time ran out while it was started again, the reason is what it was started again for."""
        return None if self.levels or self.trial.proposal.purpose is Purpose.PROBE else self.met

    @property
    def _left_open(self) -> bool:
        """The user stopped or paused: whoever resumes goes on with this trial."""
        return self.bench.interrupts.stop_asked or self.bench.interrupts.pause_asked

    async def _end(self, failure: Failure | None) -> None:
        state = _state(self.levels, failure, self.trial.proposal.purpose)
        trial_id, bench = self.trial.trial_id, self.bench
        await self.persist(lambda: bench.journal.end_trial(trial_id, state, failure))

    async def _serve(self) -> Failure | None:
        """One start and its levels. The server is stopped whatever happens."""
        bench, trial = self.bench, self.trial
        bench.scribe.at(TrialNow(trial.trial_id, trial.proposal, len(self.levels)))
        start_id = await self.persist(lambda: bench.journal.begin_start(trial.trial_id))
        try:
            failure = await self._start_and_climb(start_id)
        except OutOfTime:
            bench.scribe.say("stop", "the budget is used up; what ran was ended")
            failure = None
        finally:
            bench.scribe.on_stage("stopping")
            stop_s = await bench.testbed.stop()
            await self.persist(lambda: bench.journal.end_stop(start_id, stop_s))
        return failure

    async def _start_and_climb(self, start_id: int) -> Failure | None:
        bench = self.bench
        started = await self._start()
        await self.persist(
            lambda: bench.journal.end_start(start_id, started.timeline, started.clean_slate_s, started.start_s)
        )
        failure = started.failure
        for note in started.notes:
            bench.scribe.say("start", note)
        if failure is None:
            failure = await self._climb(start_id, started.timeline)
        if failure is not None:
            bench.scribe.say("failure", failure.sentence)
            told = self.met = failure
            await self.persist(lambda: bench.journal.fail_start(start_id, told))
        return failure

    async def _start(self) -> Started:
        """Start the server; wait while somebody else's process holds what it needs.

        Raises CleanSlateError when that outlasts the user's patience or the budget.
        """
        bench, proposal = self.bench, self.trial.proposal
        in_the_way: CleanSlateError | None = None
        while True:
            try:
                starting = bench.testbed.start(proposal.setting, dummy_weights=proposal.purpose is Purpose.PROBE)
                return await bench.interrupts.guard(starting, bench.clock, bench.budget.usable_s, at_once=True)
            except OutOfTime:
                if in_the_way is not None:
                    raise in_the_way from None
                raise
            except CleanSlateError as error:
                in_the_way = error
                # Not the configuration's fault, and not ours to end: the budget runs, the trial waits.
                bench.scribe.on_stage(f"paused: {error}")
                bench.scribe.say("pause", str(error))
                if bench.interrupts.stop_asked or bench.budget.usable_s <= PAUSE_S:
                    raise
                await bench.interrupts.sleep(bench.clock, PAUSE_S)

    async def _climb(self, start_id: int, timeline: Timeline | None) -> Failure | None:
        while not self._left_open and not self.persist.freed_gpus:
            following = await self._next_level(timeline)
            if following is None or not self.bench.budget.level_fits:
                return None
            failure = await self._level(start_id, *following)
            if failure is not None:
                return failure
        return None

    async def _next_level(self, timeline: Timeline | None) -> tuple[int, float] | None:
        """The next concurrency, and the seconds that it needs; None when this start has given what it can."""
        bench = self.bench
        history = [trial for trial in bench.journal.trials() if trial.trial_id != self.trial.trial_id]
        return await asyncio.to_thread(_next_level, bench, history, self.trial.proposal, tuple(self.levels), timeline)

    async def _level(self, start_id: int, concurrency: int, needed_s: float) -> Failure | None:
        bench, trial = self.bench, self.trial
        bench.scribe.at(TrialNow(trial.trial_id, trial.proposal, len(self.levels)), concurrency)
        limits = self._limits(needed_s)
        level_id = await self.persist(lambda: bench.journal.begin_level(trial.trial_id, start_id, concurrency))
        if self.persist.freed_gpus:
            return None
        bench.scribe.on_stage("measuring", expected_s=limits.budget_s)
        outcome = await self._measured(concurrency, limits)
        bench.scribe.at(bench.scribe.trial)
        if isinstance(outcome, Failure):
            return outcome
        await self.persist(lambda: bench.journal.end_level(level_id, outcome))
        self.levels.append(outcome)
        bench.scribe.say("level", level_words(outcome))
        bench.publish_now()
        return None

    async def _measured(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        """The level, or why there is none: the server died, or it hangs and the measurement with it."""
        bench = self.bench
        measuring = bench.testbed.measure(concurrency, limits)
        # The measurement ends itself in time; only a server that answers nothing at all can keep it longer.
        limit_s = min(bench.budget.remaining_s, 1.5 * limits.budget_s + HANG_S)
        try:
            outcome = await bench.interrupts.guard(measuring, bench.clock, limit_s)
        except OutOfTime:
            if bench.budget.usable_s <= 0:
                raise
            return _hang(concurrency)
        if isinstance(outcome, Failure) or outcome.end is not LevelEnd.STALLED:
            return outcome
        return _refused(concurrency, outcome) or _hang(concurrency)

    def _limits(self, needed_s: float) -> LevelLimits:
        budget = self.bench.budget
        highest = max(self.levels, key=lambda level: level.concurrency, default=None)
        limits = LevelLimits(budget.level_s(needed_s), incumbent_rate=self._rate_to_beat(), lower_level=highest)
        proposal = self.trial.proposal
        if proposal.purpose is Purpose.PROBE:
            return replace(limits, budget_s=min(limits.budget_s, PROBE_LEVEL_S))
        if proposal.purpose is Purpose.CONFIRM and budget.usable_s < 2 * proposal.expected_s:
            # No other start fits after this one: what is left makes the winner's interval narrower.
            return replace(limits, budget_s=budget.usable_s, target_share=LAST_TARGET_SHARE)
        return limits

    def _rate_to_beat(self) -> float | None:
        """The best rate to be relied on. A confirmation is measured to the end, whatever it shows."""
        if self.trial.proposal.purpose is Purpose.CONFIRM:
            return None
        rates = [
            level.completion_rate.value
            for trial in self.bench.journal.trials()
            if trial.proposal.purpose is not Purpose.PROBE
            for level in trial.levels
            if level.steady
        ]
        return max(rates, default=None)


def _next_level(
    bench: Bench,
    history: Sequence[TrialResult],
    proposal: Proposal,
    levels: tuple[LevelResult, ...],
    timeline: Timeline | None,
) -> tuple[int, float] | None:
    left_s = bench.budget.usable_s
    concurrency = bench.searcher.next_concurrency(history, proposal, levels, left_s, timeline)
    if concurrency is None:
        return None
    return concurrency, bench.searcher.needed_s(history, proposal, levels, concurrency, timeline, left_s)


def _refused(concurrency: int, level: LevelResult) -> Failure | None:
    """Every start of it would answer the same. None where the server did not ask for a key."""
    status = next((kind.removeprefix("http_") for kind in UNAUTHORIZED if kind in level.errors_by_kind), None)
    if status is None or level.finished_requests:
        return None
    return Failure(
        kind=Kind.UNAUTHORIZED,
        stage=Stage.UNDER_LOAD,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.UNKNOWN,
        retry=False,
        sentence=f"at concurrency {concurrency} the server answered every request with {status}: it asks for an API"
        " key; name the environment variable that holds it under `api_key_env:`",
    )


def _hang(concurrency: int) -> Failure:
    """The server answers, but nothing finishes: no rate of it can be trusted, and a new start may cure it."""
    return Failure(
        kind=Kind.HANG_RUNTIME,
        stage=Stage.UNDER_LOAD,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence=f"at concurrency {concurrency} nothing was finished any more, though the server's process lived",
    )


def _state(levels: list[LevelResult], failure: Failure | None, purpose: Purpose) -> TrialState:
    if levels or (failure is None and purpose is Purpose.PROBE):
        return TrialState.MEASURED
    if failure is None:
        return TrialState.INTERRUPTED
    return TrialState.FAILED if failure.teaches else TrialState.INFRASTRUCTURE
