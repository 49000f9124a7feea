"""From trials to the memory model: what each start and each failure says about B, W, b, overhead and transient."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from launcher.failure import Culprit, Direction, Failure, Stage
from launcher.timeline import MemorySeen
from tuner.memory.belief import Belief, GridBelief
from tuner.memory.host import HostEvidence
from tuner.memory.model import (
    OTHER_GROUP_SD_GIB,
    START_TRANSIENT_SHARE_SD,
    MemoryModel,
    OverheadGroup,
    default_running,
    prior_model,
)
from tuner.memory.prior import MemoryPrior
from tuner.trial import LevelResult, TrialResult

LOG_ROUNDING_SD_GIB = 0.004
"""SGLang prints GiB with two decimals."""
OVERHEAD_SD_GIB = 0.08
"""Spread of the overhead between starts of one kind (1.14-1.33 GiB over four H200 starts)."""
LOADED_EXCESS_GIB = 0.06
LOADED_EXCESS_SHARE = 0.06
IDLE_EXCESS_GIB = 0.3
IDLE_EXCESS_SHARE = 0.4
"""By how much the worst transient may exceed the worst one seen: little after a full house, much after light load."""

SURPRISE_CHANCE = 0.1
SURPRISE_EXCESS_GIB = 0.7
"""After a death that the sightings had called unlikely and that told no figures: how far the need may lie above."""

LOAD_STAGES = frozenset({Stage.WARM_UP, Stage.FIRST_PREFILL, Stage.UNDER_LOAD})
START_STAGES = frozenset({Stage.KV_POOL, Stage.GRAPH_CAPTURE})


def teaches(trial: TrialResult) -> bool:
    """False for what is not the configuration's doing: infrastructure, a server bug, an unknown end."""
    return trial.failure is None or trial.failure.teaches


def learn_memory(prior: MemoryPrior, history: Sequence[TrialResult]) -> MemoryModel:
    """The memory model after `history`. What a failed start showed before it failed counts as well."""
    trials = [trial for trial in history if trial.timeline is not None or trial.failure is not None]
    model = _with_request_table(_with_arithmetic(prior_model(prior), trials), trials)
    model = _with_overhead(model, [trial for trial in trials if teaches(trial)])
    model = replace(model, host_seen=_host_evidence(trials))
    return replace(model, transient_gib=_transient(model, [trial for trial in trials if teaches(trial)]))


def _seen(trial: TrialResult) -> MemorySeen:
    return trial.timeline.memory if trial.timeline is not None else MemorySeen()


def _with_arithmetic(model: MemoryModel, trials: Iterable[TrialResult]) -> MemoryModel:
    """B, W and b, from every start that printed them; W / B from "minimum viable" where a start got no further."""
    befores, weights, token_bytes = [], [], defaultdict(list)
    for trial in trials:
        seen = _seen(trial)
        if seen.before_weights_gib is not None and seen.weights_gib is not None:
            befores.append(seen.before_weights_gib)
            weights.append(seen.weights_gib)
        if seen.bytes_per_token is not None:
            token_bytes[trial.proposal.setting.kv_cache_dtype].append(seen.bytes_per_token)
    if befores:
        model = replace(model, before_gib=_read_off(befores), weights_gib=_read_off(weights), before_is_read=True)
    else:
        model = _with_minimum_fraction(model, trials)
    by_dtype = {dtype: statistics.fmean(values) for dtype, values in token_bytes.items()}
    return replace(model, bytes_by_dtype=by_dtype)


def _read_off(values: Sequence[float]) -> Belief:
    """The mean of what starts printed; they may differ a little between starts."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return Belief(statistics.fmean(values), max(LOG_ROUNDING_SD_GIB, spread))


def _with_minimum_fraction(model: MemoryModel, trials: Iterable[TrialResult]) -> MemoryModel:
    for trial in trials:
        minimum = trial.failure.numbers.minimum_mem_fraction if trial.failure is not None else None
        if minimum is not None:
            weights = Belief(minimum * model.before_gib.mean, minimum * model.before_gib.sd)
            model = replace(model, weights_gib=weights)
    return model


def _with_request_table(model: MemoryModel, trials: Iterable[TrialResult]) -> MemoryModel:
    """Context and running requests of the latest start-up line; a number that is not the default's is pinned."""
    for trial in trials:
        seen = _seen(trial)
        model = replace(model, graph_batch=seen.graph_max_batch or model.graph_batch)
        if seen.context_len and seen.max_running_requests and seen.capacity_tokens:
            default = default_running(seen.capacity_tokens, seen.context_len)
            pinned = None if seen.max_running_requests == default else seen.max_running_requests
            model = replace(model, context_len=seen.context_len, most_running=pinned)
    return model


def _with_overhead(model: MemoryModel, trials: Iterable[TrialResult]) -> MemoryModel:
    by_group: dict[OverheadGroup, list[float]] = defaultdict(list)
    for trial in trials:
        setting = trial.proposal.setting
        overhead = _overhead_gib(model, setting.kv_cache_dtype, _seen(trial))
        if overhead is not None:
            by_group[setting.kv_cache_dtype, setting.hicache_size_gb > 0].append(overhead)
    if not by_group:
        return _with_capture_failures(model, trials)
    beliefs = {group: Belief(statistics.fmean(seen), OVERHEAD_SD_GIB) for group, seen in by_group.items()}
    overall = Belief(statistics.fmean(b.mean for b in beliefs.values()), OTHER_GROUP_SD_GIB)
    learned = replace(model, overhead_gib=overall, overhead_by_group=beliefs, known=True)
    return _with_capture_failures(learned, trials)


def _overhead_gib(model: MemoryModel, dtype: str, seen: MemorySeen) -> float | None:
    """What weights, pool and request table leave of B, less the headroom."""
    if seen.kv_cache_gib is None or seen.headroom_gib is None or not model.before_is_read:
        return None
    return model.slack_gib(dtype, float(seen.capacity_tokens or 0), seen.kv_cache_gib) - seen.headroom_gib


def _with_capture_failures(model: MemoryModel, trials: Iterable[TrialResult]) -> MemoryModel:
    """An OOM before the start-up line: the overhead exceeds that start's slack."""
    for trial in trials:
        if _is_too_high(trial.failure, START_STAGES):
            setting = trial.proposal.setting
            tokens = model.predict(setting).tokens
            slack = model.slack_gib(setting.kv_cache_dtype, tokens, model.pool_gib(setting))
            group = (setting.kv_cache_dtype, setting.hicache_size_gb > 0)
            raised = model.overhead(setting).above(slack)
            model = replace(model, overhead_by_group={**model.overhead_by_group, group: raised})
            if not model.known:
                model = replace(model, overhead_gib=model.overhead_gib.above(slack))
    return model


def _is_too_high(failure: Failure | None, stages: frozenset[Stage]) -> bool:
    return (
        failure is not None
        and failure.culprit is Culprit.CONFIGURATION
        and failure.mem_fraction_direction is Direction.DOWN
        and failure.stage in stages
    )


def _host_evidence(trials: Iterable[TrialResult]) -> HostEvidence:
    survived, failed = [0], []
    for trial in trials:
        size_gb = trial.proposal.setting.hicache_size_gb
        if trial.failure is not None and trial.failure.culprit is Culprit.HOST_MEMORY:
            failed.append(size_gb)
        elif trial.timeline is not None and trial.timeline.ready_s is not None:
            survived.append(size_gb)
    return HostEvidence(float(max(survived)), float(min(failed)) if failed else None)


def _transient(model: MemoryModel, trials: Sequence[TrialResult]) -> GridBelief:
    """The worst step's need: prior, then the worst sighting, then every survived level, then every crash."""
    crashed = [trial for trial in trials if _is_too_high(trial.failure, LOAD_STAGES)]
    silent = [_headroom_gib(model, trial) for trial in crashed if not _tells_need(trial.failure)]
    belief = _with_worst_sighting(model.prior.transient_gib(), model, trials)
    if silent and belief.above_chance(max(silent)) < SURPRISE_CHANCE:
        # Nothing that was seen explains this death: memory goes where neither log nor driver shows it.
        belief = GridBelief.from_floor(max(silent), SURPRISE_EXCESS_GIB)
    for trial in trials:
        scale = model.transient_scale(trial.proposal.setting)
        if any(_is_full(level, trials) for level in trial.levels) and trial not in crashed:
            headroom = _headroom_gib(model, trial)
            belief = belief.below(headroom / scale, max(0.05, START_TRANSIENT_SHARE_SD * headroom))
    for trial in crashed:
        scale = model.transient_scale(trial.proposal.setting)
        belief = _with_crash(belief, trial.failure, _headroom_gib(model, trial), scale)
    return belief


def _tells_need(failure: Failure | None) -> bool:
    return failure is not None and None not in (failure.numbers.tried_gib, failure.numbers.gpu_free_gib)


def _headroom_gib(model: MemoryModel, trial: TrialResult) -> float:
    """As the start-up line printed it, or as the model has it for a start that did not come so far."""
    printed = _seen(trial).headroom_gib
    return model.predict(trial.proposal.setting).headroom_gib if printed is None else printed


def _with_worst_sighting(belief: GridBelief, model: MemoryModel, trials: Sequence[TrialResult]) -> GridBelief:
    """Start-up headroom minus the least free memory under load is a transient that has really been used."""
    sightings = [
        (_used_gib(model, trial, level), _is_full(level, trials))
        for trial in trials
        for level in trial.levels
        if level.headroom_min_gib
    ]
    if not sightings:
        return belief
    worst = max(used for used, _ in sightings)
    if any(full for _, full in sightings):
        return belief.seen_at_least(worst, 0.05, LOADED_EXCESS_GIB + LOADED_EXCESS_SHARE * max(0.0, worst))
    return belief.seen_at_least(worst, 0.05, IDLE_EXCESS_GIB + IDLE_EXCESS_SHARE * max(0.0, worst))


def _used_gib(model: MemoryModel, trial: TrialResult, level: LevelResult) -> float:
    scale = model.transient_scale(trial.proposal.setting)
    return (_headroom_gib(model, trial) - min(level.headroom_min_gib.values())) / scale


def _is_full(level: LevelResult, trials: Sequence[TrialResult]) -> bool:
    """A full house: requests queue, the pool is nearly full, or no higher concurrency was tried anywhere."""
    if (level.queued_requests or 0.0) >= 1.0 or (level.token_usage_share or 0.0) >= 0.85:
        return True
    highest = max(other.concurrency for trial in trials for other in trial.levels)
    return level.concurrency >= 0.7 * highest and level.finished_requests >= 50


def _with_crash(belief: GridBelief, failure: Failure | None, headroom: float, scale: float) -> GridBelief:
    """A crash exceeds the headroom; where it says what it asked for, the transient is at least that sum."""
    belief = belief.above(headroom / scale, max(0.08, START_TRANSIENT_SHARE_SD * headroom))
    numbers = failure.numbers if failure is not None else None
    if numbers is None or numbers.tried_gib is None or numbers.gpu_free_gib is None:
        return belief
    needed = headroom - numbers.gpu_free_gib + numbers.tried_gib
    return belief.seen_at_least(needed / scale, 0.1, 0.2 + 0.15 * max(0.0, needed))
