"""One study run by one method on one world, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.contest.cases import BUDGET_S, Case
from launcher.failure import Failure
from launcher.timeline import Timeline
from tuner.search.probes import LEVEL_S
from tuner.testbed import Started
from tuner.trial import LevelResult, Minutes, Proposal, Purpose, Setting, TrialResult, TrialState

GOAL_SHARE = 0.97
CHECKPOINTS = (2, 4, 8, 12)


class Method(Protocol):
    """A way to search. It sees results, never the world."""

    name: str

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None: ...

    def next_concurrency(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,
        timeline: Timeline | None,
    ) -> int | None: ...

    def answer(self, history: Sequence[TrialResult]) -> tuple[Setting, int] | None:
        """What it would hand over now: a setting and a concurrency."""
        ...


class World(Protocol):
    """One box with one truth, and one server at a time: what a daemon would see, and what the referee knows."""

    @property
    def case(self) -> Case: ...

    def start(self, setting: Setting, *, dummy_weights: bool = False) -> Started: ...

    def measure(self, concurrency: int, limit_s: float | None = None) -> LevelResult | Failure:
        """One level, or the failure that it caused. Cut at `limit_s`, it knows its rate less well."""
        ...

    def stop(self) -> float:
        """Seconds until the server is gone."""
        ...

    def true_rate(self, setting: Setting, concurrency: int) -> float:
        """The noise-free rate of a setting that lives; 0 for one that does not."""
        ...

    def oracle(self) -> float:
        """The best true rate that may be asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """After one relaunch: study seconds spent, and the true share of the oracle that would be handed over."""

    spent_s: float
    share: float
    crashed: bool


@dataclass(frozen=True, slots=True)
class Score:
    """One study. None is "never"."""

    method: str
    case: str
    seed: int
    steps: tuple[Step, ...]

    @property
    def relaunches_to_goal(self) -> int | None:
        """The first relaunch after which the answer was good; a later loss of it counts as not there yet."""
        good = [step.share >= GOAL_SHARE for step in self.steps]
        return next((at + 1 for at in range(len(good)) if all(good[at:])), None) if any(good) else None

    @property
    def minutes_to_goal(self) -> float | None:
        reached = self.relaunches_to_goal
        return None if reached is None else self.steps[reached - 1].spent_s / 60

    @property
    def final_share(self) -> float:
        return self.steps[-1].share if self.steps else 0.0

    @property
    def crashes(self) -> int:
        return sum(step.crashed for step in self.steps)

    def share_after(self, relaunches: int) -> float:
        """The share after that many relaunches, or after the last one of a shorter study."""
        return self.steps[min(relaunches, len(self.steps)) - 1].share if self.steps else 0.0


def run_study(method: Method, world: World, seed: int, oracle: float) -> Score:
    """Let `method` use up its budget on `world`; shares are of `oracle`."""
    history: list[TrialResult] = []
    steps: list[Step] = []
    spent_s = 0.0
    while spent_s < BUDGET_S and (proposal := method.propose(history, BUDGET_S - spent_s)) is not None:
        trial = _run_trial(method, world, history, proposal, BUDGET_S - spent_s)
        history.append(trial)
        took = trial.minutes
        spent_s += took.total_s
        answer = method.answer(history)
        share = world.true_rate(*answer) / oracle if answer is not None else 0.0
        steps.append(Step(min(spent_s, BUDGET_S), share, trial.failure is not None))
    return Score(method.name, world.case.name, seed, tuple(steps))


def _run_trial(
    method: Method, world: World, history: list[TrialResult], proposal: Proposal, left_s: float
) -> TrialResult:
    """One start and its levels. A level that would end after the budget does not count."""
    probe = proposal.purpose is Purpose.PROBE
    started = world.start(proposal.setting, dummy_weights=probe)
    left_s -= started.clean_slate_s + started.start_s
    levels: list[LevelResult] = []
    failure, measure_s = started.failure, 0.0
    while failure is None and left_s > measure_s:
        concurrency = method.next_concurrency(history, proposal, levels, left_s - measure_s, started.timeline)
        if concurrency is None:
            break
        result = world.measure(concurrency, LEVEL_S if probe else None)
        if isinstance(result, Failure):
            failure, measure_s = result, measure_s + CRASH_S
            break
        measure_s += result.spent_s
        if measure_s <= left_s:
            levels.append(result)
    return TrialResult(
        trial_id=len(history),
        proposal=proposal,
        state=TrialState.MEASURED if levels else TrialState.FAILED,
        timeline=started.timeline,
        levels=tuple(levels),
        failure=failure,
        minutes=Minutes(started.clean_slate_s, started.start_s, measure_s, world.stop()),
    )


CRASH_S = 45.0
"""How long a level runs before the first full prefill chunk kills the server, and the death is noticed."""
