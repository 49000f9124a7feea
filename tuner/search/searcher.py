"""The searcher: a pure function from a history to the next start, the next level, and the verdict.

Same space, prior, options, seed and history give the same answers: a killed daemon proposes what it would have
proposed. Between calls only the last answer's knowledge is kept, for the next question about the same history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import ndtr

from launcher.timeline import Timeline
from tuner.memory import MemoryPrior
from tuner.search.candidates import LEVELS_EXPECTED, Candidate, candidates, incumbent_log_rate
from tuner.search.confirm import next_confirmation, reserve_s
from tuner.search.explain import gain_words, memory_words, name_of
from tuner.search.knowledge import Knowledge, key_of
from tuner.search.levels import first_level, next_level, planned_levels
from tuner.search.options import SearchOptions
from tuner.search.probes import WORTH_S, confirmed
from tuner.search.residence import longest_level_s, needed_s
from tuner.search.standings import TIE_SHARE, Standing, standings
from tuner.search.starting import roomiest_safe_setting, starting_setting
from tuner.search.verdict import Verdict, export_of, verdict_of
from tuner.space import Space
from tuner.trial import LevelResult, Proposal, Purpose, Setting, TrialResult, TrialState

PROBE_BELOW_CHANCE = 0.5
"""A candidate less likely than this to win is first looked at with dummy weights, where that is cheap."""


class Searcher:
    """Decides what to start and what to measure. `seed` breaks nothing but exact ties, and is kept for the record."""

    def __init__(
        self,
        space: Space,
        *,
        prior: MemoryPrior | None = None,
        options: SearchOptions | None = None,
        seed: int = 0,
    ) -> None:
        self.space = space
        self.prior = prior or MemoryPrior()
        self.options = options or SearchOptions()
        self.seed = seed
        self._last: Knowledge | None = None

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None:
        """The next start, or None when nothing more is worth its minutes or fits into `remaining_s` study seconds."""
        knowledge = self._knowledge(history)
        if not knowledge.real_points:
            first = self._before_the_first_rate(knowledge)
            return first if first is not None and self._least_s(knowledge, first) <= remaining_s else None
        ranked = candidates(knowledge)
        best = ranked[0] if ranked and ranked[0].net_gain >= self.options.until_gain_below else None
        confirmation = next_confirmation(knowledge)
        if best is not None:
            exploration = self._exploration(knowledge, best)
            # A setting that was measured alone is no winner: another one says more than the same again.
            alone = len(standings(knowledge)) == 1
            kept_s = reserve_s(knowledge) if confirmation is not None and not alone else 0.0
            if exploration.expected_s + kept_s <= remaining_s:
                return exploration
        if confirmation is None:
            return None
        again = self._confirmation(knowledge, confirmation)
        return again if again.expected_s <= remaining_s else None

    def next_concurrency(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,
        timeline: Timeline | None = None,
    ) -> int | None:
        """The next level of the running server, or None when it has given what it can.

        `history` is without the running trial; `timeline` is its start-up where the caller has it.
        """
        if proposal.purpose is Purpose.CONFIRM or self._is_stress_only(proposal):
            return proposal.concurrencies[-1] if not done else None
        knowledge = self._knowledge([*history, _running(history, proposal, done, timeline)])
        if not done:
            return first_level(knowledge, proposal.setting)
        if remaining_s < knowledge.minutes.level_s + knowledge.minutes.stop_and_clean_s:
            return None
        return next_level(knowledge, proposal.setting, done, remaining_s)

    def needed_s(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        concurrency: int,
        timeline: Timeline | None = None,
        remaining_s: float = math.inf,
    ) -> float:
        """The study seconds without which the running server's level would say nothing; 0 while nobody can tell."""
        knowledge = self._knowledge([*history, _running(history, proposal, done, timeline)])
        return min(needed_s(knowledge, proposal.setting, concurrency), longest_level_s(knowledge, remaining_s))

    def verdict(self, history: Sequence[TrialResult]) -> Verdict:
        """Incumbent, runner-up, whether the noise can tell them apart, and the explanation."""
        return verdict_of(self._knowledge(history))

    def export_setting(self, history: Sequence[TrialResult]) -> Setting:
        """The winner's setting with its safety margin. Raises LookupError while nothing was measured."""
        knowledge = self._knowledge(history)
        ranked = standings(knowledge)
        if not ranked:
            raise LookupError("no setting was measured, so there is nothing to export")
        return export_of(knowledge, ranked[0])

    def knowledge(self, history: Sequence[TrialResult]) -> Knowledge:
        """What the history teaches: the memory model, the rate model and the points behind them."""
        return self._knowledge(history)

    def _least_s(self, knowledge: Knowledge, proposal: Proposal) -> float:
        """What a trial takes that measures one level and stops: a short budget still gets its first rate."""
        dummy = proposal.purpose is Purpose.PROBE
        return knowledge.minutes.trial(proposal.setting, 1.0, dummy=dummy)

    def _is_stress_only(self, proposal: Proposal) -> bool:
        """A probe whose rates mean nothing (a mixture of experts) shows the transient under the fullest load."""
        dense = self.prior.geometry is None or self.prior.geometry.experts == 0
        return proposal.purpose is Purpose.PROBE and not dense

    def _knowledge(self, history: Sequence[TrialResult]) -> Knowledge:
        last = self._last
        if last is not None and last.history == tuple(history):
            return last
        self._last = Knowledge(self.space, self.prior, self.options, history)
        return self._last

    def _before_the_first_rate(self, knowledge: Knowledge) -> Proposal | None:
        """Probe first where weights take minutes; then a start that is safe; with memory known, a roomy one."""
        if knowledge.rate is not None:
            found = candidates(knowledge)
            return self._exploration(knowledge, _fastest(found), probing=False) if found else None
        if knowledge.memory.known and any(trial.levels for trial in knowledge.evidence):
            setting = roomiest_safe_setting(knowledge) or starting_setting(knowledge)
        else:
            setting = starting_setting(knowledge)
        if setting is None:
            return None
        tried = any(trial.proposal.purpose is Purpose.PROBE for trial in knowledge.history)
        purpose = Purpose.PROBE if self._probes_pay(knowledge) and not tried else Purpose.FIRST
        why = "dummy weights, for the memory alone: " if purpose is Purpose.PROBE else "a safe first point: "
        return self._proposal(knowledge, setting, purpose, why + memory_words(knowledge.outlook(setting)))

    def _exploration(self, knowledge: Knowledge, candidate: Candidate, *, probing: bool | None = None) -> Proposal:
        best = incumbent_log_rate(knowledge)
        chance = float(ndtr((candidate.log_rate - best) / max(candidate.log_sd, 1e-9)))
        may_probe = self._may_probe(knowledge, candidate.setting) if probing is None else probing
        purpose = Purpose.PROBE if may_probe and chance < PROBE_BELOW_CHANCE else Purpose.EXPLORE
        reason = f"{memory_words(candidate.outlook)}; {gain_words(candidate, best)}"
        return self._proposal(knowledge, candidate.setting, purpose, reason, candidate)

    def _may_probe(self, knowledge: Knowledge, setting: Setting) -> bool:
        """Probes rank candidates only for dense models, after a real start agreed with one, and once per setting."""
        dense = self.prior.geometry is not None and self.prior.geometry.experts == 0
        probed = {key_of(trial.proposal.setting) for trial in knowledge.history}
        agreed = confirmed(self.prior, knowledge.history)
        return dense and agreed and key_of(setting) not in probed and self._probes_pay(knowledge)

    def _probes_pay(self, knowledge: Knowledge) -> bool:
        allowed = self.options.probes and not self.options.black_box and knowledge.probes_trusted
        return allowed and self.prior.geometry is not None and knowledge.minutes.probe_saves_s >= WORTH_S

    def _confirmation(self, knowledge: Knowledge, standing: Standing) -> Proposal:
        reason = f"measured again to settle the winner: {standing.measured.value:,.0f} tokens/s so far"
        proposal = self._proposal(knowledge, standing.setting, Purpose.CONFIRM, reason)
        expected_s = knowledge.minutes.trial(standing.setting, 1.0)
        least_s = min(needed_s(knowledge, standing.setting, standing.concurrency), longest_level_s(knowledge))
        expected_s += max(0.0, least_s - knowledge.minutes.level_s)
        return replace(proposal, concurrencies=(standing.concurrency,), expected_s=expected_s)

    def _proposal(
        self,
        knowledge: Knowledge,
        setting: Setting,
        purpose: Purpose,
        reason: str,
        candidate: Candidate | None = None,
    ) -> Proposal:
        outlook = knowledge.outlook(setting)
        levels = planned_levels(knowledge, setting)
        dummy = purpose is Purpose.PROBE
        return Proposal(
            setting=setting,
            concurrencies=levels,
            purpose=purpose,
            reason=f"{name_of(setting)}: {reason}",
            expected_s=knowledge.minutes.trial(setting, max(LEVELS_EXPECTED, len(levels)), dummy=dummy),
            predicted_tokens=outlook.tokens,
            predicted_headroom_gib=outlook.headroom_gib,
            survival_probability=outlook.survival,
            expected_rate=_rate(candidate),
            expected_rate_sd=_rate_sd(candidate),
        )


def _running(
    history: Sequence[TrialResult], proposal: Proposal, done: Sequence[LevelResult], timeline: Timeline | None
) -> TrialResult:
    """The trial whose server runs, as far as it has come."""
    return TrialResult(
        trial_id=len(history) + 1_000_000,
        proposal=proposal,
        state=TrialState.RUNNING,
        timeline=timeline,
        levels=tuple(done),
    )


def _fastest(found: Sequence[Candidate]) -> Candidate:
    """The highest expected rate; what is equal to it goes to more headroom."""
    top = max(one.log_rate for one in found)
    ties = [one for one in found if top - one.log_rate <= TIE_SHARE]
    return max(ties, key=lambda one: (one.outlook.headroom_gib or 0.0, one.log_rate))


def _rate(candidate: Candidate | None) -> float | None:
    return None if candidate is None else math.exp(candidate.log_rate)


def _rate_sd(candidate: Candidate | None) -> float | None:
    return None if candidate is None else math.exp(candidate.log_rate) * candidate.log_sd
