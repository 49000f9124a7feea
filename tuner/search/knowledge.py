"""Everything that a history teaches, computed at once: memory, minutes, rates, and what has been tried."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.memory import MemoryModel, MemoryPrior, learn_memory
from tuner.memory.learning import teaches
from tuner.search.encoding import Asked, Encoding
from tuner.search.feasibility import BareFeasibility, Outlook, PhysicalFeasibility
from tuner.search.minutes import MinutesModel, learn_minutes
from tuner.search.options import SearchOptions
from tuner.search.points import Point, points_of
from tuner.search.probes import trusted
from tuner.search.surrogate import RateModel
from tuner.search.throughput import Effect, effects_of, fit_throughput
from tuner.space import Space
from tuner.trial import Purpose, Setting, TrialResult

Array = NDArray[np.float64]
Key = tuple[float | None, str, int, tuple[tuple[str, str], ...]]

NO_REUSE_GAIN = (-0.01, 0.02)
UNKNOWN_REUSE_GAIN = (0.0, 0.06)
REUSED_SHARE = 0.05
REUSE_GAIN = (0.02, 0.10)
"""Prior log gain of HiCache: only a cost without shared prefixes; the largest published gain is about 9%."""


def key_of(setting: Setting) -> Key:
    """A setting as something that can be compared and looked up."""
    flags = tuple(sorted((name, str(value)) for name, value in setting.flags.items()))
    return (setting.mem_fraction_static, setting.kv_cache_dtype, setting.hicache_size_gb, flags)


def family_of(setting: Setting) -> Key:
    """What is left of a setting without its fraction."""
    return key_of(replace(setting, mem_fraction_static=None))


class Knowledge:
    """A pure function of space, prior, options and history, with its parts computed on first use."""

    def __init__(
        self, space: Space, prior: MemoryPrior, options: SearchOptions, history: Sequence[TrialResult]
    ) -> None:
        self.space = space
        self.prior = prior
        self.options = options
        self.history = tuple(history)
        self._outlooks: dict[Key, Outlook] = {}

    @cached_property
    def probes_trusted(self) -> bool:
        """False once a real start showed another capacity or headroom than the probes had."""
        return trusted(self.prior, self.history)

    @cached_property
    def evidence(self) -> tuple[TrialResult, ...]:
        """Earlier and present trials that teach; probes only while they are trusted."""
        every = (*self.options.earlier, *self.history)
        return tuple(trial for trial in every if self.probes_trusted or trial.proposal.purpose is not Purpose.PROBE)

    @cached_property
    def memory(self) -> MemoryModel:
        return learn_memory(self.prior, self.evidence)

    @cached_property
    def minutes(self) -> MinutesModel:
        return learn_minutes((*self.options.earlier, *self.history), self.options, self.prior)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every usable level. A probe's rate counts for dense models alone: random weights route unlike real ones."""
        dense = self.prior.geometry is None or self.prior.geometry.experts == 0
        earlier = points_of(self.options.earlier, earlier=True)
        own = points_of(self.history)
        return tuple(point for point in (*earlier, *own) if not point.probe or (dense and self.probes_trusted))

    @cached_property
    def tokens_in_flight(self) -> float | None:
        """KV tokens that a running request holds: as the fullest level of any start showed it, else as told."""
        seen = [
            (level.token_usage_share or 0.0, level.tokens_in_flight_each)
            for trial in self.evidence
            for level in trial.levels
            if level.tokens_in_flight_each
        ]
        return max(seen)[1] if seen else self.options.tokens_in_flight

    @cached_property
    def real_points(self) -> tuple[Point, ...]:
        """The points that can be the answer: measured in this study, with real weights."""
        return tuple(point for point in self.points if not point.probe and not point.earlier)

    @cached_property
    def rate(self) -> RateModel | None:
        """None until a level was measured."""
        if not self.points:
            return None
        tokens = [self.tokens(point.setting) for point in self.points]
        graph_batch = self.memory.largest_graph_batch
        throughput = None
        if not self.options.black_box:
            throughput = fit_throughput(
                self.points,
                tokens,
                self.effects,
                graph_batch=graph_batch,
                tokens_in_flight=self.tokens_in_flight,
            )
        return RateModel(self._encoding, self.points, tokens, throughput, self.effects, graph_batch)

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        reuse = self._reuses_prefixes
        gain = {True: REUSE_GAIN, False: NO_REUSE_GAIN, None: UNKNOWN_REUSE_GAIN}[reuse]
        return effects_of(self.space, gain, reuse=reuse is True)

    def outlook(self, setting: Setting) -> Outlook:
        key = key_of(setting)
        if key not in self._outlooks:
            self._outlooks[key] = self._feasibility.outlook(setting)
        return self._outlooks[key]

    def tokens(self, setting: Setting) -> float:
        """Capacity of all DP ranks: as a start of exactly this setting showed it, as its levels imply it, or as
        predicted."""
        if self.options.black_box:
            return 1.0
        seen = self._seen_tokens.get(key_of(setting))
        return seen or max(1.0, (self.outlook(setting).tokens or 1.0) * self.prior.dp_size)

    def rates(self, asked: Asked) -> tuple[Array, Array]:
        """Mean and standard deviation of the log objective; call only when `rate` is not None."""
        assert self.rate is not None
        return self.rate.predict(asked, [self.tokens(setting) for setting, _ in asked])

    def ladder(self) -> tuple[int, ...]:
        """The space's rungs, and the last concurrency that still decodes with a graph: a cliff is worth a rung."""
        rungs = self.space.concurrency_ladder()
        low, high = self.space.concurrency
        edge = self.memory.largest_graph_batch
        if self.options.black_box or not low <= edge <= high:
            return rungs
        return tuple(sorted({*rungs, edge}))

    @cached_property
    def _feasibility(self) -> PhysicalFeasibility | BareFeasibility:
        if self.options.black_box:
            return BareFeasibility([trial for trial in self.evidence if teaches(trial)])
        return PhysicalFeasibility(self.memory)

    @cached_property
    def _encoding(self) -> Encoding:
        fractions = self.space.fraction_bounds
        held = [
            self.tokens(Setting(fraction, family.kv_cache_dtype, family.hicache_size_gb, family.flags))
            for family in self.space.families()
            for fraction in fractions
        ]
        held += [self.tokens(point.setting) for point in self.points]
        roomy = [tokens for tokens in held if tokens > 1.0] or [1.0]
        return Encoding(self.space, (min(roomy), 1.01 * max(roomy)), black_box=self.options.black_box)

    @cached_property
    def _seen_tokens(self) -> dict[Key, float]:
        seen: dict[Key, float] = {}
        for trial in self.evidence:
            held = trial.timeline.memory.capacity_tokens if trial.timeline is not None else None
            tokens = float(held) * self.prior.dp_size if held else _implied_tokens(trial)
            if tokens is not None:
                seen.setdefault(key_of(trial.proposal.setting), tokens)
        return seen

    @property
    def _reuses_prefixes(self) -> bool | None:
        """Whether prompts share prefixes: as the workload tells, else by the cache hits seen; None is not known."""
        share = self.options.reused_prefix_share
        if share is not None:
            return share > REUSED_SHARE
        hits = max((point.level.cache_hit_share or 0.0 for point in self.points), default=0.0)
        return True if hits > REUSED_SHARE else None


def _implied_tokens(trial: TrialResult) -> float | None:
    """running * tokens in flight / usage, where no log line told the capacity."""
    implied = []
    for level in trial.levels:
        usage = level.token_usage_share or 0.0
        if level.running_requests and level.tokens_in_flight_each and usage > 0.05:
            implied.append(level.running_requests * level.tokens_in_flight_each / usage)
    return statistics.median(implied) if implied else None
