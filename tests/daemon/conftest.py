"""A scripted box and a scripted search in virtual time: what the daemon is given in these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import ManualClock
from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.timeline import MemorySeen, Timeline
from tuner.budget import Budget
from tuner.daemon.interrupts import Interrupts
from tuner.daemon.loop import Daemon, Limits
from tuner.daemon.scribe import Scribe
from tuner.daemon.trial import Bench
from tuner.journal import Journal, read_study
from tuner.journal.view import Decision
from tuner.progress import PlainLines
from tuner.testbed import LevelLimits, Started
from tuner.trial import Interval, LevelEnd, LevelResult, Proposal, Purpose, Setting, TrialResult

OOM = Failure(
    kind=Kind.GPU_OOM_RUNTIME,
    stage=Stage.FIRST_PREFILL,
    mem_fraction_direction=Direction.DOWN,
    culprit=Culprit.CONFIGURATION,
    retry=False,
    sentence="GPU 3 ran out of memory in the first large prefill",
    evidence=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB",),
)
KILLED = replace(
    OOM,
    kind=Kind.KILLED,
    culprit=Culprit.INFRASTRUCTURE,
    mem_fraction_direction=Direction.NONE,
    retry=True,
    sentence="somebody killed the server",
)


def setting(fraction: float) -> Setting:
    return Setting(fraction, "bfloat16")


def level(concurrency: int, rate: float, spent_s: float = 200.0) -> LevelResult:
    return LevelResult(
        concurrency=concurrency,
        end=LevelEnd.NARROW,
        completion_rate=Interval(rate, 0.97 * rate, 1.03 * rate),
        measured_s=0.6 * spent_s,
        spent_s=spent_s,
        responses_per_s=rate / 1_000,
        finished_requests=100,
        headroom_min_gib={0: 4.5, 1: 4.25},
    )


Scripted = LevelResult | Failure | Exception


@dataclass
class FakeTestbed:
    """Does what it was told: `starts` by attempt, `levels` by concurrency. Time passes on its clock."""

    clock: ManualClock
    starts: list[Failure | Exception | None] = field(default_factory=list)
    levels: dict[int, Scripted | list[Scripted]] = field(default_factory=dict)
    start_s: float = 300.0
    level_s: float = 200.0
    stop_s: float = 12.0
    running: bool = False
    log: list[str] = field(default_factory=list)
    on_level: Callable[[int], None] | None = None

    async def start(self, setting: Setting, *, dummy_weights: bool = False, keep: bool = False) -> Started:
        how = (" dummy" if dummy_weights else "") + (" to keep" if keep else "")
        self.log.append(f"start {setting.mem_fraction_static:g}{how}")
        await self.clock.sleep(self.start_s)
        told = self.starts.pop(0) if self.starts else None
        if isinstance(told, Exception):
            raise told
        self.running = True
        ready_s = None if told else self.start_s
        memory = MemorySeen(before_weights_gib=94.07, weights_gib=72.37, capacity_tokens=159_195)
        return Started(Timeline(memory=memory, ready_s=ready_s), told, clean_slate_s=5.0, start_s=self.start_s)

    async def measure(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        assert self.running
        self.log.append(f"level {concurrency}")
        took_s = min(self.level_s, limits.budget_s)
        if self.on_level is not None:
            self.on_level(concurrency)
            await asyncio.sleep(0.01)
        await self.clock.sleep(took_s)
        told = self.levels.get(concurrency, level(concurrency, 10.0 * concurrency, took_s))
        if isinstance(told, list):
            told = told.pop(0) if told else level(concurrency, 10.0 * concurrency, took_s)
        if isinstance(told, Exception):
            raise told
        return told

    async def stop(self) -> float:
        if not self.running:
            return 0.0
        self.log.append("stop")
        self.running = False
        await self.clock.sleep(self.stop_s)
        return self.stop_s


@dataclass
class ScriptedSearcher:
    """Proposes a list in order: pure in the history's length, as the real one is pure in the history."""

    fractions: Sequence[float] = (0.85, 0.88, 0.90)
    concurrencies: tuple[int, ...] = (16, 32)
    expected_s: float = 800.0
    purposes: dict[int, Purpose] = field(default_factory=dict)

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None:
        at = len(history)
        if at >= len(self.fractions) or self.expected_s > remaining_s:
            return None
        purpose = self.purposes.get(at, Purpose.EXPLORE)
        chosen = setting(self.fractions[at])
        return Proposal(chosen, self.concurrencies, purpose, f"the next in the list: {at}", self.expected_s)

    def next_concurrency(
        self,
        history: Sequence[TrialResult],  # noqa: ARG002 - the real one's signature
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,  # noqa: ARG002
        timeline: Timeline | None = None,  # noqa: ARG002
    ) -> int | None:
        left = proposal.concurrencies[len(done) :]
        return left[0] if left else None

    def needed_s(self, *_: object) -> float:
        return 0.0


@dataclass
class Study:
    """One study directory with everything around it; `daemon()` as often as the test kills it."""

    directory: Path
    clock: ManualClock = field(default_factory=ManualClock)
    budget_s: float = 7_200.0
    searcher: ScriptedSearcher = field(default_factory=ScriptedSearcher)
    limits: Limits = field(default_factory=Limits)
    lines: list[str] = field(default_factory=list)
    published: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.testbed = FakeTestbed(self.clock)
        self.interrupts: Any = None
        asked = {"budget": self.budget_s, "engine": "simulated"}
        self.journal = Journal.create(self.directory, {"study": asked, "model_path": "m", "token": "t"})

    def journal_decisions(self) -> tuple[Decision, ...]:
        return read_study(self.directory).decisions

    def daemon(self) -> Daemon:
        """Must be called inside a running event loop."""
        self.interrupts = Interrupts()
        spent_s = self.journal.spent_s()
        self.budget = Budget(self.budget_s, spent_s, self.clock, self.clock.now_s())
        scribe = Scribe(self.journal, PlainLines(self.lines.append), self.budget)
        bench = Bench(
            self.journal,
            self.searcher,  # type: ignore[arg-type]
            self.testbed,
            self.budget,
            self.clock,
            scribe,
            self.interrupts,
            lambda: self.published.append(sum(len(trial.levels) for trial in self.journal.trials())),
        )
        return Daemon(bench, self.limits)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    yield made
    made.journal.close()


@pytest.fixture
def oom() -> Failure:
    return OOM


@pytest.fixture
def killed() -> Failure:
    return KILLED


@pytest.fixture
def some_level() -> LevelResult:
    return level(16, 600.0)


@pytest.fixture
def record() -> Any:
    from launcher.server import ServerRecord

    return ServerRecord(pid=4_711, start_time=12.5, pgid=4_711, token="t", port=31_000)
