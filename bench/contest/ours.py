"""kvtune's own search as a contestant: told what a daemon would tell it, and nothing of the referee's truth."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contest.cases import Case
from launcher.timeline import Timeline
from tuner.search import Searcher, SearchOptions, shape_of
from tuner.trial import LevelResult, Proposal, Setting, TrialResult
from tuner.workload import load_workload


class Kvtune:
    """The searcher behind the contest's interface. `setting` of the final answer keeps the exported margin."""

    def __init__(
        self, case: Case, seed: int, *, black_box: bool = False, probes: bool = True, name: str = "kvtune"
    ) -> None:
        self.name = name
        shape = shape_of(load_workload(case.workload, seed=seed).sample(512))
        options = SearchOptions(
            black_box=black_box,
            probes=probes,
            tokens_in_flight=shape.tokens_in_flight,
            reused_prefix_share=shape.reused_prefix_share,
        )
        self._searcher = Searcher(case.space, prior=case.prior, options=options, seed=seed)

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None:
        return self._searcher.propose(history, remaining_s)

    def next_concurrency(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,
        timeline: Timeline | None,
    ) -> int | None:
        return self._searcher.next_concurrency(history, proposal, done, remaining_s, timeline)

    def answer(self, history: Sequence[TrialResult]) -> tuple[Setting, int] | None:
        """What would be exported now, margin and all."""
        incumbent = self._searcher.verdict(history).incumbent
        return None if incumbent is None else (self._searcher.export_setting(history), incumbent.concurrency)
